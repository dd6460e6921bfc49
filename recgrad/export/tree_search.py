"""Recommendations of a tdm model for the users of files, from a checkpoint or a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from recgrad.data.ids import plain_ids
from recgrad.data.readers.tables import open_table, read_table
from recgrad.errors import DataError, RecgradError
from recgrad.export.recommend import History, check_output, check_user_field, in_lists, in_rows
from recgrad.export.towers import check_bundle_options, is_model_bundle, write_tables
from recgrad.retrieval.lists import Ints
from recgrad.serving.scorer import Scorer
from recgrad.serving.tree import SearchTree
from recgrad.serving.tree_search import (
    BundleNodes,
    NodeModel,
    Scores,
    TreeItems,
    node_columns,
    positive,
    search_tree,
)

USERS = 256  # that go down the tree together


class TrainedNodes:
    """A checkpoint: users and nodes are encoded once, and put together by their rows."""

    def __init__(
        self,
        model: str | Path,
        tree: SearchTree,
        *,
        checkpoint_path: str | Path | None = None,
        edit_config_json: Any = None,
        custom_code: bool = True,
    ) -> None:
        import torch

        from recgrad.data.encoder import FeatureEncoder
        from recgrad.export.bundle import encoded_batch
        from recgrad.training.run import load_trained

        trained = load_trained(
            model,
            checkpoint_path,
            edit_config_json=edit_config_json,
            exporting=True,
            device=torch.device("cpu"),
            custom_code=custom_code,
        )
        names = set(node_columns(trained.config, tree))
        of_nodes = [f for f in trained.features if f.columns and set(f.columns) <= names]
        of_users = [f for f in trained.features if not names & set(f.columns)]
        both = [f.name for f in trained.features if f not in of_nodes and f not in of_users]
        if both:
            raise RecgradError(
                f"feature {both[0]}: reads columns of users and of nodes, which a search cannot encode apart"
            )
        self.data = trained.config.data_config
        self._task = trained.task
        self._encoder = FeatureEncoder(of_users)
        self.columns: Sequence[str] = self._encoder.columns
        self._nodes = encoded_batch(of_nodes, tree.features)

    def encode(self, users: pa.Table) -> Any:
        """The batch of some users."""
        from recgrad.data.batch import Batch
        from recgrad.data.faults import Faults

        faults = Faults()
        encoded = self._encoder.encode_table(users, faults)
        if (fault := faults.first()) is not None:
            raise DataError(f"users: {fault}")
        return Batch.of(encoded)

    def score(self, users: Any, owners: Ints, nodes: Ints) -> Scores:
        """Probabilities, by the model itself."""
        import torch

        from recgrad.data.taking import beside, take_rows

        batch = beside(
            take_rows(users, torch.from_numpy(owners)), take_rows(self._nodes, torch.from_numpy(nodes))
        )
        with torch.inference_mode():
            found = next(iter(self._task.predictions(self._task(batch)).values()))
        return positive(found.float().numpy())


def open_nodes(
    model: str | Path,
    tree: SearchTree,
    *,
    checkpoint_path: str | Path | None = None,
    edit_config_json: Any = None,
    custom_code: bool = True,
    threads: int = 1,
) -> NodeModel:
    """The nodes of a tree as a model_dir, a config or a bundle scores them; `threads` are a bundle's."""
    if is_model_bundle(model):
        check_bundle_options(model, checkpoint_path, edit_config_json)
        return BundleNodes(Scorer.load(model, threads=threads), tree)
    return TrainedNodes(
        model,
        tree,
        checkpoint_path=checkpoint_path,
        edit_config_json=edit_config_json,
        custom_code=custom_code,
    )


def recommend_by_tree(
    model: NodeModel,
    tree: SearchTree,
    users_path: str,
    output_path: str | Path,
    *,
    k: int = 100,
    beam: int = 0,
    user_field: str = "user_id",
    history_path: str | None = None,
    item_field: str | None = None,
) -> int:
    """Write the k best items of every user as `recommend` does; returns the number of users.

    Args:
        model: scores nodes.
        tree: of the items.
        users_path: files with the columns of users and `user_field`.
        output_path: a .parquet or .csv file.
        k: items of a user.
        beam: nodes that are kept of a level, k at least; 0 for 2·k.
        user_field: the column of user ids.
        history_path: files with pairs of users and items to leave out.
        item_field: the column of items there; that of the tree if None.
    """
    target = check_output(output_path, k)
    if beam and beam < k:
        raise RecgradError(f"recommend: --beam must be at least k, {k}, got {beam}")
    items = TreeItems(tree)
    k = min(k, len(items))
    reader = open_table(users_path, model.data)
    check_user_field(reader, user_field)
    history = None
    if history_path is not None:
        history = History(history_path, items, user_field, item_field or tree.id_field, model.data)
    count = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal count
        columns = list(dict.fromkeys([*model.columns, user_field]))
        for table in read_table(reader, columns):
            for begin in range(0, table.num_rows, USERS):
                rows = table.slice(begin, USERS)
                users = rows.column(user_field)
                banned = None
                if history is not None:
                    banned = history.of(plain_ids(users, f"users: column '{user_field}'"))
                found = search_tree(model, tree, rows, k, beam or 2 * k, banned)
                count += rows.num_rows
                yield (in_rows if target.suffix == ".csv" else in_lists)(user_field, users, items, found)

    write_tables(target, tables(), {})
    return count
