"""What a batch carries beside features: labels, sample weights, group and session keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from recgrad.data.faults import Faults
from recgrad.data.hashing import hash_array
from recgrad.errors import DataError


@dataclass(frozen=True)
class Label:
    """A label column and the values it may have.

    Attributes:
        name: the column.
        classes: values must be whole numbers from 0 to classes − 1; 0 allows any number.
        positive: texts or numbers that count as 1, all others as 0; empty to take numbers as they are.
        named: texts or numbers that are the classes 0, 1, 2 …; empty to take numbers as they are.
        listed: a row has a list, with a value for each of its candidates.
    """

    name: str
    classes: int = 0
    positive: tuple[str, ...] = ()
    listed: bool = False
    named: tuple[str, ...] = ()


@dataclass(frozen=True)
class Targets:
    """The columns of labels, sample weights and keys."""

    labels: tuple[Label, ...] = ()
    weights: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, each once."""
        return tuple(dict.fromkeys([*(label.name for label in self.labels), *self.weights, *self.keys]))


@dataclass(frozen=True)
class EncodedTargets:
    """The fields of a batch that targets fill; lists of labels lie one after another."""

    labels: Mapping[str, Tensor] = field(default_factory=dict)
    label_lengths: Mapping[str, Tensor] = field(default_factory=dict)
    sample_weights: Mapping[str, Tensor] = field(default_factory=dict)
    keys: Mapping[str, Tensor] = field(default_factory=dict)

    def cut(self, taken: slice) -> dict[str, dict[str, Tensor]]:
        """The fields of a batch of some of the rows."""
        of_rows = {
            item.name: {name: column[taken] for name, column in getattr(self, item.name).items()}
            for item in fields(self)
        }
        for name, lengths in self.label_lengths.items():
            begin, count = int(lengths[: taken.start].sum()), int(lengths[taken].sum())
            of_rows["labels"][name] = self.labels[name][begin : begin + count]
        return of_rows


def check_types(targets: Targets, schema: pa.Schema, file: str) -> None:
    """Raise a DataError for a target column of a type that it cannot have."""
    for label in targets.labels:
        kind = schema.field(label.name).type
        if label.listed:
            if not _is_list(kind):
                raise DataError(
                    f"data: label '{label.name}' is {kind} in {file}, and the model asks for a value for "
                    "each candidate of a row; write a list"
                )
            kind = kind.value_type
        said = label.positive or label.named
        if said and not _is_text(kind):
            _check_said(label, kind, file)
        elif not said and not _is_number(kind):
            raise DataError(
                f"data: label '{label.name}' is {kind} in {file}, and a label is a number; write numbers, "
                "or say in data_config.positive_labels which texts count as 1, in label_classes which are "
                "classes"
            )
    for name in targets.weights:
        check_number("sample weight", name, schema, file)
    for name in targets.keys:
        kind = schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or _is_text(kind)):
            raise DataError(f"data: key '{name}' is {kind} in {file}; it must be an integer or a string")


def _check_said(label: Label, kind: pa.DataType, file: str) -> None:
    """Raise a DataError unless the column holds numbers, and so do the values that the config says."""
    field, remedy = "positive_labels", "that count as 1"
    if label.named:
        field, remedy = "label_classes", "of the classes"
    if not _is_number(kind):
        raise DataError(f"data: label '{label.name}' is {kind} in {file}; {field} is for texts and numbers")
    for text in label.positive or label.named:
        if _as_number(text) is None:
            raise DataError(
                f"data: label '{label.name}' is {kind} in {file}, but {text!r} of its {field} is no "
                f"number; write the numbers {remedy}"
            )


def check_number(role: str, name: str, schema: pa.Schema, file: str) -> None:
    """Raise a DataError for a column that must hold numbers and does not."""
    kind = schema.field(name).type
    if not _is_number(kind):
        raise DataError(f"data: {role} '{name}' is {kind} in {file}; it must be a number")


def encode_targets(targets: Targets, columns: Mapping[str, pa.Array], faults: Faults) -> EncodedTargets:
    """Tensors of all targets; bad rows are noted in `faults`."""
    lists = {label.name: columns[label.name] for label in targets.labels if label.listed}
    return EncodedTargets(
        {
            label.name: (_encode_list if label.listed else _encode_label)(label, columns[label.name], faults)
            for label in targets.labels
        },
        {name: torch.from_numpy(_lengths(array)) for name, array in lists.items()},
        {name: _encode_weight(name, columns[name], faults) for name in targets.weights},
        {name: _encode_key(name, columns[name], faults) for name in targets.keys},
    )


def _encode_list(label: Label, array: pa.Array, faults: Faults) -> Tensor:
    """The labels of all candidates, those of the first row first."""
    if array.null_count:
        rows = np.flatnonzero(np.asarray(array.is_null()))
        faults.add(
            rows,
            column=label.name,
            feature=f"label {label.name}",
            reason="the label is null",
            values=[None] * len(rows),
            remedy="give every row a list with a label for each candidate, or leave such rows out",
        )
    owners = np.repeat(np.arange(len(array)), _lengths(array))
    own = Faults()
    encoded = _encode_label(label, array.flatten(), own)
    faults.add_all(own, owners)
    return encoded


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """The values of each list; 0 where it is null."""
    lengths = pc.list_value_length(array).fill_null(0).cast(pa.int64())
    found: npt.NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False)
    return found.copy()


def _encode_label(label: Label, array: pa.Array, faults: Faults) -> Tensor:
    if label.named:
        return _encode_named(label, array, faults)
    array = _no_nulls(array, label.name, "label", faults)
    if label.positive and _is_text(array.type):
        texts = pc.utf8_trim_whitespace(array.cast(pa.string()))
        wanted = pa.array([text.strip() for text in label.positive], pa.string())
        return torch.from_numpy(pc.is_in(texts, value_set=wanted).cast(pa.int64()).to_numpy().copy())
    values = _numbers(array)
    if label.positive:
        if values.dtype.kind == "f":
            _note_not_finite(values, label.name, f"label {label.name}", faults)
        numbers = [number for text in label.positive if (number := _as_number(text)) is not None]
        return torch.from_numpy(np.isin(values, numbers).astype(np.int64))
    if label.classes and len(values):
        bad = ~((values >= 0) & (values < label.classes) & (values == np.floor(values)))
        rule = "neither 0 nor 1" if label.classes == 2 else f"not a class from 0 to {label.classes - 1}"
        remedy = "correct the label, or give the task a loss that takes it"
        if label.classes == 2 and bool((values == np.floor(values)).all()):
            setting = f'label_field: "{label.name}" values: "{_largest(values)}"'
            remedy = (
                "correct the label, or say which values count as 1: "
                f"data_config {{ positive_labels {{ {setting} }} }}"
            )
        faults.add(
            np.flatnonzero(bad),
            column=label.name,
            feature=f"label {label.name}",
            reason=f"label {{value}} is {rule}",
            values=values[bad],
            remedy=remedy,
        )
    elif values.dtype.kind == "f":
        _note_not_finite(values, label.name, f"label {label.name}", faults)
    return torch.from_numpy(values.astype(np.int64 if values.dtype.kind == "i" else np.float32))


def _encode_named(label: Label, array: pa.Array, faults: Faults) -> Tensor:
    """The number of each value's class: its place among `label.named`."""
    null = np.asarray(array.is_null())
    array = _no_nulls(array, label.name, "label", faults)
    if _is_text(array.type):
        values = pc.utf8_trim_whitespace(array.cast(pa.string()))
        classes = pa.array([text.strip() for text in label.named], pa.string())
    else:
        numbers = [number for text in label.named if (number := _as_number(text)) is not None]
        classes = pa.array(numbers, pa.float64() if any(n != int(n) for n in numbers) else pa.int64())
        values = pa.array(_numbers(array))
        wider = pa.float64() if pa.float64() in (classes.type, values.type) else pa.int64()
        values, classes = values.cast(wider, safe=False), classes.cast(wider, safe=False)
    places = pc.index_in(values, value_set=classes)
    bad = np.flatnonzero(np.asarray(places.is_null()) & ~null)
    faults.add(
        bad,
        column=label.name,
        feature=f"label {label.name}",
        reason=f"label {{value}} is none of its {len(label.named)} classes",
        values=values.take(pa.array(bad)).to_pylist(),
        remedy="correct the label, or add the class to data_config.label_classes and one to num_class",
    )
    return torch.from_numpy(places.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False).copy())


def _largest(values: npt.NDArray[Any]) -> str:
    """The largest finite value as text, which of two values is the likely positive one."""
    finite = values[np.isfinite(values)]
    return f"{finite.max():.17g}" if len(finite) else "1"


def _as_number(text: str) -> int | float | None:
    """The number that a text stands for, or None; true is 1."""
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": 1, "false": 0}.get(text.strip().lower())


def _encode_weight(name: str, array: pa.Array, faults: Faults) -> Tensor:
    values = _numbers(_no_nulls(array, name, "sample weight", faults)).astype(np.float32)
    _note_not_finite(values, name, f"sample weight {name}", faults)
    bad = values < 0
    faults.add(
        np.flatnonzero(bad),
        column=name,
        feature=f"sample weight {name}",
        reason="weight {value} is negative",
        values=values[bad],
        remedy="weights are 0 or more",
    )
    return torch.from_numpy(values)


def _encode_key(name: str, array: pa.Array, faults: Faults) -> Tensor:
    array = _no_nulls(array, name, "key", faults)
    if pa.types.is_integer(array.type) and array.type != pa.uint64():
        return torch.from_numpy(array.to_numpy(zero_copy_only=False).astype(np.int64))
    return torch.from_numpy(hash_array(array).view(np.int64).copy())


def _no_nulls(array: pa.Array, name: str, role: str, faults: Faults) -> pa.Array:
    """The array with nulls noted as faults and filled, since the rest of the column is checked too."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not array.null_count:
        return array
    rows = np.flatnonzero(np.asarray(array.is_null()))
    faults.add(
        rows,
        column=name,
        feature=f"{role} {name}",
        reason=f"the {role} is null",
        values=[None] * len(rows),
        remedy=f"give every row a {role}, or leave such rows out",
    )
    filler = "" if _is_text(array.type) else False if pa.types.is_boolean(array.type) else 0
    return array.fill_null(pa.scalar(filler, array.type))


def _numbers(array: pa.Array) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
    """int64 or float64 values; integers beyond int64 are rounded to floats."""
    whole = not pa.types.is_floating(array.type)
    if array.type == pa.uint64() and len(array):
        whole = pc.max(array).as_py() < 2**63
    return array.cast(pa.int64() if whole else pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _note_not_finite(values: npt.NDArray[Any], column: str, feature: str, faults: Faults) -> None:
    bad = ~np.isfinite(values)
    faults.add(
        np.flatnonzero(bad),
        column=column,
        feature=feature,
        reason="{value} is not a finite number",
        values=values[bad],
        remedy="write a number, or leave such rows out",
    )


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
