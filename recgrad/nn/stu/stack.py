"""A stack of STU layers with its input and output: the `hstu` of the schema's models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from recgrad.limits import Count, Fraction, Size, keep_limits
from recgrad.nn.stu.inputs import HSTUInput
from recgrad.nn.stu.layer import STULayer, stu_mask
from recgrad.nn.stu.positional import PositionalEncoder
from recgrad.nn.stu.postprocess import build_postprocessor
from recgrad.nn.stu.preprocess import build_preprocessor
from recgrad.nn.stu.tokens import Tokens

# Where GPUs save memory, and how they schedule: nothing that changes a result.
_NO_EFFECT = ("recompute_normed_x", "recompute_uvqk", "recompute_y", "sort_by_length")


class HSTU(nn.Module):
    """Preprocessor, positional encoder, layers, postprocessor.

    Args:
        stu: message of the layers.
        positional_encoder: message of the positional encoder.
        input_preprocessor: message of the preprocessor.
        output_postprocessor: message of the postprocessor.
        max_seq_len: the divisor N of attention, where `stu.scaling_seqlen` is not set.
        contextual: number and width of contextual features.
        history_dim: width of events.
        candidate_dim: width of candidates; 0 without any.
        input_dropout_ratio: share of values dropped before the first layer.
        attn_num_layers: number of layers.
        attn_truncation_split_layer: the layer before which histories are cut; 0 for none.
        attn_truncation_tail_len: tokens of the history that are kept then.
        name: of the channel, which its feature groups begin with.
    """

    def __init__(
        self,
        *,
        stu: Mapping[str, Any],
        positional_encoder: Mapping[str, Any],
        input_preprocessor: Mapping[str, Any],
        output_postprocessor: Mapping[str, Any],
        max_seq_len: Count,
        contextual: tuple[int, int] = (0, 0),
        history_dim: int,
        candidate_dim: int = 0,
        input_dropout_ratio: Fraction = 0.2,
        attn_num_layers: Count = 3,
        attn_truncation_split_layer: Size = 0,
        attn_truncation_tail_len: Size = 0,
        name: str = "",
    ) -> None:
        super().__init__()
        split, tail = attn_truncation_split_layer, attn_truncation_tail_len
        if (split > 0) != (tail > 0) or (split and split >= attn_num_layers):
            raise ValueError(
                "attn_truncation_split_layer and attn_truncation_tail_len must both be 0, or both above 0 "
                f"with the layer below attn_num_layers {attn_num_layers}; got {split} and {tail}"
            )
        settings = {key: value for key, value in stu.items() if key not in _NO_EFFECT}
        self.dim: int = settings["embedding_dim"]
        self.split, self.tail = split, tail
        self.preprocessor = build_preprocessor(
            input_preprocessor, self.dim, contextual, history_dim, candidate_dim
        )
        self.positional = keep_limits(PositionalEncoder)(self.dim, **positional_encoder)
        self.dropout = nn.Dropout(input_dropout_ratio)
        count = settings.pop("contextual_seq_len", -1)
        self.contextual = self.preprocessor.contextual if count < 0 else count
        if self.contextual > self.preprocessor.contextual:
            raise ValueError(
                f"stu.contextual_seq_len must be at most the number of contextual tokens, "
                f"{self.preprocessor.contextual}, got {count}"
            )
        scaling = settings.pop("scaling_seqlen", -1)
        windows = {key: settings.pop(key, 0) for key in ("max_attn_len", "sla_k1", "sla_k2")}
        if scaling == 0:
            raise ValueError("stu.scaling_seqlen must be at least 1, or -1 for max_seq_len, got 0")
        self.layers = nn.ModuleList(
            keep_limits(STULayer)(
                divisor=float(scaling if scaling > 0 else max_seq_len),
                mask=stu_mask(contextual=self.contextual, **windows),
                **settings,
            )
            for _ in range(attn_num_layers)
        )
        self.postprocessor = build_postprocessor(output_postprocessor, self.dim)

    def forward(self, given: HSTUInput) -> Tokens:
        """The tokens after the last layer: candidates, one each; without candidates, all."""
        tokens: Tokens = self.preprocessor(given)
        tokens = tokens.with_values(self.dropout(self.positional(tokens, given.query_times)))
        for i, layer in enumerate(self.layers):
            if self.split and i == self.split:
                tokens = tokens.tail(self.tail)
            tokens = tokens.with_values(layer(tokens.values, tokens.segments, tokens.targets))
        if given.candidates is not None:
            tokens = tokens.candidates(given.candidates.segments, self.preprocessor.candidate_tokens)
        return replace(tokens, values=self.postprocessor(tokens))
