"""Numbers computed from other columns by an expression."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from recgrad.config.messages import shortest_float
from recgrad.data.features.base import Feature
from recgrad.data.features.columns import Bags
from recgrad.data.features.config import floats_output, separator_of
from recgrad.data.features.expressions import Expression, LengthMismatchError, Value, compile_expression
from recgrad.data.features.frame import Input, Scope
from recgrad.data.features.functions import Vector
from recgrad.data.features.outputs import BagIndex, FloatOutput, IdOutput, numbers_of
from recgrad.data.features.registry import FEATURES
from recgrad.data.features.text import Mask
from recgrad.data.hashing import Ints


@FEATURES.register("expr_feature")
@FEATURES.register("sequence_expr_feature")
class ExprFeature(Feature):
    """An expression over variables; a row where one is missing takes the default value."""

    input_fields: ClassVar[tuple[str, ...]] = ("variables",)

    def expressions(self) -> list[Input]:
        """The variables."""
        self.names = [text.rpartition(":")[2] for text in self.config.variables]
        if not self.names:
            raise ValueError("an expr_feature must have variables")
        separator = separator_of(self.config)
        return [Input(text, separator=separator) for text in self.config.variables]

    def build_output(self) -> FloatOutput | IdOutput:
        """Floats, or buckets when boundaries are set."""
        if self.setting.generates:
            self.expression: Expression = compile_expression(self.config.expression)
            unknown = self.expression.variables - set(self.names)
            if unknown:
                raise ValueError(
                    f"expression {self.config.expression!r} names {', '.join(sorted(unknown))},"
                    " which is not among variables"
                )
        self.fill = shortest_float(self.config.fill_missing) if self.config.HasField("fill_missing") else None
        return floats_output(self.config, self.setting, value_dim=self.config.value_dim)

    def transform(self, inputs: list[Any], scope: Scope) -> Bags:
        """The expression of each bag; bags with a missing variable are empty."""
        read = [
            Bags(numbers_of(bags.values, scope.report(bags, source.name)).astype(np.float64), bags.offsets)
            for bags, source in zip(inputs, self.inputs, strict=True)
        ]
        if self.fill is not None:
            read = _padded(read, self.fill)
        count = len(read[0])
        whole = np.ones(count, np.bool_)
        for bags in read:
            if bags.offsets is not None:
                whole &= np.diff(bags.offsets) > 0
        while True:
            there = read if whole.all() else [bags.take(np.flatnonzero(whole)) for bags in read]
            values = {name: _value(bags) for name, bags in zip(self.names, there, strict=True)}
            try:
                result = self.expression.evaluate(values)
                if self.expression.partial:
                    result, whole = _without_undefined(result, there, whole)
                return _bags(result, whole)
            except LengthMismatchError as error:
                bad = np.flatnonzero(whole)[error.bags]
            scope.report(inputs[0], self.inputs[0].name)(
                BagIndex(bad),
                f"vectors of {self.config.expression!r} differ in length",
                np.full(len(bad), None),
                "make the vectors of a row equally long",
            )
            whole[bad] = False  # the rest may have other faults


def _padded(variables: list[Bags], value: float) -> list[Bags]:
    """Vectors as long as the longest of their bag, with `value` for what they lack.

    What is missing stays missing, and one number is repeated along a vector as ever.
    """
    lengths = [None if bags.offsets is None else np.diff(bags.offsets) for bags in variables]
    longest = np.max(np.broadcast_arrays(1, *(own for own in lengths if own is not None)), axis=0)
    return [
        bags if own is None else _pad(bags, own, np.where(own > 1, longest, own), value)
        for bags, own in zip(variables, lengths, strict=True)
    ]


def _pad(bags: Bags, lengths: Ints, wanted: Ints, value: float) -> Bags:
    if np.array_equal(lengths, wanted):
        return bags
    offsets = np.concatenate([[0], np.cumsum(wanted)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], wanted)
    padded = np.full(offsets[-1], value)
    padded[within < np.repeat(lengths, wanted)] = bags.values
    return Bags(padded, offsets)


def _without_undefined(result: Value, inputs: list[Bags], whole: Mask) -> tuple[Value, Mask]:
    """The result without the bags where it is nan though all inputs are numbers, and the bags left."""
    values = result.values if isinstance(result, Vector) else result
    bags = Bags(values, result.offsets if isinstance(result, Vector) else None)
    nan = np.zeros(len(bags), np.bool_)
    nan[bags.bag_of(np.isnan(values))] = True
    for given in inputs:
        numbers: Any = given.values
        nan[given.bag_of(~np.isfinite(numbers))] = False  # a fault, which the output reports
    if not nan.any():
        return result, whole
    left = whole.copy()
    left[np.flatnonzero(whole)[nan]] = False
    kept = bags.take(np.flatnonzero(~nan))
    rest: Any = kept.values
    return (rest if kept.offsets is None else Vector(rest, kept.offsets)), left


def _value(bags: Bags) -> Value:
    """A number for each bag where all have one, else vectors."""
    values: Any = bags.values
    if bags.offsets is None or (len(values) == len(bags) and (np.diff(bags.offsets) == 1).all()):
        return np.asarray(values, np.float64)
    return Vector(values, bags.offsets)


def _bags(result: Value, whole: Any) -> Bags:
    """The result with empty bags where `whole` is false."""
    count = int(whole.sum())
    if isinstance(result, Vector):
        lengths = np.zeros(len(whole), np.int64)
        lengths[whole] = np.diff(result.offsets)
        return Bags(result.values, np.concatenate([[0], np.cumsum(lengths)]))
    numbers = np.broadcast_to(result, count)
    return Bags(numbers, None if whole.all() else np.concatenate([[0], np.cumsum(whole)]))
