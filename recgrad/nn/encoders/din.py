"""Attention of a query over a sequence, scored by an MLP (DIN)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.limits import Size
from recgrad.nn.encoders.base import ENCODERS, SequenceEncoder, check_query
from recgrad.nn.jagged import Segments, repeat_rows, segment_softmax, segment_sum
from recgrad.nn.mlp import MLP, MLPSettings


@ENCODERS.register("din_encoder")
class DINEncoder(SequenceEncoder):
    """Σ_t softmax_t(mlp([q, s_t, q − s_t, q∘s_t])) · s_t over each row's positions.

    A query narrower than the sequence is filled up with zeros. The softmax is over the
    positions that exist; a row without any gives 0.
    Zhou et al. 2018, https://arxiv.org/abs/1706.06978

    Args:
        query_dim: width of the query, at most sequence_dim.
        sequence_dim: width of a position.
        attn_mlp: arguments of the MLP that scores a position; a linear layer to one score follows.
        max_seq_length: only the first so many positions are used; 0 for all.
    """

    def __init__(
        self, query_dim: int, sequence_dim: int, attn_mlp: MLPSettings, max_seq_length: Size = 0
    ) -> None:
        super().__init__(query_dim, sequence_dim, max_seq_length)
        check_query("din_encoder", query_dim, sequence_dim)
        self.out_features = sequence_dim
        self.mlp = MLP(4 * sequence_dim, **attn_mlp)
        if len(self.mlp) == 0:
            raise ValueError("attn_mlp must have at least one hidden layer, got none")
        # A bias would shift all scores of a row alike, which softmax does not see.
        self.score = nn.Linear(self.mlp.out_features, 1, bias=False)

    def encode(self, query: Tensor, sequence: Tensor, segments: Segments) -> Tensor:
        """[rows, sequence_dim] of query [rows, query_dim] over sequence [positions, sequence_dim]."""
        query = F.pad(query, (0, self.sequence_dim - self.query_dim))
        linear = self.mlp[0]
        assert isinstance(linear, nn.Linear)
        # The first layer of [q, s, q − s, q∘s], without building that input: q(W₁+W₃) is the same for all
        # positions of a row and is computed once; what is left is s(W₂−W₃) + (q∘s)W₄.
        of_query, of_sequence, of_difference, of_product = linear.weight.chunk(4, dim=1)
        per_row = F.linear(query, of_query + of_difference, linear.bias)
        of_sequence = of_sequence - of_difference
        layers = self.mlp.relu_layers()
        if layers is not None and _fits_kernels(query, sequence, linear.weight):
            # Imported here, since it brings numba along.
            from recgrad.nn.mlp_attention import mlp_attention

            after = [(layer.weight, layer.bias) for layer in layers[1:]]
            score = self.score.weight.squeeze(0)
            return mlp_attention(query, sequence, per_row, of_sequence, of_product, after, score, segments)
        both = torch.cat([sequence, repeat_rows(query, segments) * sequence], dim=1)
        hidden = F.linear(both, torch.cat([of_sequence, of_product], dim=1)) + repeat_rows(per_row, segments)
        scores = self.score(self.mlp.after_first(hidden)).squeeze(1)
        return segment_sum(sequence, segments, segment_softmax(scores.to(sequence.dtype), segments))


def _fits_kernels(*tensors: Tensor) -> bool:
    """Whether the fused kernels take these: float32 on a CPU, positions to score, and no other compiler."""
    return (
        all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
        and all(tensor.shape[0] > 0 for tensor in tensors)
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )
