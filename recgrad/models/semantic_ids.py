"""What models of semantic ids have in common: vectors of items in, codes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, TypedDict

import torch
from torch import Tensor

from recgrad.errors import ConfigError
from recgrad.limits import Count
from recgrad.metrics.reconstruction import CODE_METRICS
from recgrad.models.base import Model
from recgrad.models.group_needs import GroupNeeds
from recgrad.models.tasks import TaskSpec
from recgrad.nn.quantizer import Distance, Walk, near_codes
from recgrad.ranks import gather_tensors, world_size

Levels = Sequence[Count]


class CandidateSettings(TypedDict, total=False):
    """Further ids near the chosen one."""

    enabled: bool
    topk: Count
    strategy: Literal["last_layer_knn"]


class SemanticIds(Model):
    """Codes of items from their vectors: the numbers of the first group."""

    learns_codes: ClassVar[bool] = True
    reads: ClassVar[GroupNeeds | None] = GroupNeeds(first="DEEP")
    takes_losses: ClassVar[bool] = True
    distance: Distance = "l2"

    def build_codes(self, codebook: Levels, candidates: CandidateSettings | None) -> None:
        """Take the settings that all such models have."""
        if not codebook:
            raise ValueError("codebook is empty; give the number of codes of each level")
        if self.groups.plan.tables:
            raise ConfigError(
                "model_config.feature_groups: semantic ids are learned from vectors that are given "
                "(raw_feature with value_dim), not from embeddings that are learned"
            )
        self.group = next(iter(self.groups.plan.rows))
        self.levels = tuple(codebook)
        self.topk = 0
        if candidates and candidates.get("enabled"):
            self.topk = candidates.get("topk", 1)
            if self.topk > self.levels[-1]:
                raise ValueError(
                    f"topk must be at most the {self.levels[-1]} codes of the last level, got {self.topk}"
                )

    @classmethod
    def tasks_of(cls, task: TaskSpec) -> tuple[TaskSpec, ...]:
        """One task without a label, measured by how well codes give vectors back."""
        return (replace(task, label_name="", metrics=tuple(metric() for metric in CODE_METRICS)),)

    def with_candidates(self, outputs: dict[str, Tensor], walk: Walk, codebook: Tensor) -> dict[str, Tensor]:
        """The outputs with ids near the chosen ones, where the config asks for them."""
        if self.topk:
            codes, scores = near_codes(walk, codebook, self.topk, self.distance)
            outputs |= {"candidate_codes": codes.flatten(1), "candidate_scores": scores}
        return outputs

    def own_predictions(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The codes of each row, and candidates."""
        names = ("codes", "candidate_codes", "candidate_scores")
        return {name: outputs[name] for name in names if name in outputs}


def of_all_ranks(vectors: Tensor) -> Tensor:
    """The rows of all processes, rank after rank; every process must ask at the same time."""
    return vectors if world_size() == 1 else torch.cat(gather_tensors(vectors.contiguous()))


def set_codebooks(own: Iterable[Tensor], found: Iterable[Tensor]) -> None:
    """Write codes that were found, those of the first process into the codebooks of all."""
    for codes, new in zip(own, found, strict=True):
        codes.copy_(new)
        if world_size() > 1:
            torch.distributed.broadcast(codes.data, 0)
