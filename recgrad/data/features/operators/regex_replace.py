"""Replacement in texts by a regular expression."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.features.operators import OPERATORS, Operator


@OPERATORS.register("RegexReplace")
class RegexReplace(Operator):
    """A text with every match of a regular expression (RE2's) replaced.

    Args:
        regex_pattern: what is replaced; `regex_patten`, as TorchEasyRec spells it, means the same.
        regex_patten: the same.
        replacement: what stands there then; \\1 is the first group.
    """

    def __init__(self, *, regex_pattern: str = "", regex_patten: str = "", replacement: str = "") -> None:
        self.pattern = regex_pattern or regex_patten
        if not self.pattern:
            raise ValueError("operator_params: regex_pattern is empty")
        self.replacement = replacement
        try:
            self._replaced(pa.array(["a"]))
        except pa.ArrowInvalid as error:
            raise ValueError(f"operator_params: regex_pattern {self.pattern!r}: {error}") from error

    def compute(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """The texts; null stays null."""
        if len(columns) != 1:
            raise ValueError(f"expression must name one input for RegexReplace, got {len(columns)}")
        (texts,) = columns.values()
        return self._replaced(texts.cast(pa.large_string()))

    def _replaced(self, texts: pa.Array) -> pa.Array:
        return pc.replace_substring_regex(texts, pattern=self.pattern, replacement=self.replacement)
