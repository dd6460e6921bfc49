"""What a checkpoint says, put into live objects: whatever does not fit is a CheckpointError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from recgrad.errors import CheckpointError, RecgradError


@contextmanager
def content_of(step: int, remedy: str) -> Iterator[None]:
    """Around code that only puts values of a checkpoint back.

    Checksums do not prove that the values have the types and shapes of a run: they may come from another
    config, or be forged. Whatever a value raises where it is used is then the checkpoint's fault, and its
    error; `remedy` says what to do.
    """
    try:
        yield
    except RecgradError:
        raise
    except Exception as error:
        what = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"the checkpoint of step {step} does not fit this config: {what}; {remedy}"
        ) from error
