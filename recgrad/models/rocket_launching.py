"""Rocket launching: a light network that learns from the label and from a larger one beside it.

Zhou et al. 2018, https://arxiv.org/abs/1708.04106

    s = share_mlp(x),   light = linear(light_mlp(sg(s))),   booster = linear(booster_mlp(s))

with sg(·) without gradient. The losses of the config hold for both; training adds

    mean (light − sg(booster))²                                                    hint_l2_loss
    −0.1·mean cos(h_i, sg(g_j)),  or  √Σ(h_i − sg(g_j))² over the batch            feature_distillation

the second, with feature_based_distillation, for each layer h_i of light_mlp and the first layer g_j of
booster_mlp of its width. Evaluation and prediction have the light network alone.

```
                            ┌──▶ (sg) ──▶ light_mlp ────▶ logits_light
group x ──▶ (share_mlp) ──▶ s                 ▲ learns from
                            └──▶ booster_mlp ─┴─────────▶ logits_booster     in training
```
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from recgrad.models.base import MODELS, Model, only_group
from recgrad.models.group_needs import ONE_DEEP, GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.models.tasks import TaskSpec
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer

LIGHT, BOOSTER = "light", "booster"


@MODELS.register("rocket_launching")
class RocketLaunching(Model):
    """A light network taught by a booster, over one group."""

    @classmethod
    def tasks_of(cls, task: TaskSpec) -> tuple[TaskSpec, ...]:
        """The light network, and the booster in training."""
        light = replace(task, name=LIGHT, whole_model=True)
        booster = replace(
            task,
            name=BOOSTER,
            whole_model=True,
            training_only=True,
            metrics=(),
            train_metrics=deepcopy(task.train_metrics),
        )
        return light, booster

    reads: ClassVar[GroupNeeds | None] = ONE_DEEP

    def build(
        self,
        *,
        booster_mlp: MLPSettings,
        light_mlp: MLPSettings,
        share_mlp: MLPSettings | None = None,
        feature_based_distillation: bool = False,
        feature_distillation_function: str = "COSINE",
    ) -> None:
        """Make the layers.

        Args:
            booster_mlp: arguments of the larger network.
            light_mlp: arguments of the network that is kept.
            share_mlp: arguments of the MLP before both; none for none.
            feature_based_distillation: bring layers of equal width together too.
            feature_distillation_function: COSINE, or EUCLID (INNER_PRODUCT means the same).
        """
        self.group = only_group(self)
        self.cosine = feature_distillation_function == "COSINE"
        self.share = MLP(self.groups.dim(self.group), **(share_mlp or {}))
        self.booster = MLP(self.share.out_features, **booster_mlp)
        self.light = MLP(self.share.out_features, **light_mlp)
        self.light_output, self.booster_output = (
            OutputLayer(mlp.out_features, self.tasks[0].num_logits) for mlp in (self.light, self.booster)
        )
        light, booster = list(light_mlp["hidden_units"]), list(booster_mlp["hidden_units"])
        pairs = [(i, booster.index(width)) for i, width in enumerate(light) if width in booster]
        self.pairs = pairs if feature_based_distillation else []
        if feature_based_distillation and not pairs:
            raise ValueError(
                "feature_based_distillation needs a width that both MLPs have, got "
                f"light_mlp {light} and booster_mlp {booster}"
            )

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of the light network; in training also the booster's, and pairs of layers."""
        shared = self.share(inputs[self.group])
        if not self.training:
            return self.head(self.light_output(self.light(shared)), self.tasks[0])
        light, booster = self.light.layer_outputs(shared.detach()), self.booster.layer_outputs(shared)
        outputs = self.head(self.light_output(light[-1]), self.tasks[0])
        outputs |= self.head(self.booster_output(booster[-1]), self.tasks[1])
        for number, (i, j) in enumerate(self.pairs):
            outputs |= {f"hidden_{LIGHT}_{number}": light[i], f"hidden_{BOOSTER}_{number}": booster[j]}
        return outputs

    def own_losses(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How far the light network is from the booster."""
        light, booster = (outputs.get(task.logits) for task in self.tasks)
        if light is None or booster is None:
            return {}
        rows = max(light.shape[0], 1)
        hint = (light.float() - booster.detach().float()).square()
        losses = {"hint_l2_loss": hint.sum() / max(hint.numel(), 1)}
        terms = []
        for number in range(len(self.pairs)):
            own = outputs[f"hidden_{LIGHT}_{number}"].float()
            other = outputs[f"hidden_{BOOSTER}_{number}"].detach().float()
            if self.cosine:
                terms.append(-0.1 * F.cosine_similarity(own, other, dim=1).sum() / rows)
            else:
                # The root has no gradient at 0.
                terms.append((own - other).square().sum().clamp(min=1e-24).sqrt())
        if terms:
            losses["feature_distillation"] = torch.stack(terms).sum()
        return losses
