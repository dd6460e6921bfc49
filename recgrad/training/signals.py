"""SIGTERM and SIGINT: the first asks the run to stop after its step, the second stops at once.

An evaluation is left where it is: it changes nothing, and the continued run makes it again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

HANDLED = (signal.SIGTERM, signal.SIGINT)


class InterruptedBySignal(Exception):  # noqa: N818 - no error: the run was asked
    """A signal has come in the midst of something that can be left and made again.

    Attributes:
        exit_code: of a process that ends for it.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"interrupted by signal {exit_code - 128}")
        self.exit_code = exit_code


class StopRequest:
    """While entered, remembers the first signal instead of dying of it.

    It raises nothing out of the handler, where an exception is lost if Python runs a finalizer just
    then; who has entered it asks by `signal` or `check`. Outside the main thread Python cannot take
    signals; there the object stays silent.

    Several ranks get a signal at different moments, and some of them none. They go by the one they
    have agreed on: each hands in its `flags`, and all `agree` on the sum.

    Args:
        alone: there is no other rank to agree with.
    """

    def __init__(self, *, alone: bool = True) -> None:
        self._raised: int | None = None
        self._agreed: int | None = None
        self._alone = alone
        self._previous: dict[int, Any] = {}

    @property
    def signal(self) -> int | None:
        """The signal that the run is to stop for."""
        return self._raised if self._alone else self._agreed

    def flags(self) -> list[float]:
        """For each of the handled signals, whether it has come to this rank."""
        return [float(self._raised == number) for number in HANDLED]

    def agree(self, sums: Sequence[float]) -> None:
        """Take the signal that any rank got, by the sums of all ranks' flags."""
        for number, count in zip(HANDLED, sums, strict=True):
            if count and self._agreed is None:
                self._agreed = number

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number: 143 for SIGTERM, 130 for SIGINT; 0 without a signal."""
        return 0 if self.signal is None else 128 + self.signal

    def check(self) -> None:
        """Raises InterruptedBySignal once a signal has come."""
        if self.signal is not None:
            raise InterruptedBySignal(self.exit_code)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._remember) for number in HANDLED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._raised = number
        # A second signal finds the previous handlers, which end the process.
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
