"""An item tree as it is searched, read from the files of `recgrad tdm-tree`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from recgrad.errors import RecgradError, whole_path

Ints = npt.NDArray[np.int64]
LEVEL = "tree_level"
SERVING, FEATURES = "serving_tree", "node_feature.parquet"


@dataclass(frozen=True)
class SearchTree:
    """A tree as it is searched; nodes are numbered level by level, from left to right.

    Attributes:
        path: its folder.
        id_field: the column of ids in `features`.
        features: a row a node.
        firsts: int64 [levels + 1], the first node of each level.
        children: int64 [nodes + 1], where the children of each node begin, numbered one after another.
    """

    path: Path
    id_field: str
    features: pa.Table
    firsts: Ints
    children: Ints

    @property
    def leaves(self) -> pa.Array:
        """The ids of items, from left to right."""
        return self.features.column(self.id_field).slice(int(self.firsts[-2])).combine_chunks()


def load_tree(folder: str | Path) -> SearchTree:
    """Read a tree that `write_tree` wrote."""
    path = Path(folder)
    if not (path / SERVING).is_file() or not (path / FEATURES).is_file():
        raise RecgradError(
            f"tree '{path}'{whole_path(path)}: has no {SERVING} and {FEATURES}; "
            "make it with `recgrad tdm-tree`"
        )
    try:
        features = pq.read_table(path / FEATURES)
        with open(path / SERVING, encoding="utf-8") as file:
            levels, branching = map(int, file.readline().split())
            numbers = np.array([line.split() for line in file], np.int64).reshape(-1, 2)
        codes, nodes = numbers[:, 0], numbers[:, 1]
        id_field = features.column_names[1]
        level = features.column(LEVEL).to_numpy()
        if features.column_names[0] != LEVEL or not np.array_equal(
            features.column(id_field).to_numpy(), nodes
        ):
            raise ValueError(f"{SERVING} and {FEATURES} name other nodes")
        firsts = np.searchsorted(level, np.arange(levels + 1))
        if firsts[-1] != len(codes) or firsts[-2] == len(codes) or (np.diff(codes) <= 0).any():
            raise ValueError("nodes are not ordered by level and code")
    except (OSError, ValueError, KeyError, IndexError, pa.ArrowException) as error:
        raise RecgradError(
            f"tree '{path}'{whole_path(path)}: cannot be read ({error}); build it again"
        ) from error
    parents = np.searchsorted(codes, (codes[1:] - 1) // branching)
    children = 1 + np.searchsorted(parents, np.arange(len(codes) + 1))
    return SearchTree(path, id_field, features, firsts, children)
