"""Recommendations of a tdm model: a beam goes down the item tree, a level at a time.

At each level the model scores the nodes that the beam has reached; the children of the best are next. The
leaves that it reaches are items. Only as many nodes are scored as the beam is wide, times the branching,
times the levels, however many items there are (Zhu et al. 2018, arXiv:1801.02294).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.config import PipelineConfig, load_config
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.ids import KnownIds
from recgrad.data.list_column import values_of
from recgrad.errors import RecgradError
from recgrad.retrieval.lists import Found, Ints, ItemSets
from recgrad.serving.manifest import CONFIG
from recgrad.serving.scorer import Scorer
from recgrad.serving.tree import LEVEL, SERVING, SearchTree, load_tree

Scores = npt.NDArray[np.float32]
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


class BundleNodes:
    """A bundle, without torch.

    Args:
        scorer: the bundle.
        tree: whose nodes it scores.
    """

    def __init__(self, scorer: Scorer, tree: SearchTree) -> None:
        config = load_config(scorer.path / CONFIG)
        names = node_columns(config, tree)
        self._scorer = scorer
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
        return positive(values_of(next(iter(self._scorer.score(rows).values()))))


def positive(scores: Scores) -> Scores:
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


class TreeIndex:
    """A tree that is served: what a vector index is to two towers.

    Args:
        path: the folder of the tree.

    Attributes:
        similarity: what its scores are; those of vectors have the name of a similarity.
    """

    similarity = "PROBABILITY"

    def __init__(self, path: Path) -> None:
        self.tree = load_tree(path)
        self._items = TreeItems(self.tree)
        self._nodes: tuple[Scorer, BundleNodes] | None = None
        self.manifest = {"version": int((path / SERVING).stat().st_mtime)}

    def __len__(self) -> int:
        return len(self._items)

    def numbers(self, ids: pa.Array) -> Ints:
        """The numbers of ids, −1 for those that the tree has not."""
        return self._items.numbers(ids)

    def ids_of(self, numbers: Any) -> pa.Array:
        """The ids of items by number."""
        return self._items.ids_of(numbers)

    def check_model(self, scorer: Scorer) -> None:
        """Raise unless the model scores nodes such as these."""
        self._of(scorer)

    def user_schema(self, scorer: Scorer) -> pa.Schema:
        """The columns of a user."""
        return pa.schema([scorer.schema.field(name) for name in self._of(scorer).columns])

    def find(
        self, scorer: Scorer, users: pa.Table, k: int, condition: str | None, banned: ItemSets | None
    ) -> Found:
        """The k best items that a beam of 2·k reaches for each user."""
        if condition is not None:
            raise RecgradError(
                "filter: a beam down a tree cannot keep k items for every filter; leave it out"
            )
        k = min(k, len(self))
        return search_tree(self._of(scorer), self.tree, users, k, 2 * k, banned)

    def _of(self, scorer: Scorer) -> BundleNodes:
        if self._nodes is None or self._nodes[0] is not scorer:
            self._nodes = scorer, BundleNodes(scorer, self.tree)
        return self._nodes[1]
