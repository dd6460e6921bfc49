"""Operators of `custom_feature`: functions of whole columns, of the library or of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from recgrad.errors import RecgradError
from recgrad.registry import Registry

LIBRARY = "recgrad"
"""What operator_lib_file says of operators that are built in, or that installed packages register."""


class Operator:
    """Computes a feature from columns. One's own takes operator_params as keywords, and writes `compute`."""

    def compute(self, columns: Mapping[str, pa.Array]) -> pa.Array | npt.NDArray[Any]:
        """One value a row, or a list of value_dim numbers; null takes the default value.

        Args:
            columns: Arrow arrays of equal length by the names of the inputs, in the config's order; of a
                sequence feature one value a position, repeated for inputs that are no sequences.
        """
        raise NotImplementedError


OPERATORS: Registry[type[Operator]] = Registry("operator", "recgrad.data.features.operators")


def is_code(library: str) -> bool:
    """Whether an operator_lib_file names a module of Python: its import path."""
    return library != LIBRARY and not library.endswith((".so", ".dll", ".dylib"))


def build_operator(name: str, library: str, params: Mapping[str, Any]) -> Operator:
    """The operator that a custom_feature names.

    Args:
        name: operator_name: a class of the module, or a name of the registry.
        library: operator_lib_file: the module's import path, `recgrad`, or a C++ library whose operator is
            built in.
        params: operator_params.
    """
    if is_code(library):
        if library.endswith(".py") or "/" in library:
            raise ValueError(
                f"operator_lib_file must be an import path such as 'mypackage.operators', got {library!r}"
            )
        try:
            cls = OPERATORS.resolve(f"{library}.{name}")
        except RecgradError as error:
            raise ValueError(f"operator_lib_file: {error}") from error
        if not issubclass(cls, Operator):
            raise ValueError(
                f"operator_name: {library}.{name} is not a subclass of "
                "recgrad.data.features.operators.Operator; subclass it and write compute(columns)"
            )
    elif name in OPERATORS:
        cls = OPERATORS[name]
    else:
        what = "C++ operators are not loaded" if library != LIBRARY else f"there is no operator '{name}'"
        raise ValueError(
            f"operator_lib_file {library!r}: {what} (built in: {', '.join(OPERATORS)}); write a Python class "
            "and give its module's import path"
        )
    try:
        return cls(**params)
    except TypeError as error:
        raise ValueError(f"operator_params: {error}") from error
