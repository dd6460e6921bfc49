"""Residual quantization: a vector as a sum of one code from each of several codebooks.

    r₁ = z,   cₗ = the code of codebook l nearest to rₗ,   rₗ₊₁ = rₗ − cₗ,   Sₗ = c₁ + … + cₗ

```
z ─▶ nearest of codebook 1 ─ c₁ ─▶ r₂ = z − c₁ ─▶ nearest of codebook 2 ─ c₂ ─▶ r₃ …      codes: 3, 17, …
```
Lee et al. 2022, https://arxiv.org/abs/2203.01941
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Distance = Literal["l2", "cosine"]
Chooser = Callable[[Tensor], Tensor]


class Walk(NamedTuple):
    """How vectors are made of codes.

    Attributes:
        codes: int64 [rows, levels].
        sums: [rows, levels, dim], what the codes of the first levels add up to.
        rest: [rows, dim], what was left over before the last level.
    """

    codes: Tensor
    sums: Tensor
    rest: Tensor

    @property
    def total(self) -> Tensor:
        """What all codes add up to, [rows, dim]."""
        return self.sums[:, -1]


def distances(vectors: Tensor, codebook: Tensor, kind: Distance = "l2") -> Tensor:
    """‖v − c‖², or −cos(v, c), of every vector and code, [rows, codes]."""
    if kind == "cosine":
        return -(F.normalize(vectors, dim=1) @ F.normalize(codebook, dim=1).T)
    squares = vectors.square().sum(1, keepdim=True) + codebook.square().sum(1)
    return squares - 2 * (vectors @ codebook.T)


def nearest(apart: Tensor) -> Tensor:
    """The least of each row, int64 [rows]."""
    return apart.argmin(1)


def sinkhorn(apart: Tensor, *, iters: int = 5, epsilon: float = 10.0) -> Tensor:
    """The code of each row where all codes are to be used about equally often, int64 [rows].

    Distances d are scaled over the whole batch, Q = exp(−ε·d) is made to have equal sums in its rows and
    in its columns by turns, and the largest of each row of the batch is taken.

    Paper: Cuturi 2013, arXiv:1306.0895
    """
    if not len(apart):
        return apart.new_zeros(0, dtype=torch.int64)
    rows, codes = apart.shape
    scaled = (apart - apart.mean()) / (apart.std(correction=0) + 1e-12)
    weights = torch.exp(-epsilon * (scaled - scaled.min())).T
    weights = weights / weights.sum()
    for _ in range(iters):
        weights = weights / (weights.sum(1, keepdim=True) + 1e-8) / codes
        weights = weights / (weights.sum(0, keepdim=True) + 1e-8) / rows
    return weights.argmax(0)


def quantize(
    vectors: Tensor,
    codebooks: Sequence[Tensor],
    *,
    distance: Distance = "l2",
    normalize: bool = False,
    choose: Chooser = nearest,
) -> Walk:
    """The codes of vectors; gradients reach the codebooks through the sums alone.

    Args:
        vectors: [rows, dim], taken as constants.
        codebooks: [codes, dim] each.
        distance: that codes are near by.
        normalize: what is left over has length 1 before each level.
        choose: codes from distances.
    """
    rest, before = vectors.detach(), vectors.detach()
    codes: list[Tensor] = []
    sums: list[Tensor] = []
    for codebook in codebooks:
        rest = F.normalize(rest, dim=1) if normalize else rest
        before = rest
        with torch.no_grad():
            chosen = choose(distances(rest, codebook, distance))
        code = codebook[chosen]
        codes.append(chosen)
        sums.append(sums[-1] + code if sums else code)
        rest = rest - code.detach()
    return Walk(torch.stack(codes, 1), torch.stack(sums, 1), before)


def quantize_softly(
    vectors: Tensor, codebooks: Sequence[Tensor], *, distance: Distance = "l2", normalize: bool = False
) -> Walk:
    """Codes drawn by Gumbel noise with probability softmax(−distance); gradients reach vectors as well.

    Paper: Jang et al. 2017, arXiv:1611.01144; temperature 1, one code forward.
    """
    rest, before = vectors, vectors
    codes: list[Tensor] = []
    sums: list[Tensor] = []
    for codebook in codebooks:
        rest = F.normalize(rest, dim=1) if normalize else rest
        before = rest
        drawn = F.gumbel_softmax(-distances(rest, codebook, distance), tau=1.0, hard=True)
        code = drawn @ codebook
        codes.append(drawn.argmax(1))
        sums.append(sums[-1] + code if sums else code)
        rest = rest - code.detach()
    return Walk(torch.stack(codes, 1), torch.stack(sums, 1), before)


def straight_through(vectors: Tensor, total: Tensor) -> Tensor:
    """The codes' sum forward; backward its gradient is the vectors', as it is."""
    return vectors + (total - vectors).detach()


def rotated(vectors: Tensor, total: Tensor) -> Tensor:
    """The codes' sum forward; backward its gradient turns with the rotation from vectors to it.

    With unit vectors ẑ, ŝ, m = (ẑ + ŝ)/‖ẑ + ŝ‖ and λ = ‖s‖/‖z‖, all constants: λ(z − 2⟨z, m⟩m + 2⟨z, ẑ⟩ŝ).

    Paper: Fifty et al. 2024, arXiv:2410.06424
    """
    with torch.no_grad():
        z, s = F.normalize(vectors, dim=1), F.normalize(total, dim=1)
        middle = F.normalize(z + s, dim=1)
        norms = vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)
        scale = total.norm(dim=1, keepdim=True) / norms
    along = (vectors * middle).sum(1, keepdim=True) * middle
    onto = (vectors * z).sum(1, keepdim=True) * s
    turned: Tensor = scale * (vectors - 2 * along + 2 * onto)
    return turned


def near_codes(walk: Walk, codebook: Tensor, topk: int, distance: Distance) -> tuple[Tensor, Tensor]:
    """Ids that differ in the last code alone, the nearest first.

    Returns:
        codes int64 [rows, topk, levels] and distances [rows, topk].
    """
    scores, last = distances(walk.rest, codebook, distance).topk(topk, dim=1, largest=False, sorted=True)
    prefix = walk.codes[:, None, :-1].expand(-1, topk, -1)
    return torch.cat([prefix, last.unsqueeze(2)], dim=2), scores
