"""RQ-VAE: semantic ids by an autoencoder whose middle is quantized, residual by residual.

Lee et al. 2022, https://arxiv.org/abs/2203.01941; for recommendation Rajput et al. 2023,
https://arxiv.org/abs/2305.05065

    z = encoder(x),   codes and S = quantized z (`recgrad.nn.quantizer`),   x̂ = decoder(q),   q = S forward

Backward q passes its gradient to z as it is (straight through), turned (rotation_trick), or through a
Gumbel softmax.

```
vector x ─▶ MLP ─▶ linear ─▶ z ─▶ codebooks ─▶ q ─▶ MLP ─▶ linear ─▶ x̂
                                      └─▶ codes 3, 17, 250
```
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal, TypedDict

import torch
from torch import Tensor, nn

from recgrad.errors import RecgradError
from recgrad.limits import Count, Rate
from recgrad.models.base import MODELS
from recgrad.models.group_needs import DeepInput
from recgrad.models.inputs import Inputs
from recgrad.models.semantic_ids import CandidateSettings, Levels, SemanticIds, of_all_ranks, set_codebooks
from recgrad.nn.kmeans import KMeansSettings, residual_kmeans
from recgrad.nn.mlp import MLP
from recgrad.nn.quantizer import (
    Distance,
    Walk,
    nearest,
    quantize,
    quantize_softly,
    rotated,
    sinkhorn,
    straight_through,
)

logger = logging.getLogger(__name__)

INITIAL = KMeansSettings(niter=10, seed=123, min_points_per_centroid=1)
"""How codebooks begin with kmeans_init."""
FIRST_SCALE = math.log(1 / 0.07)
LARGEST_SCALE = math.log(100)


class SinkhornSettings(TypedDict, total=False):
    """Codes that are used about equally often."""

    iters: Count
    epsilon: Rate
    enabled: bool


class ContrastiveSettings(TypedDict):
    """The groups of the other item of a pair."""

    pair_feature_group: DeepInput
    pair_flag_feature_group: DeepInput


@MODELS.register("sid_rqvae")
class SidRqvae(SemanticIds):
    """Semantic ids by a residual quantizing autoencoder."""

    uncompiled: ClassVar[tuple[str, ...]] = ("_begin",)
    begun: Tensor

    def build(
        self,
        *,
        codebook: Levels,
        embed_dim: Count = 64,
        hidden_dims: Sequence[Count] = (),
        forward_mode: Literal["ste", "gumbel_softmax"] = "ste",
        normalize_residuals: bool = False,
        distance_type: Distance = "l2",
        rotation_trick: bool = False,
        kmeans_init: bool = False,
        sinkhorn_config: SinkhornSettings | None = None,
        contrastive_config: ContrastiveSettings | None = None,
        candidate_output_config: CandidateSettings | None = None,
    ) -> None:
        """Make the layers.

        Args:
            codebook: codes of each level.
            embed_dim: width of z and of codes.
            hidden_dims: layers of the encoder, and of the decoder the other way round; half of x's width
                where it is left out.
            forward_mode: ste (straight through) or gumbel_softmax.
            normalize_residuals: what is left over has length 1 before each level.
            distance_type: l2 or cosine.
            rotation_trick: gradients turn with the rotation from z to its codes.
            kmeans_init: codebooks begin with k-means of the first batch.
            sinkhorn_config: in training codes are used about equally often; on unless it is disabled.
            contrastive_config: groups of the other item of each pair.
            candidate_output_config: further ids in predictions.
        """
        self.build_codes(codebook, candidate_output_config)
        self.distance, self.normalize = distance_type, normalize_residuals
        balance = sinkhorn_config or {}
        self.soft, self.rotation = forward_mode == "gumbel_softmax", rotation_trick
        self.balance = None
        if balance.get("enabled", True) and not self.soft:
            self.balance = partial(
                sinkhorn, iters=balance.get("iters", 5), epsilon=balance.get("epsilon", 10.0)
            )
        if self.soft and (rotation_trick or balance.get("enabled")):
            logger.warning(
                "sid_rqvae: forward_mode gumbel_softmax leaves rotation_trick and sinkhorn_config out"
            )
        width = self.groups.dim(self.group)
        hidden = list(hidden_dims) or [max(width // 2, 1)]
        self.encoder = _coder(width, hidden, embed_dim)
        self.decoder = _coder(embed_dim, hidden[::-1], width)
        self.codebooks = nn.ParameterList(_codebook(size, embed_dim) for size in self.levels)
        self.kmeans_init = kmeans_init
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool), persistent=kmeans_init)
        self.pair: tuple[str, str] | None = None
        if contrastive_config is not None:
            self._build_pairs(contrastive_config, width)
        self._check_losses(contrastive_config is not None)

    def _build_pairs(self, groups: ContrastiveSettings, width: int) -> None:
        self.pair = (groups["pair_feature_group"], groups["pair_flag_feature_group"])
        for group, wanted in zip(self.pair, (width, 1), strict=True):
            if self.groups.dim(group) != wanted:
                raise ValueError(
                    f"contrastive_config: group '{group}' must have width {wanted}, got "
                    f"{self.groups.dim(group)}"
                )
        self.scales = nn.Parameter(torch.full((3,), FIRST_SCALE))

    def _check_losses(self, pairs: bool) -> None:
        losses = {loss.config_name for task in self.tasks for loss in task.losses}
        if losses and pairs != ("contrastive_loss" in losses):
            raise ValueError("contrastive_config and losses { contrastive_loss {} } need each other")

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """Codes and reconstructions; in training also of pairs."""
        vectors = inputs[self.group]
        if not self.training:
            walk = self._walk(self.encoder(vectors))
            outputs = {"vectors": vectors, "reconstruction": self.decoder(walk.total), "codes": walk.codes}
            return self.with_candidates(outputs, walk, self.codebooks[-1])
        outputs = self._view(vectors)
        if self.pair is not None:
            other = self._view(inputs[self.pair[0]])
            outputs |= {f"pair_{name}": value for name, value in other.items()}
            outputs["pairs"] = inputs[self.pair[1]].squeeze(1) > 0.5
            outputs["scales"] = self.scales.clamp(max=LARGEST_SCALE).exp()
        return outputs

    def _view(self, vectors: Tensor) -> dict[str, Tensor]:
        """What losses need of some vectors."""
        latent = self.encoder(vectors)
        if self.kmeans_init:
            self._begin(latent)
        walk = self._walk(latent)
        if self.soft:
            middle = walk.total
        else:
            middle = (rotated if self.rotation else straight_through)(latent, walk.total)
        return {
            "vectors": vectors,
            "reconstruction": self.decoder(middle),
            "latent": latent,
            "sums": walk.sums,
            "codes": walk.codes,
        }

    def _walk(self, latent: Tensor) -> Walk:
        codebooks = list(self.codebooks)
        if self.training and self.soft:
            return quantize_softly(latent, codebooks, distance=self.distance, normalize=self.normalize)
        choose = self.balance if self.training and self.balance is not None else nearest
        return quantize(latent, codebooks, distance=self.distance, normalize=self.normalize, choose=choose)

    @torch.no_grad()
    def _begin(self, latent: Tensor) -> None:
        """Take the codebooks from the first batch, that of all ranks, once."""
        if self.begun:
            return
        latent = of_all_ranks(latent)
        if not len(latent):
            return
        if len(latent) < max(self.levels):
            raise RecgradError(
                f"model_config.sid_rqvae.kmeans_init: the first batch has {len(latent)} rows, and "
                f"{max(self.levels)} codes need as many; raise data_config.batch_size, or leave it out"
            )
        found = residual_kmeans(latent, self.levels, INITIAL, normalize=self.normalize)
        set_codebooks(self.codebooks, found)
        self.begun.fill_(True)


def _coder(width: int, hidden: Sequence[int], output: int) -> nn.Sequential:
    mlp = MLP(width, hidden)
    return nn.Sequential(mlp, nn.Linear(mlp.out_features, output))


def _codebook(size: int, width: int) -> nn.Parameter:
    codes = torch.empty(size, width)
    nn.init.kaiming_uniform_(codes)
    return nn.Parameter(codes)
