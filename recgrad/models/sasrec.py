"""SASRec: softmax attention over a user's history, for the item that comes next; or BERT4Rec's training.

Kang & McAuley 2018, https://arxiv.org/abs/1808.09781; Sun et al. 2019, https://arxiv.org/abs/1904.06690;
with `gbce_loss`, gSASRec: Petrov & Macdonald 2023, https://arxiv.org/abs/2308.07192

```
history ─▶ (linear) ·√dim + position ─▶ attention, two layers ─▶ … ─▶ norm ─▶ h ─▶ h·v of items
```
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.data.batch import NextItems
from recgrad.limits import Count, Fraction, Positive, Size
from recgrad.models.base import MODELS
from recgrad.models.group_needs import SequenceInput
from recgrad.models.inputs import Inputs
from recgrad.models.multi_tower import TowerSettings
from recgrad.models.next_item import NextItemModel, events_from_end
from recgrad.nn.jagged import Segments
from recgrad.nn.jagged_rows import join_rows
from recgrad.nn.sasrec import AttentionBlock

_STD = 0.02


@MODELS.register("sasrec")
class SASRec(NextItemModel):
    """Causal softmax attention over the history; every position learns what comes next."""

    needs_sampler: ClassVar[str | None] = "positions"

    def build(
        self,
        *,
        input: SequenceInput,
        item_tower: TowerSettings,
        dim: Size = 0,
        num_layers: Count = 2,
        num_heads: Count = 2,
        feed_forward_dim: Size = 0,
        norm: Literal["SASREC", "PRE", "POST"] = "SASREC",
        activation: Literal["RELU", "GELU"] = "RELU",
        max_seq_len: Count = 50,
        dropout_ratio: Fraction = 0.2,
        attention_dropout_ratio: Fraction | None = None,
        input_dropout_ratio: Fraction | None = None,
        scale_input: bool = True,
        training: Literal["NEXT_ITEM", "MASKED_ITEM"] = "NEXT_ITEM",
        mask_ratio: Fraction = 0.2,
        similarity: str = "INNER_PRODUCT",
        temperature: Positive = 1.0,
        learned_temperature: bool = False,
    ) -> None:
        """Make the layers.

        Args:
            input: the sequence group of the history, oldest first.
            item_tower: `input` (the group of items) and `mlp`.
            dim: width of positions; 0 for that of the group.
            num_layers: blocks.
            num_heads: heads of attention.
            feed_forward_dim: width between the two layers of a position; 0 for dim.
            norm: where a block has its norms, see `AttentionBlock`.
            activation: RELU or GELU.
            max_seq_len: the newest events that are looked at.
            dropout_ratio: share of values dropped.
            attention_dropout_ratio: share of attention weights dropped; as dropout_ratio if None.
            input_dropout_ratio: share of inputs dropped; as dropout_ratio if None.
            scale_input: multiply inputs by √dim.
            training: NEXT_ITEM, or MASKED_ITEM: attention to both sides, items hidden and told.
            mask_ratio: share of items hidden.
            similarity: COSINE or INNER_PRODUCT.
            temperature: similarities are divided by it.
            learned_temperature: it is a parameter, and begins there.
        """
        others = {"attention": attention_dropout_ratio, "input": input_dropout_ratio}
        drops = {name: dropout_ratio if value is None else value for name, value in others.items()}
        self.build_towers(
            input=input,
            item_tower=item_tower,
            dim=dim,
            max_seq_len=max_seq_len,
            input_dropout=drops["input"],
            scale_input=scale_input,
            similarity=similarity,
            temperature=temperature,
            learned_temperature=learned_temperature,
        )
        if self.dim % num_heads:
            raise ValueError(f"num_heads must divide the width of positions, {self.dim}; got {num_heads}")
        self.masked = training == "MASKED_ITEM"
        self.mask_ratio = mask_ratio
        # One place more for what is asked for, which then comes behind the history.
        places = max_seq_len + int(self.masked)
        self.places = nn.Parameter(torch.empty(places, self.dim).normal_(std=_STD))
        if self.masked:
            self.mask = nn.Parameter(torch.empty(1, self.dim).normal_(std=_STD))
        self.blocks = nn.ModuleList(
            AttentionBlock(
                self.dim,
                heads=num_heads,
                hidden_dim=feed_forward_dim or self.dim,
                norm=norm,
                activation=activation,
                dropout=dropout_ratio,
                attention_dropout=drops["attention"],
                causal=not self.masked,
            )
            for _ in range(num_layers)
        )
        self.output_norm = nn.Identity() if norm == "POST" else nn.LayerNorm(self.dim, eps=1e-8)

    def encode(self, x: Tensor, segments: Segments, inputs: Inputs, kept: Tensor | None) -> Tensor:
        """h of each position; places count from the newest."""
        place = segments.lengths.index_select(0, segments.inside()) - 1 - segments.places()
        x = self.input_dropout(x + F.embedding(place.clamp(0, self.places.shape[0] - 1), self.places))
        for block in self.blocks:
            x = block(x, segments)
        out: Tensor = self.output_norm(x)
        return out

    def positions(self, inputs: Inputs, known: NextItems | None) -> tuple[Tensor, Tensor | None, Segments]:
        """As of any model; with masks, those of hidden items and of what comes last."""
        if not self.masked:
            return super().positions(inputs, known)
        x, segments, kept = self._cut(inputs)
        rows = segments.lengths.shape[0]
        hidden = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
        if known is not None:
            there = (known.lengths > 0).index_select(0, segments.rows)
            hidden = there & (torch.rand(x.shape[0], device=x.device) < self.mask_ratio)
            x = torch.where(hidden.unsqueeze(1), self.mask, x)
        one = Segments.from_lengths(torch.ones_like(segments.lengths), rows)
        joined, wider = join_rows([(x, segments), (self.mask.expand(rows, -1), one)])
        h = self.encode(joined, wider, inputs, kept)
        if known is None:
            return h, None, wider
        asked = torch.ones(rows, 1, dtype=torch.bool, device=x.device)
        told = join_rows([(hidden.unsqueeze(1), segments), (asked, one)])[0].squeeze(1).nonzero().squeeze(1)
        own = known.items.index_select(0, events_from_end(wider, known).index_select(0, told))
        of_rows = wider.rows.index_select(0, told)
        counts = torch.zeros_like(segments.lengths).index_add(0, of_rows, torch.ones_like(told))
        return h.index_select(0, told), own, Segments.from_lengths(counts, told.shape[0])
