"""Blocks of attention and position-wise layers over jagged rows, as SASRec and BERT4Rec stack them."""

from __future__ import annotations

from torch import Tensor, nn

from recgrad.nn.attention import Biases, Mask, Setting, jagged_attention
from recgrad.nn.jagged import Segments

NORMS = ("SASREC", "PRE", "POST")
ACTIVATIONS: dict[str, type[nn.Module]] = {"RELU": nn.ReLU, "GELU": nn.GELU}
_EPS = 1e-8


class AttentionBlock(nn.Module):
    """One block: attention of positions to each other, then two layers at each position.

    By `norm`, with a = attention(queries, keys and values) and f = W₂·drop(act(W₁·x + b₁)) + b₂:

        SASREC   q = LN(x), y = LN(q + drop(a(q, x))), x' = y + drop(f(y))      (Kang & McAuley 2018)
        PRE      y = x + drop(a(LN(x), LN(x))), x' = y + drop(f(LN(y)))
        POST     y = LN(x + drop(a(x, x))), x' = LN(y + drop(f(y)))             (BERT4Rec)

    Args:
        dim: width of positions.
        heads: of the attention.
        hidden_dim: width between the two layers.
        norm: which of the three.
        activation: RELU or GELU.
        dropout: share of values dropped.
        attention_dropout: share of attention weights dropped.
        causal: a position sees itself and what is before it; else all.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int,
        hidden_dim: int,
        norm: str = "SASREC",
        activation: str = "RELU",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.norm, self.attention_dropout = norm, attention_dropout
        self.heads, self.alpha = heads, (dim // heads) ** -0.5
        self.mask = Mask() if causal else Mask("EVERYTHING")
        self.query, self.key_value = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)
        self.first_norm, self.second_norm = nn.LayerNorm(dim, eps=_EPS), nn.LayerNorm(dim, eps=_EPS)
        self.inner, self.outer = nn.Linear(dim, hidden_dim), nn.Linear(hidden_dim, dim)
        self.activation, self.dropout = ACTIVATIONS[activation](), nn.Dropout(dropout)

    def forward(self, x: Tensor, segments: Segments, biases: Biases | None = None) -> Tensor:
        """[positions, dim] of the same."""
        if self.norm == "SASREC":
            query = self.first_norm(x)
            y: Tensor = self.second_norm(query + self._attend(query, x, segments, biases))
            return y + self._feed(y)
        if self.norm == "PRE":
            normed = self.first_norm(x)
            y = x + self._attend(normed, normed, segments, biases)
            return y + self._feed(self.second_norm(y))
        y = self.first_norm(x + self._attend(x, x, segments, biases))
        out: Tensor = self.second_norm(y + self._feed(y))
        return out

    def _attend(self, query: Tensor, x: Tensor, segments: Segments, biases: Biases | None) -> Tensor:
        key, value = self.key_value(x).chunk(2, dim=1)
        dropout = self.attention_dropout if self.training else 0.0
        setting = Setting("softmax", self.heads, self.alpha, mask=self.mask, dropout=dropout)
        out: Tensor = self.dropout(
            self.output(jagged_attention(self.query(query), key, value, segments, setting, biases=biases))
        )
        return out

    def _feed(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.outer(self.dropout(self.activation(self.inner(x)))))
        return out
