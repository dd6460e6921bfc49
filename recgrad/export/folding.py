"""Writes the folded form of a program: see `recgrad.serving.folding`.

    inputs ─ Concat ─┬─ Gemm(W, bias) ─ …     becomes     other columns ─ Concat ─ Gemm(rest of W, fold0) ─ …
                     └─ other uses                        inputs ─ other uses

Layers over inputs side by side are folded; what else reads the inputs reads them still.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.embedding.mapped.record import LookupRecord, TableRecord
from recgrad.kernels.simd import LANES
from recgrad.serving.manifest import FoldRecord, ProgramRecord

MOST_BYTES = 16 << 20
"""Of all products of a program: about what caches hold; from memory they would come too slowly."""
MIN_DIM = 8
"""Of a vector: a narrower one is multiplied as fast as its product is read."""
MIN_UNITS = 64
MIN_COLUMNS = 64
"""That are folded away: fewer are not worth a form of their own."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Piece:
    """Columns of a tensor that are those of an input; of a lookup, or "" for all others."""

    input: str
    first: int
    width: int
    lookup: str


@dataclass(frozen=True)
class _Layer:
    """A Gemm over inputs side by side: its number among the nodes, weights [columns, units], bias [units]."""

    node: int
    weights: Floats
    bias: Floats
    pieces: tuple[_Piece, ...]


def fold_program(
    folder: Path,
    program: ProgramRecord,
    tables: Sequence[TableRecord],
    lookups: Sequence[LookupRecord],
) -> ProgramRecord:
    """Write the folded form of a program, where it is worth it; returns the record with it."""
    if program.kind != "onnx" or program.weights:  # deltas would have to fold again
        return program
    import onnx

    model = onnx.load(folder / program.file)
    table_of = {table.name: table for table in tables}
    of_lookup = {lookup.name: (lookup, table_of[lookup.table]) for lookup in lookups}
    layers = _layers(model.graph, program, of_lookup)
    chosen = _chosen(layers, of_lookup)
    layers = [layer for layer in layers if _folded(layer, chosen)]
    if sum(of_lookup[name][1].dim for name in chosen) < MIN_COLUMNS:
        return program
    stem = program.file.removesuffix(".onnx")
    _straighten(model.graph, program)
    folds, before = [], len(model.graph.node)
    for i, layer in enumerate(layers):
        fold = FoldRecord(f"fold{i}", layer.weights.shape[1], _folded(layer, chosen), f"{stem}.fold{i}.npy")
        np.save(folder / fold.file, _fold_layer(model.graph, layer, fold))
        folds.append(fold)
    _prune(model.graph, len(model.graph.node) - before)
    onnx.checker.check_model(model)
    file = f"{stem}.folded.onnx"
    (folder / file).write_bytes(model.SerializeToString(deterministic=True))
    return replace(program, folded_file=file, folds=tuple(folds))


def _layers(
    graph: Any, program: ProgramRecord, lookups: Mapping[str, tuple[LookupRecord, TableRecord]]
) -> list[_Layer]:
    """Wide layers whose input is inputs of the program side by side."""
    sides, known = _sides(graph, program, lookups), _constants(graph)
    layers = []
    for number, node in enumerate(graph.node):
        if node.op_type != "Gemm" or node.input[0] not in sides or node.input[1] not in known:
            continue
        given = {item.name: item for item in node.attribute}
        factors = [given[name].f for name in ("alpha", "beta") if name in given]
        if ("transA" in given and given["transA"].i) or any(factor != 1 for factor in factors):
            continue
        weights = known[node.input[1]]
        weights = weights.T if "transB" in given and given["transB"].i else weights
        bias = np.zeros(weights.shape[1], np.float32)
        if len(node.input) > 2 and node.input[2]:
            if node.input[2] not in known:
                continue
            bias = known[node.input[2]]
        units = weights.shape[1]
        wide = units >= MIN_UNITS and units % LANES == 0
        if wide and weights.dtype == np.float32 and bias.shape == (units,):
            layers.append(_Layer(number, weights, bias, sides[node.input[0]]))
    return layers


def _constants(graph: Any) -> dict[str, Any]:
    """Arrays that are the same whatever the inputs are: initialisers, also in another shape."""
    from onnx import numpy_helper

    known = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    for node in graph.node:
        if node.op_type == "Reshape" and set(node.input) <= set(known):
            shape = known[node.input[1]]
            if (shape != 0).all():  # which would mean a size of the input's
                known[node.output[0]] = known[node.input[0]].reshape(shape)
    return known


def _sides(
    graph: Any, program: ProgramRecord, lookups: Mapping[str, tuple[LookupRecord, TableRecord]]
) -> dict[str, tuple[_Piece, ...]]:
    """Tensors that are inputs of rows side by side, and what their columns are."""
    sides: dict[str, tuple[_Piece, ...]] = {}
    for record in program.inputs:
        if record.source == "dense":
            sides[record.name] = (_Piece(record.name, 0, record.width, ""),)
        elif record.source == "lookups":
            pieces, first = [], 0
            for name in record.lookups:
                pieces.append(_Piece(record.name, first, lookups[name][1].dim, name))
                first += pieces[-1].width
            sides[record.name] = tuple(pieces)
    for node in graph.node:
        if node.op_type == "Concat" and node.attribute[0].i in (1, -1) and set(node.input) <= set(sides):
            sides[node.output[0]] = tuple(piece for name in node.input for piece in sides[name])
    return sides


def _chosen(layers: Sequence[_Layer], lookups: Mapping[str, tuple[LookupRecord, TableRecord]]) -> set[str]:
    """Lookups to fold: of the smallest tables, as many as there is room for."""
    units: dict[str, int] = {}
    for layer in layers:
        for piece in layer.pieces:
            if piece.lookup:
                units[piece.lookup] = units.get(piece.lookup, 0) + layer.weights.shape[1]
    sizes = {name: 4 * count * lookups[name][1].num_rows for name, count in units.items()}
    chosen, taken = set(), 0
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        lookup, table = lookups[name]
        if lookup.sequence or table.entries or table.dim < MIN_DIM:
            continue
        taken += sizes[name]
        if taken > MOST_BYTES:
            break
        chosen.add(name)
    return chosen


def _folded(layer: _Layer, chosen: set[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(piece.lookup for piece in layer.pieces if piece.lookup in chosen))


def _fold_layer(graph: Any, layer: _Layer, fold: FoldRecord) -> Floats:
    """Let a Gemm take the other columns and, in place of its bias, the fold; returns bias and weights."""
    from onnx import helper, numpy_helper

    rows: dict[str, Floats] = {}
    rest: list[tuple[_Piece, Floats]] = []
    at = 0
    for piece in layer.pieces:
        weights = layer.weights[at : at + piece.width]
        if piece.lookup in fold.lookups:
            # An input that is twice in the layer's adds up.
            rows[piece.lookup] = rows[piece.lookup] + weights if piece.lookup in rows else weights
        else:
            rest.append((piece, weights))
        at += piece.width
    like = next(i for i in graph.input if i.name == layer.pieces[0].input).type.tensor_type
    size = like.shape.dim[0].dim_param
    graph.input.append(helper.make_tensor_value_info(fold.name, like.elem_type, [size, fold.units]))
    node = graph.node[layer.node]
    if not rest:
        node.CopyFrom(helper.make_node("Identity", [fold.name], [node.output[0]], name=node.name))
    else:
        parts = [_columns(graph, name, *run) for name, *run in _runs([piece for piece, _ in rest])]
        joined = f"{fold.name}.rest"
        graph.node.append(helper.make_node("Concat", parts, [joined], name=joined, axis=1))
        kept = np.ascontiguousarray(np.concatenate([weights for _, weights in rest]))
        graph.initializer.append(numpy_helper.from_array(kept, f"{fold.name}.weight"))
        taken = [joined, f"{fold.name}.weight", fold.name]
        node.CopyFrom(helper.make_node("Gemm", taken, [node.output[0]], name=node.name))
    return np.ascontiguousarray(np.concatenate([layer.bias[None], *(rows[name] for name in fold.lookups)]))


def _runs(pieces: Sequence[_Piece]) -> Iterator[tuple[str, int, int]]:
    """Columns of inputs, (input, first, last), those that lie side by side together."""
    name, first, last = pieces[0].input, pieces[0].first, pieces[0].first
    for piece in pieces:
        if piece.input != name or piece.first != last:
            yield name, first, last
            name, first = piece.input, piece.first
        last = piece.first + piece.width
    yield name, first, last


def _columns(graph: Any, name: str, first: int, last: int) -> str:
    """Some columns of an input, by a node that is added."""
    from onnx import helper, numpy_helper

    given = next(item for item in graph.input if item.name == name)
    if (first, last) == (0, given.type.tensor_type.shape.dim[1].dim_value):
        return name
    out = f"{name}.{first}-{last}"
    if any(out in node.output for node in graph.node):
        return out
    bounds = [f"{out}.{end}" for end in ("first", "last", "axis")]
    for place, value in zip(bounds, (first, last, 1), strict=True):
        graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), place))
    graph.node.append(helper.make_node("Slice", [name, *bounds], [out], name=out))
    return out


def _straighten(graph: Any, program: ProgramRecord) -> None:
    """Let what cuts an input out of several side by side read the input itself."""
    widths = {record.name: record.width for record in program.inputs if record.width}
    known = _constants(graph)
    places: dict[tuple[str, int, int], str] = {}
    for node in graph.node:
        if node.op_type == "Concat" and node.attribute[0].i in (1, -1) and set(node.input) <= set(widths):
            first = 0
            for name in node.input:
                places[node.output[0], first, first + widths[name]] = name
                first += widths[name]
    totals = {name: max(last for of, _, last in places if of == name) for name, _, _ in places}
    same: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "Slice" and node.input[0] in totals and set(node.input[1:]) <= set(known):
            bounds = [known[name].tolist() for name in node.input[1:]]
            if bounds[2:] in ([[1]], [[1], [1]]) and len(bounds[0]) == 1 and bounds[0][0] >= 0:
                last = min(bounds[1][0], totals[node.input[0]])
                found = places.get((node.input[0], bounds[0][0], last))
                if found is not None:
                    same[node.output[0]] = found
    for node in graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = same.get(name, name)


def _prune(graph: Any, added: int) -> None:
    """Put the nodes that were added last first, as they read inputs alone; drop what nothing reads."""
    nodes = [*graph.node[len(graph.node) - added :], *graph.node[: len(graph.node) - added]]
    used, kept = {item.name for item in graph.output}, []
    for node in reversed(nodes):
        if used & set(node.output):
            used.update(node.input)
            kept.append(node)
    fields = {
        "node": kept[::-1],
        "initializer": [item for item in graph.initializer if item.name in used],
        "input": [item for item in graph.input if item.name in used],
    }
    for field, items in fields.items():
        copies = [type(item).FromString(item.SerializeToString()) for item in items]
        graph.ClearField(field)
        getattr(graph, field).extend(copies)
