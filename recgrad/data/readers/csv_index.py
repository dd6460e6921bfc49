"""The index of a CSV file: where blocks of whole rows begin, found in one pass.

Counting rows needs the whole file once, at the speed of the disk; what it buys is that every
epoch's order, every rank's share and every position are known exactly, and that threads read
different blocks of one file. A gzip file gets random access too: at each block the state of
the decompressor is kept (about 40 kB for 8 MB of text).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.data.readers.files import SourceFile
from recgrad.errors import DataError, system_reason
from recgrad.kernels import cached_njit

BLOCK_BYTES = 4 << 20
GZIP_BLOCK_BYTES = 8 << 20
_INPUT_BYTES = 16 << 10  # small, since every kept decompressor state holds one such piece

_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


@dataclass(frozen=True)
class GzipState:
    """Where to go on in a gzip file: compressed offset and the decompressor as it was there."""

    offset: int
    decompressor: Any


@dataclass(frozen=True)
class TextBlock:
    """Whole rows of a CSV file.

    Attributes:
        num_rows: lines that are not empty.
        start: offset of the first byte in the text, `size` bytes follow.
        size: bytes of text.
        prefix: for gzip, the bytes of the block that were read before `state` was kept.
        skip: for gzip, bytes of text between `state` and the block.
        state: for gzip, where to go on.
    """

    num_rows: int
    start: int
    size: int
    prefix: bytes = b""
    skip: int = 0
    state: GzipState | None = None


@dataclass(frozen=True)
class CsvIndex:
    """The blocks of a file, its header line, and its hash.

    Attributes:
        header: the first line with its line end; empty when the file has no header.
        blocks: the blocks after the header.
        newlines_in_values: some quoted value holds a line end.
        digest: hash of the bytes of the file.
    """

    header: bytes
    blocks: tuple[TextBlock, ...]
    newlines_in_values: bool
    digest: str


@cached_njit(nogil=True)
def scan_rows(
    data: npt.NDArray[np.uint8], delimiter: int, state: npt.NDArray[np.int64], stop_after: int
) -> int:
    """Count the rows that end in `data`; returns the offset after the last line end, or −1.

    `state` is [quoting, at the start of a field, line has content, rows, line ends inside quotes]
    and goes on from call to call; quoting is 0 outside, 1 inside, 2 right after a closing quote,
    where another quote means an escaped one. A quote opens only at the start of a field. A line ends
    with \\n, \\r\\n or \\r, as for pyarrow; empty lines are no rows, so the \\n after a \\r needs no
    care. Scanning ends early once `stop_after` rows are counted.
    """
    quoting, field_start, content = state[0], state[1], state[2]
    rows, inner = 0, 0
    last = -1
    for i in range(len(data)):
        byte = data[i]
        if quoting == 1:
            if byte == _QUOTE:
                quoting = 2
            elif byte in (_NEWLINE, _RETURN):
                inner += 1
            continue
        if byte in (_NEWLINE, _RETURN):
            rows += content
            last = i + 1
            content, field_start, quoting = 0, 1, 0
            if rows == stop_after:
                break
        elif byte == _QUOTE:
            quoting = 1 if field_start or quoting == 2 else 0
            content, field_start = 1, 0
        elif byte == delimiter:
            content, field_start, quoting = 1, 1, 0
        else:
            content, field_start, quoting = 1, 0, 0
    state[0], state[1], state[2] = quoting, field_start, content
    state[3] += rows
    state[4] += inner
    return last


class PlainText:
    """The bytes of an uncompressed file."""

    def __init__(self, handle: Any, digest: Any) -> None:
        self._handle = handle
        self._digest = digest

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        data: bytes = self._handle.read(size)
        self._digest.update(data)
        return data

    def state(self) -> GzipState | None:
        """Plain files are found by offset alone."""
        return None


class GzipText:
    """The text of a gzip file of one or more members, from its start or from a kept state."""

    def __init__(self, handle: Any, digest: Any = None, state: GzipState | None = None) -> None:
        self._handle = handle
        self._digest = digest
        self._offset = state.offset if state else 0
        self._decompressor = state.decompressor.copy() if state else zlib.decompressobj(31)
        self._pending = b""
        if state:
            handle.seek(state.offset)

    def read(self, size: int) -> bytes:
        """The next `size` bytes of text, fewer only at the end.

        Raises:
            zlib.error: the data is damaged.
            EOFError: the file ends inside a member.
        """
        parts: list[bytes] = []
        while size > 0:
            if not self._pending:
                self._pending = self._handle.read(_INPUT_BYTES)
                self._offset += len(self._pending)
                if self._digest is not None:
                    self._digest.update(self._pending)
            if self._decompressor.eof:
                rest = (self._decompressor.unused_data or self._pending).lstrip(b"\0")
                self._pending = rest
                if not rest:
                    break
                self._decompressor = zlib.decompressobj(31)
            if not self._pending:
                if size and not self._decompressor.eof:
                    raise EOFError("the file ends before its last gzip member does")
                break
            text = self._decompressor.decompress(self._pending, size)
            self._pending = self._decompressor.unconsumed_tail
            parts.append(text)
            size -= len(text)
        return b"".join(parts)

    def state(self) -> GzipState:
        """Where the next read goes on."""
        return GzipState(self._offset - len(self._pending), self._decompressor.copy())


def build_index(source: SourceFile, delimiter: str, with_header: bool) -> CsvIndex:
    """Read a file once and find its blocks.

    Raises:
        DataError: the file is empty, damaged or cannot be read.
    """
    if source.size == 0:
        raise DataError(f"data: {source.name} is empty (0 bytes); remove it or write it again")
    digest = blake2b(digest_size=8)
    zipped = source.path.endswith(".gz")
    try:
        with source.open_binary() as handle:
            text = GzipText(handle, digest) if zipped else PlainText(handle, digest)
            header, blocks, inner = _find_blocks(text, ord(delimiter), with_header, zipped)
    except _WideTextError as error:
        raise DataError(f"data: {source.name} is {error}; save it as UTF-8") from None
    except (PermissionError, IsADirectoryError, FileNotFoundError) as error:
        raise DataError(f"data: cannot read {source.name}: {system_reason(error)}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"data: cannot read {source.name} ({error}); it may be truncated: write it again"
        ) from error
    return CsvIndex(header, blocks, inner > 0, digest.hexdigest())


def _find_blocks(
    text: PlainText | GzipText, delimiter: int, with_header: bool, zipped: bool
) -> tuple[bytes, tuple[TextBlock, ...], int]:
    size = GZIP_BLOCK_BYTES if zipped else BLOCK_BYTES
    state = np.array([0, 1, 0, 0, 0], np.int64)
    data = text.read(size)
    _check_width(data, with_header)
    offset = len(_BOM) if data.startswith(_BOM) else 0
    header = b""
    if with_header:
        end = scan_rows(np.frombuffer(data, np.uint8)[offset:], delimiter, state.copy(), 1)
        header = data[offset:] if end < 0 else data[offset : offset + end]
        offset += len(header)
    blocks: list[TextBlock] = []
    carry, skip, data = b"", offset, data[offset:]
    kept = GzipState(0, zlib.decompressobj(31)) if zipped else None
    while data:
        last = scan_rows(np.frombuffer(data, np.uint8), delimiter, state, -1)
        following = text.state()
        if last >= 0:
            length = len(carry) + last
            blocks.append(TextBlock(int(state[3]), offset, length, carry, skip, kept))
            state[3] = 0
            offset += length
            carry = data[last:]
        else:
            carry = carry + data
        kept, skip = following, 0
        data = text.read(size)
    if state[2]:  # a last line without a line end
        blocks.append(TextBlock(int(state[3]) + 1, offset, len(carry), carry, skip, kept))
    return header, tuple(block for block in blocks if block.num_rows), int(state[4])


class _WideTextError(Exception):
    """Text of more than one byte a character, which is read as if there were one."""


def _check_width(data: bytes, with_header: bool) -> None:
    """Raise unless the text may be UTF-8, by its byte order mark, or by the zeros in its header."""
    for mark, name in _WIDE_BOMS.items():
        if data.startswith(mark):
            raise _WideTextError(name)
    if with_header and b"\0" in data[:4]:  # the first characters of a header are letters or quotes
        raise _WideTextError("not UTF-8 but perhaps UTF-16 (it has bytes of 0 among its first letters)")


def read_block(handle: Any, block: TextBlock) -> bytes:
    """The text of a block, from a binary handle on its file."""
    if block.state is None:
        handle.seek(block.start)
        data: bytes = handle.read(block.size)
        return data
    text = GzipText(handle, None, block.state)
    text.read(block.skip)
    return block.prefix + text.read(block.size - len(block.prefix))
