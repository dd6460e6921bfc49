"""Vectors and their gradients in half precision between ranks: half the bytes, FP32 again on both sides.

Vectors travel as FP16, which has the more digits; gradients as BF16, whose range is that of FP32: those of a
mean over thousands of rows are below what FP16 can tell from zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.types import CommOp, QuantizedCommCodec, QuantizedCommCodecs


class Halves(QuantizedCommCodec[None]):  # type: ignore[misc]
    """Tensors as halves; finite values beyond the range of the type become its largest.

    Infinities and NaN stay what they are: a gradient scaler must see them.

    The bits of BF16 travel under the name of FP16: gloo knows no other type of two bytes, and does not look.

    Args:
        dtype: float16 or bfloat16.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._limit = torch.finfo(dtype).max

    def encode(self, input_tensor: Tensor, ctx: None = None) -> Tensor:
        """What travels."""
        found = input_tensor
        if not self._within_range(found):
            found = torch.where(found.isinf(), found, found.clamp(-self._limit, self._limit))
        return found.to(self._dtype).view(torch.float16)

    def _within_range(self, values: Tensor) -> bool:
        """Whether none need be clamped: a CPU asks faster than it clamps, a GPU would wait for the answer."""
        if values.device.type != "cpu" or not values.numel():
            return False
        low, high = values.aminmax()
        return -self._limit <= low.item() and high.item() <= self._limit

    def decode(self, input_grad: Tensor, ctx: None = None) -> Tensor:
        """What has travelled, as FP32."""
        return input_grad.view(self._dtype).float()

    @property
    def quantized_dtype(self) -> torch.dtype:
        """Of what travels."""
        return torch.float16

    def calc_quantized_size(self, input_len: int, ctx: None = None) -> int:
        """Elements stay as many."""
        return input_len

    def create_context(self) -> None:
        """Nothing is kept between both sides."""

    def padded_size(
        self, input_tensor: Tensor, dim_per_rank: list[int], my_rank: int, qcomm_ctx: None
    ) -> tuple[int, int]:
        """Nothing is padded."""
        return dim_per_rank[my_rank], 0


VECTORS = Halves(torch.float16)
GRADIENTS = Halves(torch.bfloat16)


def codecs() -> dict[str, Any]:
    """What TorchRec's sharders take, by collective."""
    own = QuantizedCommCodecs(VECTORS, GRADIENTS)
    kinds = (
        CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL,
        CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL,
        CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER,
    )
    return {kind.name: own for kind in kinds}
