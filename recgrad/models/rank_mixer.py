"""RankMixer: tokens that exchange their parts, each with an MLP of its own.

Zhu et al. 2025, https://arxiv.org/abs/2507.15551

The group's columns, in their order, are cut into T equal pieces, and each is mapped to a token of
width D. A layer is

    s_t = norm(x_t + [x_1[t], …, x_T[t]]),   x_t ← norm(s_t + W'_t gelu(W_t s_t))

with x_u[t] the t-th of T parts of token u. The logits are a linear map of final(mean_t x_t). Features
that belong together stand side by side in the config, so that they share a token.

```
                  ┌ token 1 ┐   ┌ exchange ┐   ┌ MLP 1 ┐
group x ──▶ cut ──┤    …    ├──▶┤  parts   ├──▶┤   …   ├──▶ … ──▶ mean ──▶ (final) ──▶ logits
                  └ token T ┘   └          ┘   └ MLP T ┘
```
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.limits import Count
from recgrad.models.base import MODELS, Model, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.moe import Experts
from recgrad.nn.output_layer import OutputLayer


class MixerLayer(nn.Module):
    """Parts of tokens exchanged, then an MLP of each token; both with a residual and a norm after it.

    Args:
        tokens: number of tokens, which must divide dim.
        dim: width of a token.
        ratio: hidden width of an MLP over dim.
    """

    def __init__(self, tokens: int, dim: int, ratio: int) -> None:
        super().__init__()
        self.mixed_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.hidden = Experts(tokens, dim, [ratio * dim], activation="nn.GELU")
        self.output = Experts(tokens, ratio * dim, [dim], activation="")

    def forward(self, x: Tensor) -> Tensor:
        """[rows, tokens, dim] of x [rows, tokens, dim]."""
        rows, tokens, dim = x.shape
        mixed = x.view(rows, tokens, tokens, dim // tokens).transpose(1, 2).reshape(rows, tokens, dim)
        x = self.mixed_norm(x + mixed)
        return self.norm(x + self.output(self.hidden(x)))  # type: ignore[no-any-return]


@MODELS.register("rank_mixer")
class RankMixer(Model):
    """RankMixer over one group."""

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(
        self,
        *,
        num_tokens: Count = 16,
        token_dim: Count = 128,
        num_layers: Count = 2,
        ffn_ratio: Count = 4,
        final: MLPSettings | None = None,
    ) -> None:
        """Make the layers.

        Args:
            num_tokens: tokens that the columns are cut into.
            token_dim: width of a token, a multiple of num_tokens.
            num_layers: number of layers.
            ffn_ratio: hidden width of a token's MLP over token_dim.
            final: arguments of the MLP over the mean token; none for none.
        """
        if token_dim % num_tokens:
            raise ValueError(f"token_dim must be a multiple of num_tokens {num_tokens}, got {token_dim}")
        self.group = only_group(self)
        width = self.groups.dim(self.group)
        self.num_tokens = num_tokens
        self.padding = -width % num_tokens  # zeros that the last piece ends with
        self.tokens = Experts(num_tokens, (width + self.padding) // num_tokens, [token_dim], activation="")
        self.layers = nn.Sequential(
            *(MixerLayer(num_tokens, token_dim, ffn_ratio) for _ in range(num_layers))
        )
        self.final = MLP(token_dim, **(final or {}))
        self.output = OutputLayer(self.final.out_features, self.tasks[0].num_logits)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        x = F.pad(inputs[self.group], (0, self.padding))
        pieces = x.reshape(x.shape[0], self.num_tokens, x.shape[1] // self.num_tokens)
        x = self.layers(self.tokens(pieces))
        return self.head(self.output(self.final(x.mean(1))))
