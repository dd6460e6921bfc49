"""Texts as ids of their tokens."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from recgrad.config.messages import to_kwargs
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.features.buckets import Report, whole_numbers
from recgrad.data.features.columns import Bags, Values, gather
from recgrad.data.features.config import SequenceSetting, Setting, default_of, default_text
from recgrad.data.features.frame import Frame, Input, Scope
from recgrad.data.features.keys import texts_of
from recgrad.data.features.outputs import Dense, IdOutput, Sparse, fill_empty
from recgrad.data.features.registry import FEATURES
from recgrad.data.hashing import Ints
from recgrad.data.text_normalizer import TextNormalizer
from recgrad.data.tokenizers import load_tokenizer


class TokenIds:
    """Ids of tokens, below the number of tokens of a file."""

    def __init__(self, size: int) -> None:
        self.num_rows = size

    def __call__(self, values: Values, report: Report) -> Ints:
        """The ids themselves."""
        ids = whole_numbers(values, report)
        outside = (ids < 0) | (ids >= self.num_rows)
        if outside.any():
            remedy = "encode the column with the same file"
            reason = "token {value} is not among the " + f"{self.num_rows} of vocab_file"
            report(outside, reason, ids[outside], remedy)
        return ids


@FEATURES.register("tokenize_feature")
@FEATURES.register("sequence_tokenize_feature")
class TokenizeFeature(Feature):
    """Ids of a text's tokens, all of them in their order; the table has a row for each token of the file.

    With tokens_as_sequence the tokens of a row are the positions of a sequence.
    """

    makes_ids: ClassVar[bool] = True

    @classmethod
    def build(cls, config: Any, setting: Setting) -> list[Feature]:
        """The feature; tokens that are a sequence make it one."""
        if config.tokens_as_sequence:
            if setting.sequence is not None:
                raise ValueError(
                    "tokens_as_sequence is for tokenize_feature: texts of a sequence have several tokens"
                )
            length = config.sequence_length
            setting = replace(setting, sequence=SequenceSetting(None, length, config.sequence_delim))
        return [cls(config, setting)]

    def expressions(self) -> list[Input]:
        """The one column, whose texts stay whole."""
        return [Input(self.config.expression)]

    def build_output(self) -> IdOutput:
        """Ids below the number of tokens."""
        config = self.config
        if not config.vocab_file:
            raise ValueError("vocab_file must name the file of the tokenizer")
        self.tokenizer = load_tokenizer(
            config.tokenizer_type, os.path.join(config.asset_dir, config.vocab_file)
        )
        self.normalizer: TextNormalizer | None = None
        if config.HasField("text_normalizer"):
            given = to_kwargs(config.text_normalizer)
            self.normalizer = TextNormalizer(
                given.get("norm_options", ()),
                max_length=given.get("max_length", 0),
                stop_char_file=given.get("stop_char_file", ""),
            )
        bucketizer = TokenIds(self.tokenizer.size)
        default = self._default()
        self.default_tokens = np.array([int(token) for token in default or ()], np.int64)
        return IdOutput(bucketizer, default, value_dim=int(config.tokens_as_sequence))

    def _default(self) -> list[str] | None:
        """The tokens of the default text; none of them for none."""
        if self.setting.mode == "FG_NONE":
            return default_of(self.config, self.setting)
        text = default_text(self.config, self.setting)
        return [str(token) for token in self._tokens([text])[0]] if text else None

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        normalizer = self.normalizer
        return self.tokenizer(texts if normalizer is None else [normalizer(text) for text in texts])

    def transform(self, inputs: list[Any], scope: Scope) -> Bags:
        """The tokens of each bag; a text that occurs several times is cut once."""
        bags: Bags = inputs[0]
        texts = texts_of(bags.values, scope.report(bags, self.inputs[0].name)).to_arrow().dictionary_encode()
        found = self._tokens(texts.dictionary.to_pylist())
        lengths = np.array([len(tokens) for tokens in found], np.int64)
        flat = np.fromiter((token for tokens in found for token in tokens), np.int64, int(lengths.sum()))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        index, offsets = gather(starts, texts.indices.to_numpy().astype(np.int64))
        return Bags(flat[index], offsets[bags.starts])

    def encode(self, frame: Frame, faults: Faults) -> Sparse | Dense:
        """The ids of a batch."""
        if not self.config.tokens_as_sequence:
            return super().encode(frame, faults)
        assert self.setting.sequence is not None
        scope = Scope(faults, self.name, None)
        source = self.inputs[0]
        if not self.setting.generates:
            source = replace(source, separator=self.setting.multival_sep)
        read = self._read(frame, source)
        bags = self.transform([read], scope) if self.setting.generates else read
        starts = bags.starts
        if longest := self.setting.sequence.length:
            keep = np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts)) < longest
            bags = Bags(bags.values, starts).keep(keep)
            starts = bags.starts
        assert isinstance(self.output, IdOutput)
        ids = self.output.bucketizer(bags.values, scope.report(Bags(bags.values, starts), source.name))
        ids, lengths, _ = fill_empty(ids, starts, self.default_tokens)
        return Sparse(ids, None, None, np.concatenate([[0], np.cumsum(lengths)]))
