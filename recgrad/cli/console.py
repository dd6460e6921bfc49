"""The console that commands print their tables to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 200


def table_console() -> Console:
    """Standard output as wide as its terminal; a pipe has no width, and names must not be cut for it."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)
