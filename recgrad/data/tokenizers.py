"""Tokenizers: from texts to ids of tokens, by the file that a vocabulary lies in."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from recgrad.errors import RecgradError, nearest, system_reason, whole_path

_EXTRA = "pip install 'recgrad[text]'"


class Tokenizer(Protocol):
    """Cuts texts into tokens; no special tokens are added.

    Attributes:
        size: how many tokens there are.
    """

    size: int

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of the tokens of each text."""


class HuggingFace:
    """A `tokenizer.json` of Hugging Face's library: BPE, WordPiece or Unigram."""

    def __init__(self, path: str) -> None:
        try:
            from tokenizers import Tokenizer as Library
        except ImportError as error:
            raise RecgradError(f"tokenizer_type 'bpe' needs tokenizers; install it with: {_EXTRA}") from error
        try:
            self._tokenizer = Library.from_file(path)
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"vocab_file '{path}' is no tokenizer.json: {error}") from error
        self._tokenizer.no_padding()  # a text's tokens do not depend on the others of a batch
        self.size = int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of the tokens of each text."""
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]


class SentencePiece:
    """A `.model` of SentencePiece."""

    def __init__(self, path: str) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise RecgradError(
                f"tokenizer_type 'sentencepiece' needs sentencepiece; install it with: {_EXTRA}"
            ) from error
        try:
            self._processor = SentencePieceProcessor(model_file=path)
        except Exception as error:
            raise ValueError(f"vocab_file '{path}' is no model of SentencePiece: {error}") from error
        self.size = int(self._processor.get_piece_size())

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of the tokens of each text."""
        found: list[list[int]] = self._processor.encode(list(texts), out_type=int)
        return found


TOKENIZERS: dict[str, Callable[[str], Tokenizer]] = {"bpe": HuggingFace, "sentencepiece": SentencePiece}
"""By tokenizer_type."""


def load_tokenizer(kind: str, path: str) -> Tokenizer:
    """The tokenizer of a file."""
    if kind not in TOKENIZERS:
        known = ", ".join(TOKENIZERS)
        raise ValueError(f"tokenizer_type must be one of {known}, got {kind!r}{nearest(kind, TOKENIZERS)}")
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ValueError(f"vocab_file '{path}'{whole_path(path)}: {system_reason(error)}") from error
    return TOKENIZERS[kind](os.fspath(path))
