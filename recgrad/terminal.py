"""What Recgrad says on a terminal, made harmless: the one place that prints lines.

Names of features, columns, files and parameters come from others. As they are, they could move
the cursor, recolour or rewrite what stands on the screen, or turn the reading direction around.
"""

from __future__ import annotations

import re
import sys

# Control characters but for tab and line end; characters without a width, of direction and of format; lone
# surrogates, which stand for bytes of a file name that are not UTF-8 and which no stream can write.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """The text with everything that a terminal would obey instead of show written as \\x1b, \\u202e …"""
    return _UNSAFE.sub(lambda found: ascii(found.group())[1:-1], text)


def say(text: object = "", *, error: bool = False) -> None:
    """Print a line or several on standard output, or on standard error, whatever names are in it."""
    stream = sys.stderr if error else sys.stdout
    line = printable(str(text))
    encoding = getattr(stream, "encoding", None)
    if encoding:
        line = line.encode(encoding, "backslashreplace").decode(encoding)
    print(line, file=stream, flush=True)
