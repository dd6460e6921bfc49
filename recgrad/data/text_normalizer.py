"""Text normalisation before tokens are made."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

from recgrad.errors import RecgradError, system_reason, whole_path

DEFAULT = ("TEXT_LOWER2UPPER", "TEXT_SBC2DBC", "TEXT_CHT2CHS", "TEXT_FILTER")
"""Where no options are given."""
_CASES = ("TEXT_LOWER2UPPER", "TEXT_UPPER2LOWER")
_CHINESE = re.compile("\\s*([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f])\\s*")
_HALF_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}

Step = Callable[[str], str]


class _Characters(dict[int, int | None]):
    """A table for str.translate that is filled as characters are met."""

    def __init__(self, other: Callable[[str], int | None]) -> None:
        super().__init__()
        self._other = other

    def __missing__(self, code: int) -> int | None:
        self[code] = self._other(chr(code))
        return self[code]


class TextNormalizer:
    """Brings texts to one form, step by step, in this order.

    TEXT_SBC2DBC (full-width forms to half-width), TEXT_CHT2CHS (traditional Chinese to simplified, each
    character by itself), TEXT_LOWER2UPPER or TEXT_UPPER2LOWER, TEXT_FILTER (stop characters away: those of
    the file, else punctuation, symbols and control characters by their Unicode category), TEXT_REMOVE_SPACE,
    TEXT_SPLITCHRS (a space around each Chinese character).

    Args:
        options: names of steps; `DEFAULT` where there are none.
        max_length: a text of more characters is left as it is; 0 for no end.
        stop_char_file: a file of stop characters.
    """

    def __init__(self, options: Iterable[str] = (), *, max_length: int = 0, stop_char_file: str = "") -> None:
        chosen = tuple(options) or DEFAULT
        if set(chosen) >= set(_CASES):
            raise ValueError("norm_options has TEXT_LOWER2UPPER and TEXT_UPPER2LOWER; keep one")
        if stop_char_file and "TEXT_FILTER" not in chosen:
            raise ValueError("stop_char_file needs TEXT_FILTER in norm_options; add it, or remove the file")
        self.max_length = max_length
        makers: dict[str, Callable[[], Step]] = {
            "TEXT_SBC2DBC": lambda: lambda text: text.translate(_HALF_WIDTH),
            "TEXT_CHT2CHS": _simplified,
            "TEXT_LOWER2UPPER": lambda: str.upper,
            "TEXT_UPPER2LOWER": lambda: str.lower,
            "TEXT_FILTER": lambda: _filtered(stop_char_file),
            "TEXT_REMOVE_SPACE": lambda: lambda text: "".join(text.split()),
            "TEXT_SPLITCHRS": lambda: _split,
        }
        self._steps = [make() for name, make in makers.items() if name in chosen]

    def __call__(self, text: str) -> str:
        """The text in its one form."""
        if self.max_length and len(text) > self.max_length:
            return text
        for step in self._steps:
            text = step(text)
        return text


def _split(text: str) -> str:
    return re.sub(" +", " ", _CHINESE.sub(r" \1 ", text)).strip()


def _filtered(path: str) -> Step:
    if path:
        try:
            with open(path, encoding="utf-8") as file:
                stop = {character for line in file for character in line.rstrip("\r\n")}
        except OSError as error:
            raise ValueError(f"stop_char_file '{path}'{whole_path(path)}: {system_reason(error)}") from error
        table = _Characters(lambda character: None if character in stop else ord(character))
    else:
        table = _Characters(
            lambda character: None if unicodedata.category(character)[0] in "PSC" else ord(character)
        )
    return lambda text: text.translate(table)


def _simplified() -> Step:
    try:
        from opencc import OpenCC
    except ImportError as error:
        raise RecgradError(
            "text_normalizer: TEXT_CHT2CHS needs opencc; install it with: pip install 'recgrad[text]', or "
            "give norm_options without it"
        ) from error
    convert = OpenCC("t2s").convert

    def simple(character: str) -> int:
        found = convert(character)
        return ord(found) if len(found) == 1 else ord(character)

    table = _Characters(simple)
    return lambda text: text.translate(table)
