"""The dense half of a model as a program: ONNX, or torch.export's where ONNX cannot express it.

The line to cut at is `Parts`: a program takes what `FeatureGroups.gather` gives, tensor by tensor, and
gives the columns of `recgrad predict`, or the vectors of one tower.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recgrad.data.batch import Batch
from recgrad.errors import RecgradError
from recgrad.export.movable import place_weights
from recgrad.export.sources import input_records, needed_features
from recgrad.models.base import Model
from recgrad.models.inputs import Parts
from recgrad.nn.jagged import exported_places
from recgrad.serving.manifest import InputRecord, ProgramRecord, WeightRecord
from recgrad.training.dense_state import dense_state
from recgrad.training.task import Task

OPSET = 20
PLACES = InputRecord("places", "places")
_LENGTHS = (3, 0, 2, 4, 1, 2, 1)  # of the example rows: more than one, of all kinds
_log = logging.getLogger("recgrad.export")


@dataclass(frozen=True)
class Half:
    """What becomes a program: some groups of a model, and a function of their parts.

    Attributes:
        name: of the program.
        groups: that are gathered; None for all.
        compute: outputs by name.
        list_group: the sequence group whose every position has an output; None for an output a row.
    """

    name: str
    groups: Sequence[str] | None
    compute: Callable[[Parts], Mapping[str, Tensor]]
    list_group: str | None = None


def halves_of(task: Task) -> list[Half]:
    """What a task exports: its scores, and each tower of a two-tower model."""
    model: Model = task.model
    if model.predicts_lists and model.list_group is None:
        name = type(model).__name__
        raise RecgradError(
            f"export: {name} predicts lists but does not say of which group; give it a property list_group"
        )
    scoring = Half("score", None, lambda parts: task.predictions(model.scores(parts)), model.list_group)
    return [scoring, *(_tower(model, name, groups) for name, groups in _towers(model).items())]


def _towers(model: Model) -> Mapping[str, Sequence[str]]:
    """The groups of each tower.

    Raises:
        RecgradError: the model has towers, but does not say their vectors as a function of parts.
    """
    if model.tower_groups and type(model).tower_vectors is Model.tower_vectors:
        name = type(model).__name__
        raise RecgradError(
            f"export: {name} has towers ({', '.join(model.tower_groups)}) but no tower_vectors, so they "
            f"cannot be exported; write {name}.tower_vectors(tower, parts), from which embed follows"
        )
    return model.tower_groups


def _tower(model: Model, name: str, groups: Sequence[str]) -> Half:
    of_lists = model.list_group if model.list_group in groups else None
    return Half(name, groups, lambda parts: {f"{name}_tower_emb": model.tower_vectors(name, parts)}, of_lists)


class _Program(nn.Module):
    """A half of a model as a function of tensors."""

    def __init__(self, task: Task, half: Half, template: Parts, names: Sequence[str]) -> None:
        super().__init__()
        self.task = task  # so that weights are found
        self._half, self._template, self._names = half, template, list(names)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self._names, tensors, strict=True))
        with exported_places(named.pop(PLACES.name)):
            return tuple(self._half.compute(self._template.replaced(named)).values())


@torch.no_grad()
def write_program(
    task: Task, half: Half, batch: Batch, folder: Path, *, movable: bool = False
) -> ProgramRecord:
    """Write the program of a half of a trained model.

    Args:
        task: in evaluation, on the CPU.
        half: of the model.
        batch: any rows, of which only the kinds of their features matter.
        folder: the bundle.
        movable: note where weights lie in the file, for deltas.
    """
    model: Model = task.model
    template = model.groups.gather(batch, model.engine, half.groups)
    given = input_records(model.groups, half.groups)
    records = [PLACES, *(given[place] for place in template.tensors())]
    outputs = tuple(half.compute(template))
    program = _Program(task, half, template, [record.name for record in records]).eval()
    examples = _examples(records, template.tensors(), _leaders(model))
    kind, file, note = "onnx", f"{half.name}.onnx", ""
    weights: tuple[WeightRecord, ...] = ()
    try:
        names = set(dense_state(model)) if movable else None
        used, weights = _write_onnx(program, records, examples, outputs, folder / file, names)
    except (RecgradError, OSError):  # a full disk says nothing of the model
        raise
    except Exception as error:
        note = _reason(error)
        _log.warning(
            "%s cannot be written as ONNX (%s); torch.export's program is used, which needs torch",
            type(model).__name__,
            note,
        )
        kind, file = "torch_export", f"{half.name}.pt2"
        used = _write_torch(program, records, examples, folder / file, note)
    lists = "" if half.list_group is None else model.groups.sequence_features(half.list_group)[0]
    needed = needed_features(model.groups, used, (lists,))
    equal = ([model.groups.sequence_features(group)[0] for group in groups] for groups in model.equal_lengths)
    return ProgramRecord(
        file,
        kind,
        OPSET if kind == "onnx" else 0,
        needed,
        used,
        outputs,
        note,
        weights,
        lists,
        tuple(tuple(names) for names in equal if set(names) <= set(needed)),
    )


def _leaders(model: Model) -> dict[str, str]:
    """The first of the groups that are equally long in a row, by each of them."""
    return {f"times.{group}": f"sequences.{groups[0]}" for groups in model.equal_lengths for group in groups}


def _examples(
    records: Sequence[InputRecord], tensors: Mapping[str, Tensor], leaders: Mapping[str, str]
) -> tuple[Tensor, ...]:
    """Inputs of a few rows; sequences differ in length, so that no two sizes are equal by chance.

    `leaders` says which sequence an input of times has the size of; any size of its own will do for others.
    """
    sequences = list(dict.fromkeys(_sequence_of(r) for r in records if r.source in ("lengths", "positions")))
    found = []
    for record in records:
        if record.source == "places":
            found.append(torch.arange(max(_LENGTHS) + len(sequences) + 1))
            continue
        like = tensors[record.name]
        if record.source == "times":
            size = sum(_LENGTHS) + 2 + len(found) + len(sequences)
            if leaders.get(record.name) in sequences:
                size = sum(_LENGTHS) + sequences.index(leaders[record.name])
            found.append(torch.rand(size, dtype=torch.float64))
            continue
        if record.source in ("lengths", "positions"):
            more = sequences.index(_sequence_of(record))
            lengths = torch.tensor([_LENGTHS[0] + more, *_LENGTHS[1:]])
            if record.source == "lengths":
                found.append(lengths.to(like.dtype))
                continue
            found.append(torch.randn(int(lengths.sum()), like.shape[1]))
        else:
            found.append(torch.randn(len(_LENGTHS), like.shape[1]))
    return tuple(found)


def _sequence_of(record: InputRecord) -> str:
    """What tells the sequences of a program apart: all inputs of one have names that begin alike."""
    return (
        record.name.rpartition(".")[0] if ".pooled." in record.name else ".".join(record.name.split(".")[:2])
    )


def _dynamic(examples: Sequence[Tensor]) -> tuple[dict[int, Any], ...]:
    return tuple({0: torch.export.Dim.DYNAMIC} for _ in examples)


def _write_onnx(
    program: nn.Module,
    records: Sequence[InputRecord],
    examples: tuple[Tensor, ...],
    outputs: Sequence[str],
    path: Path,
    movable: Collection[str] | None,
) -> tuple[tuple[InputRecord, ...], tuple[WeightRecord, ...]]:
    """Write the program; returns the inputs that it has, without those that it does not need.

    With `movable`, names of weights, these are left as they are, and it returns where they lie as well.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise RecgradError(
            f"export needs {error.name}; install it with: pip install 'recgrad[export]'"
        ) from error
    with _quiet():
        exported = torch.onnx.export(
            program,
            examples,
            dynamo=True,
            opset_version=OPSET,
            input_names=[record.name for record in records],
            output_names=list(outputs),
            dynamic_shapes=(_dynamic(examples),),
            external_data=False,
            verbose=False,
            optimize=movable is None,
        )
        assert exported is not None
        model = exported.model_proto
    _check_sizes(model)
    used = {name for node in model.graph.node for name in node.input}
    kept = [item for item in model.graph.input if item.name in used]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    for node in model.graph.node:  # where in which file of this machine it came from
        del node.metadata_props[:]
    for items in (model.graph.value_info, model.graph.metadata_props, model.metadata_props):
        del items[:]
    onnx.checker.check_model(model)
    content = model.SerializeToString(deterministic=True)
    weights: tuple[WeightRecord, ...] = ()
    if movable is not None:
        content, weights = place_weights(model, movable)
    path.write_bytes(content)
    return tuple(record for record in records if record.name in used), weights


def _check_sizes(model: Any) -> None:
    """Refuse a program that takes one number of rows alone."""
    for item in model.graph.input:
        size = item.type.tensor_type.shape.dim[0]
        if not size.dim_param:
            raise ValueError(f"input {item.name} has a fixed number of rows, {size.dim_value}")


def _write_torch(
    program: nn.Module, records: Sequence[InputRecord], examples: tuple[Tensor, ...], path: Path, note: str
) -> tuple[InputRecord, ...]:
    try:
        with _quiet():
            exported = torch.export.export(program, examples, dynamic_shapes=(_dynamic(examples),))
            torch.export.save(exported, path)
    except OSError:
        raise
    except Exception as error:
        raise RecgradError(
            f"export: the model can be written neither as ONNX ({note}) nor by torch.export "
            f"({_reason(error)}); its predict must be a function of tensors, with shapes that follow from "
            "those of its inputs"
        ) from error
    return tuple(records)


def _reason(error: Exception) -> str:
    """The innermost cause, in a line."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter tells its developers."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
