"""HSTU as its research model has it: pointwise attention with biases of positions and times.

Zhai et al. 2024, https://arxiv.org/abs/2402.17152

```
history ─▶ (linear) ·√dim + position ─▶ HSTU layers ─▶ h ─▶ cos(h, v of items) / temperature
times of events, time of the request ─────▲
```
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.errors import DataError
from recgrad.limits import Count, Fraction, Positive, Size
from recgrad.models.base import MODELS
from recgrad.models.group_needs import DeepInput, SequenceInput
from recgrad.models.inputs import Inputs
from recgrad.models.multi_tower import TowerSettings
from recgrad.models.next_item import NextItemModel
from recgrad.nn.hstu import HSTULayer
from recgrad.nn.jagged import Segments
from recgrad.nn.jagged_rows import take_positions


@MODELS.register("hstu")
class HSTU(NextItemModel):
    """Pointwise attention over the history; every position learns what comes next, at the time it does."""

    needs_sampler: ClassVar[str | None] = "positions"

    def build(
        self,
        *,
        input: SequenceInput,
        item_tower: TowerSettings,
        dim: Size = 0,
        num_layers: Count = 2,
        num_heads: Count = 1,
        attention_dim: Size = 0,
        hidden_dim: Size = 0,
        max_seq_len: Count = 200,
        dropout_ratio: Fraction = 0.2,
        input_dropout_ratio: Fraction | None = None,
        scale_input: bool = True,
        time_input: SequenceInput = "",
        request_time_input: DeepInput = "",
        similarity: str = "COSINE",
        temperature: Positive = 0.05,
        learned_temperature: bool = False,
    ) -> None:
        """Make the layers.

        Args:
            input: the sequence group of the history, oldest first.
            item_tower: `input` (the group of items) and `mlp`.
            dim: width of positions; 0 for that of the group.
            num_layers: layers.
            num_heads: heads of attention.
            attention_dim: width of a head's queries and keys; 0 for dim / num_heads.
            hidden_dim: width of a head's values; 0 for dim / num_heads.
            max_seq_len: the newest events that are looked at.
            dropout_ratio: share of values dropped.
            input_dropout_ratio: share of inputs dropped; as dropout_ratio if None.
            scale_input: multiply inputs by √dim.
            time_input: the sequence group of the times of events; times do not count without it.
            request_time_input: the group of the time that is asked at.
            similarity: COSINE or INNER_PRODUCT.
            temperature: similarities are divided by it.
            learned_temperature: it is a parameter, and begins there.
        """
        self.build_towers(
            input=input,
            item_tower=item_tower,
            dim=dim,
            max_seq_len=max_seq_len,
            input_dropout=dropout_ratio if input_dropout_ratio is None else input_dropout_ratio,
            scale_input=scale_input,
            similarity=similarity,
            temperature=temperature,
            learned_temperature=learned_temperature,
        )
        if bool(time_input) != bool(request_time_input):
            raise ValueError("time_input and request_time_input go together; set both or none")
        if self.dim % num_heads and not (attention_dim and hidden_dim):
            raise ValueError(f"num_heads must divide the width of positions, {self.dim}; got {num_heads}")
        self.time_group, self.request_group = time_input, request_time_input
        for group in (time_input, request_time_input):
            if group:
                self.groups.take_times(group)
        std = (1 / self.dim) ** 0.5
        self.places = nn.Parameter(nn.init.trunc_normal_(torch.empty(max_seq_len, self.dim), std=std))
        self.layers = nn.ModuleList(
            HSTULayer(
                self.dim,
                heads=num_heads,
                attention_dim=attention_dim or self.dim // num_heads,
                hidden_dim=hidden_dim or self.dim // num_heads,
                max_length=max_seq_len,
                dropout=dropout_ratio,
                time_bias=bool(time_input),
            )
            for _ in range(num_layers)
        )

    @property
    def equal_lengths(self) -> list[tuple[str, ...]]:
        """Events have times."""
        return [(self.user_group, self.time_group)] if self.time_group else []

    @property
    def user_groups(self) -> tuple[str, ...]:
        """The history, and times."""
        times = (self.time_group, self.request_group) if self.time_group else ()
        return (self.user_group, *times)

    def encode(self, x: Tensor, segments: Segments, inputs: Inputs, kept: Tensor | None) -> Tensor:
        """h of each position; places count from the oldest that is left."""
        place = segments.places().clamp(0, self.max_seq_len - 1)
        x = self.input_dropout(x + F.embedding(place, self.places))
        times, asked = self._times(inputs, segments, kept)
        for layer in self.layers:
            x = layer(x, segments, times, asked)
        return x

    def _times(
        self, inputs: Inputs, segments: Segments, kept: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """When each event happened, and when the one after it did: the last is followed by the request."""
        if not self.time_group:
            return None, None
        times, requests = inputs.times[self.time_group], inputs.times[self.request_group]
        if (
            not torch.compiler.is_compiling()
            and times.shape[0] != inputs.sequences[self.user_group].sequence.shape[0]
        ):
            raise DataError(
                f"group {self.time_group}: times and events of '{self.user_group}' differ in number; give "
                "every event one time"
            )
        if kept is not None:
            times = take_positions(times, kept)
        rows = segments.inside()
        last = segments.places() == segments.lengths.index_select(0, rows) - 1
        return times, torch.where(last, requests.index_select(0, rows), times.roll(-1))
