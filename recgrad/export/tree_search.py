"""Recommendations of a tdm model: a beam goes down the item tree, a level at a time.

At each level the model scores the nodes that the beam has reached; the children of the best are next. The
leaves that it reaches are items. Only as many nodes are scored as the beam is wide, times the branching,
times the levels, however many items there are (Zhu et al. 2018, arXiv:1801.02294).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.config import PipelineConfig, load_config
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.ids import KnownIds, plain_ids
from recgrad.data.readers.tables import open_table, read_table
from recgrad.errors import DataError, RecgradError
from recgrad.export.recommend import History, check_output, check_user_field, in_lists, in_rows
from recgrad.export.towers import check_bundle_options, is_model_bundle, write_tables
from recgrad.export.tree_files import LEVEL, SearchTree
from recgrad.retrieval.lists import Found, Ints, ItemSets
from recgrad.serving.manifest import CONFIG
from recgrad.serving.scorer import Scorer

Scores = npt.NDArray[np.float32]
USERS = 256  # that go down the tree together
ROWS = 16384  # pairs of a user and a node in one pass of the model


class NodeModel(Protocol):
    """A tdm model over the nodes of a tree."""

    columns: Sequence[str]
    data: DataConfig

    def encode(self, users: pa.Table) -> Any:
        """What `score` takes of some users."""

    def score(self, users: Any, owners: Ints, nodes: Ints) -> Scores:
        """The probability of each pair of a user and a node."""


def node_columns(config: PipelineConfig, tree: SearchTree) -> list[str]:
    """The columns of nodes that a config's features may read: those that its sampler brings."""
    if not config.data_config.HasField("tdm_sampler"):
        raise RecgradError("recommend: --kind tdm is for models that data_config.tdm_sampler has trained")
    sampler = config.data_config.tdm_sampler
    if tree.id_field != sampler.item_id_field:
        raise RecgradError(
            f"tree '{tree.path}': its items are in column '{tree.id_field}', the model's in "
            f"'{sampler.item_id_field}'; build it with --item-id-field {sampler.item_id_field}"
        )
    names = list(dict.fromkeys([LEVEL, sampler.item_id_field, *sampler.attr_fields]))
    missing = [name for name in names if name not in tree.features.column_names]
    if missing:
        raise RecgradError(
            f"tree '{tree.path}': its nodes have no attribute '{missing[0]}', which the model's sampler "
            "brings; build it with --attr-fields or --raw-attr-fields"
        )
    return names


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
        return _positive(found.float().numpy())


class BundleNodes:
    """A bundle, without torch."""

    def __init__(self, path: str | Path, tree: SearchTree, *, threads: int = 1) -> None:
        config = load_config(Path(path) / CONFIG)
        names = node_columns(config, tree)
        self._scorer = Scorer.load(path, threads=threads)
        self.data = config.data_config
        self.columns: Sequence[str] = [name for name in self._scorer.schema.names if name not in names]
        self._nodes = tree.features.select(names)

    def encode(self, users: pa.Table) -> pa.Table:
        """The users as they are; rows are encoded with their nodes."""
        return users.select(list(self.columns))

    def score(self, users: pa.Table, owners: Ints, nodes: Ints) -> Scores:
        """Probabilities, by the bundle."""
        rows, more = users.take(pa.array(owners)), self._nodes.take(pa.array(nodes))
        for name in more.column_names:
            rows = rows.append_column(name, more.column(name))
        return _positive(next(iter(self._scorer.score(rows).values())))


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
        return BundleNodes(model, tree, threads=threads)
    return TrainedNodes(
        model,
        tree,
        checkpoint_path=checkpoint_path,
        edit_config_json=edit_config_json,
        custom_code=custom_code,
    )


def _positive(scores: Scores) -> Scores:
    """Of two classes the second."""
    return scores if scores.ndim == 1 else np.ascontiguousarray(scores[:, -1])


class TreeItems:
    """The leaves of a tree as an index has them, by their numbers from left to right."""

    def __init__(self, tree: SearchTree) -> None:
        self.path, self.id_field = tree.path, tree.id_field
        self._known = KnownIds(tree.leaves, f"tree '{tree.path}'")

    def __len__(self) -> int:
        return len(self._known)

    def numbers(self, ids: pa.Array) -> Ints:
        """The numbers of ids, −1 for those that the tree has not."""
        return self._known.numbers(ids)

    def ids_of(self, numbers: Any) -> pa.Array:
        """The ids of items by number."""
        return self._known.ids.take(pa.array(numbers))


def search_tree(
    model: NodeModel, tree: SearchTree, users: pa.Table, k: int, beam: int, banned: ItemSets | None = None
) -> Found:
    """The k best items that a beam reaches for each user, −1 where it reaches fewer.

    Args:
        model: scores nodes.
        tree: of the items.
        users: rows with the columns of users.
        k: items of a user.
        beam: nodes that are kept of a level.
        banned: items that a user must not get; the beam is wider by as many.
    """
    encoded, count = model.encode(users), users.num_rows
    width = np.full(count, beam) if banned is None else beam + 2 * banned.sizes
    last = len(tree.firsts) - 2
    level = int(np.argmax(np.append(np.diff(tree.firsts)[:-1] > width.max(initial=0), True)))
    every = np.arange(tree.firsts[level], tree.firsts[level + 1])
    owners, nodes = np.repeat(np.arange(count), len(every)), np.tile(every, count)
    while True:
        scores = _scored(model, encoded, owners, nodes)
        if level == last:
            return _best(owners, nodes - tree.firsts[last], scores, count, k, banned)
        kept = _firsts(owners, scores, width)
        owners, nodes = owners[kept], nodes[kept]
        sizes = tree.children[nodes + 1] - tree.children[nodes]
        begins = np.repeat(tree.children[nodes] - (np.cumsum(sizes) - sizes), sizes)
        owners, nodes = np.repeat(owners, sizes), begins + np.arange(sizes.sum())
        level += 1


def _scored(model: NodeModel, users: Any, owners: Ints, nodes: Ints) -> Scores:
    parts = [slice(at, at + ROWS) for at in range(0, len(owners), ROWS)]
    found = [model.score(users, owners[part], nodes[part]) for part in parts]
    return np.concatenate(found) if found else np.empty(0, np.float32)


def _firsts(owners: Ints, scores: Scores, width: Ints) -> Ints:
    """Rows of the best of each owner, as many as its width; equal scores go by their order."""
    order = np.lexsort((-scores, owners))
    sorted_owners = owners[order]
    place = np.arange(len(order)) - np.searchsorted(sorted_owners, sorted_owners)
    kept: Ints = order[place < width[sorted_owners]]
    return kept


def _best(owners: Ints, items: Ints, scores: Scores, count: int, k: int, banned: ItemSets | None) -> Found:
    if banned is not None and len(banned.items):
        largest = 1 + max(int(items.max(initial=0)), int(banned.items.max(initial=0)))
        free = ~np.isin(owners * largest + items, banned.queries * largest + banned.items)
        owners, items, scores = owners[free], items[free], scores[free]
    kept = _firsts(owners, scores, np.full(count, k))
    rows = owners[kept]
    place = np.arange(len(kept)) - np.searchsorted(rows, rows)
    found = Found(np.full((count, k), -1, np.int64), np.full((count, k), -np.inf, np.float32))
    found.items[rows, place], found.scores[rows, place] = items[kept], scores[kept]
    return found


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
