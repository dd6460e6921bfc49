"""Residual k-means: semantic ids without gradients.

Training keeps a sample of the vectors that it reads. Before an evaluation and before a checkpoint, k-means of
the sample makes the first codebook, k-means of what its codes leave over the second, and so on; later levels
tell apart what earlier ones have in common.

```
vectors ─▶ sample ─▶ k-means ─▶ codebook 1 ─▶ what is left over ─▶ k-means ─▶ codebook 2 …
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from recgrad.errors import RecgradError
from recgrad.limits import Size, check_limits
from recgrad.models.base import MODELS
from recgrad.models.inputs import Inputs
from recgrad.models.semantic_ids import CandidateSettings, Levels, SemanticIds, of_all_ranks, set_codebooks
from recgrad.nn.kmeans import KMeansSettings, residual_kmeans
from recgrad.nn.quantizer import quantize


@MODELS.register("sid_rqkmeans")
class SidRqkmeans(SemanticIds):
    """Semantic ids by residual k-means of a sample."""

    takes_losses: ClassVar[bool] = False
    uncompiled: ClassVar[tuple[str, ...]] = ("_keep",)
    sample: Tensor
    seen: Tensor
    fitted: Tensor

    def build(
        self,
        *,
        codebook: Levels,
        normalize_residuals: bool = False,
        faiss_kmeans_kwargs: Mapping[str, Any] | None = None,
        train_sample_size: Size = 0,
        candidate_output_config: CandidateSettings | None = None,
    ) -> None:
        """Reserve the sample and the codebooks.

        Args:
            codebook: codes of each level.
            normalize_residuals: what is left over has length 1 before each level.
            faiss_kmeans_kwargs: settings of k-means; faiss's defaults where they are left out.
            train_sample_size: vectors that are kept; 0 for max_points_per_centroid of the largest level.
            candidate_output_config: further ids in predictions.
        """
        self.build_codes(codebook, candidate_output_config)
        given = dict(faiss_kmeans_kwargs or {})
        check_limits(KMeansSettings, given)
        self.kmeans = KMeansSettings(**given)
        self.normalize = normalize_residuals
        size = train_sample_size or max(self.levels) * self.kmeans.max_points_per_centroid
        if size < max(self.levels):
            raise ValueError(
                f"train_sample_size must be at least the {max(self.levels)} codes of the largest level, "
                f"got {size}"
            )
        width = self.groups.dim(self.group)
        self.register_buffer("sample", torch.zeros(size, width))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.int64))
        for level, codes in enumerate(self.levels):
            self.register_buffer(f"codebook{level}", torch.zeros(codes, width))
        # Optimizers want a parameter; this one stays at 0.
        self.unused = nn.Parameter(torch.zeros(()))

    @property
    def codebooks(self) -> list[Tensor]:
        """The codes of each level, [codes, width]."""
        return [getattr(self, f"codebook{level}") for level in range(len(self.levels))]

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """Codes and reconstructions; in training the sample grows, and there are no codes yet."""
        vectors = inputs[self.group]
        if self.training:
            self._keep(vectors)
            return {
                "vectors": vectors,
                "codes": vectors.new_zeros(len(vectors), len(self.levels), dtype=torch.int64),
            }
        if not torch.compiler.is_exporting() and not self.fitted:
            raise RecgradError(
                f"model_config.sid_rqkmeans: there are no codebooks yet: {int(self.seen)} rows were read, "
                f"and {max(self.levels)} codes need as many; train on more rows"
            )
        walk = quantize(vectors, self.codebooks, normalize=self.normalize)
        outputs = {"vectors": vectors, "reconstruction": walk.total, "codes": walk.codes}
        return self.with_candidates(outputs, walk, self.codebooks[-1])

    def own_losses(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Nothing to minimise."""
        return {"none": 0 * self.unused} if self.training else {}

    @torch.no_grad()
    def _keep(self, vectors: Tensor) -> None:
        """Take rows into the sample, every one with equal probability (Vitter 1985, algorithm R).

        All ranks keep the same sample, of the rows of all of them.
        """
        vectors = of_all_ranks(vectors)
        size, seen = len(self.sample), int(self.seen)
        first = max(0, min(len(vectors), size - seen))
        self.sample[seen : seen + first] = vectors[:first].to(self.sample)
        rest = vectors[first:]
        if len(rest):
            # Drawn from the count of rows, so that a run that goes on draws the same.
            draws = np.random.default_rng((self.kmeans.seed, seen))
            places = draws.integers(0, np.arange(seen + first, seen + len(vectors)) + 1)
            for row in np.flatnonzero(places < size):
                self.sample[places[row]] = rest[row].to(self.sample)
        self.seen += len(vectors)

    def settle(self) -> None:
        """Make the codebooks, if the sample has changed and is large enough."""
        seen = int(self.seen)
        if seen == int(self.fitted) or min(seen, len(self.sample)) < max(self.levels):
            return
        points = self.sample[: min(seen, len(self.sample))]
        found = residual_kmeans(points, self.levels, self.kmeans, normalize=self.normalize)
        set_codebooks(self.codebooks, found)
        self.fitted.fill_(seen)
