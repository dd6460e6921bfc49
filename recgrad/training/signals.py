"""SIGTERM and SIGINT: the first asks the run to stop after its step, the second stops at once.

An evaluation is left where it is: it changes nothing, and the continued run makes it anew.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

HANDLED = (signal.SIGTERM, signal.SIGINT)


class InterruptedBySignal(Exception):  # noqa: N818 - no error: the run was asked
    """A signal has come in the midst of something that can be left and made anew."""


class StopRequest:
    """While entered, remembers the first signal instead of dying of it.

    Outside the main thread Python cannot take signals; there the object stays silent.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number: 143 for SIGTERM, 130 for SIGINT; 0 without a signal."""
        return 0 if self.signal is None else 128 + self.signal

    def check(self) -> None:
        """Raises InterruptedBySignal once a signal has come."""
        if self.signal is not None:
            raise InterruptedBySignal

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._remember) for number in HANDLED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        # A second signal finds the previous handlers, which end the process.
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
