"""An item tree as files: what `tdm_sampler` reads, and what a search needs.

    node_table.txt           every node: id, weight, and tree_level, id, attributes as one text
    edge_table.txt           each leaf to every ancestor but the root
    predict_edge_table.txt   each parent to its children
    serving_tree             levels and branching, then a node's code and id a line
    node_feature.parquet     id, level and attributes of every node, a column each

Leaves have the ids of their items; node c above them has the largest of these ids plus c + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recgrad.data.ids import KnownIds
from recgrad.errors import DataError, RecgradError, system_reason, whole_path
from recgrad.retrieval.item_tree import ItemTree, means_of, most_frequent
from recgrad.serving.tree import FEATURES, LEVEL, SERVING

Ints = npt.NDArray[np.int64]
NODES, EDGES, CHILDREN = "node_table.txt", "edge_table.txt", "predict_edge_table.txt"


def item_ids(table: pa.Table, field: str, where: str) -> Ints:
    """The ids of items, each once, whole numbers of 0 and more."""
    known = KnownIds(table.column(field), f"{where}: column '{field}'")
    if not pa.types.is_int64(known.ids.type):
        raise DataError(f"{where}: column '{field}': ids of a tree's items are whole numbers, got text")
    ids: Ints = known.ids.to_numpy()
    if len(ids) < 2:
        raise DataError(f"{where}: a tree needs two items at least, got {len(ids)}")
    if ids.min() < 0:
        raise DataError(f"{where}: column '{field}': ids of a tree's items are 0 or more, got {ids.min()}")
    return ids


def write_tree(
    folder: str | Path,
    tree: ItemTree,
    table: pa.Table,
    *,
    id_field: str,
    attr_fields: Sequence[str] = (),
    raw_attr_fields: Sequence[str] = (),
    delimiter: str = ",",
) -> int:
    """Write the files of a tree; returns the number of its nodes.

    Args:
        folder: to write them to.
        tree: over the rows of `table`.
        table: items, with their ids and attributes.
        id_field: the column of ids.
        attr_fields: attributes of which an inner node has the commonest below it.
        raw_attr_fields: attributes of which an inner node has the mean below it, rounded for whole numbers.
        delimiter: between attributes in the node table.
    """
    ids = item_ids(table, id_field, "items")[tree.order]
    arranged = table.take(pa.array(tree.order))
    node_ids = [int(ids.max()) + 1 + level.codes for level in tree.levels[:-1]] + [ids]
    sizes = [len(level.codes) for level in tree.levels]
    columns: dict[str, pa.ChunkedArray | pa.Array] = {
        LEVEL: pa.array(np.repeat(np.arange(len(sizes)), sizes)),
        id_field: pa.array(np.concatenate(node_ids)),
    }
    for name in attr_fields:
        columns[name] = _common(tree, arranged.column(name))
    for name in raw_attr_fields:
        columns[name] = _means(tree, arranged.column(name), name)
    features = pa.table(columns)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        _write_nodes(target / NODES, features, id_field, delimiter)
        _write_edges(target, tree, node_ids)
        codes = np.concatenate([level.codes for level in tree.levels])
        lines = (f"{code} {node}" for code, node in zip(codes.tolist(), np.concatenate(node_ids).tolist()))
        _write_lines(target / SERVING, f"{len(sizes)} {tree.branching}", lines)
        pq.write_table(features, target / FEATURES)
    except OSError as error:
        raise RecgradError(
            f"tdm-tree: '{target}'{whole_path(target)} cannot be written: {system_reason(error)}"
        ) from error
    return len(codes)


def _common(tree: ItemTree, column: pa.ChunkedArray) -> pa.Array:
    """A column of all nodes: the commonest value below each."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    codes = np.asarray(encoded.indices, np.int64)
    found = [most_frequent(codes, level.starts) for level in tree.levels[:-1]]
    return encoded.dictionary.take(pa.array(np.concatenate([*found, codes])))


def _means(tree: ItemTree, column: pa.ChunkedArray, name: str) -> pa.Array:
    """A column of all nodes: the mean below each."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"items: column '{name}': raw_attr_fields are numbers, got {kind}")
    if column.null_count:
        raise DataError(f"items: column '{name}': {column.null_count} items have no number; fill them in")
    values = column.to_numpy().astype(np.float64)
    found = np.concatenate([*(means_of(values, level.starts) for level in tree.levels[:-1]), values])
    return pa.array(np.rint(found) if pa.types.is_integer(kind) else found).cast(kind)


def _write_nodes(path: Path, features: pa.Table, id_field: str, delimiter: str) -> None:
    texts = [pc.fill_null(_text(features.column(name)), "") for name in features.column_names]
    for name, column in zip(features.column_names, texts):
        if delimiter and pc.any(pc.match_substring_regex(column, f"[{_escaped(delimiter)}\t\n]")).as_py():
            raise DataError(
                f"items: column '{name}': some values contain the delimiter {delimiter!r}, a tab or a line "
                "break; choose another --attr-delimiter"
            )
    joined = pc.binary_join_element_wise(*texts, delimiter).to_pylist()
    nodes = features.column(id_field).to_pylist()
    root = delimiter.join(["-1", *(column[0].as_py() for column in texts[1:])])
    lines = (f"{node}\t1.0\t{text}" for node, text in zip([-1, *nodes], [root, *joined]))
    _write_lines(path, "id:int64\tweight:float\tfeature:string", lines)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string())


def _escaped(delimiter: str) -> str:
    return "".join(
        f"\\{letter}" if not letter.isalnum() and letter.isascii() else letter for letter in delimiter
    )


def _write_edges(target: Path, tree: ItemTree, node_ids: list[Ints]) -> None:
    header = "src_id:int64\tdst_id:int64\tweight:float"
    codes, leaves = tree.levels[-1].codes, node_ids[-1].tolist()
    above: list[Ints] = []
    for level in range(len(tree.levels) - 2, 0, -1):
        codes = (codes - 1) // tree.branching
        above.insert(0, node_ids[level][np.searchsorted(tree.levels[level].codes, codes)])
    rows = np.stack(above, axis=1).tolist() if above else [[] for _ in leaves]
    lines = (f"{leaf}\t{node}\t1.0" for leaf, nodes in zip(leaves, rows) for node in nodes)
    _write_lines(target / EDGES, header, lines)
    pairs = [f"-1\t{node_ids[0][0]}\t1.0"]
    for level in range(1, len(tree.levels)):
        parents = (tree.levels[level].codes - 1) // tree.branching
        sources = node_ids[level - 1][np.searchsorted(tree.levels[level - 1].codes, parents)]
        pairs += [f"{a}\t{b}\t1.0" for a, b in zip(sources.tolist(), node_ids[level].tolist())]
    _write_lines(target / CHILDREN, header, pairs)


def _write_lines(path: Path, header: str, lines: Iterable[str]) -> None:
    """Write to a file beside the target and rename it, so that a killed run leaves no half file."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(header + "\n")
        file.writelines(f"{line}\n" for line in lines)
    partial.replace(path)
