"""Scratch memory that is kept from step to step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Workspace:
    """Arrays by name that grow and never shrink: allocating them anew would cost page faults each step."""

    def __init__(self) -> None:
        self._arrays: dict[str, tuple[Array, int]] = {}

    def array(self, name: str, count: int, dtype: Any = np.int64) -> Array:
        """A flat array of at least `count` elements, with whatever it held before."""
        return self._get(name, count, dtype)[0]

    def address(self, name: str, count: int, dtype: Any = np.int64) -> int:
        """Where `array` of the same arguments begins."""
        return self._get(name, count, dtype)[1]

    def _get(self, name: str, count: int, dtype: Any) -> tuple[Array, int]:
        known = self._arrays.get(name)
        if known is None or len(known[0]) < count:
            array: Array = np.empty(count + (count >> 2) + 64, dtype)
            known = self._arrays[name] = (array, array.__array_interface__["data"][0])
        return known
