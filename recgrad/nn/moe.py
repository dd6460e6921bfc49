"""Mixtures of experts: the first layer of all experts is one product."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.limits import FILLED, Count, Parts, Range, SettingsOf, Share, keep_limits
from recgrad.nn.activation import Dice, build_activation
from recgrad.nn.mixing import mix_experts
from recgrad.nn.mlp import MLPSettings, dropout_ratios
from recgrad.nn.relu_layers import fits, relu_layers


@keep_limits
class Experts(nn.Module):
    """`count` MLPs of equal shape on one input, as [rows, count, out_features].

    Equal to as many `MLP`s: the first layer is one wide linear layer, each further layer a product for each
    expert where ReLU follows (`relu_layers`), else one batched multiplication; norms and activations have
    weights of their own for each expert.

    Args:
        count: number of experts.
        in_features: width of the input.
        hidden_units, activation, dropout_ratio, use_bn, use_ln, bias: as `MLP` takes them.
    """

    def __init__(
        self,
        count: Count,
        in_features: int,
        hidden_units: Annotated[Sequence[Count], FILLED],
        *,
        activation: str = "nn.ReLU",
        dropout_ratio: Sequence[Share] | Share = (),
        use_bn: bool = False,
        use_ln: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if use_bn and use_ln:
            raise ValueError("use_bn and use_ln exclude each other, got both")
        self.count = count
        self.out_features = hidden_units[-1]
        self.layers = nn.ModuleList()
        width = in_features
        for units, ratio in zip(hidden_units, dropout_ratios(dropout_ratio, len(hidden_units)), strict=True):
            norm = "batch" if use_bn else "layer" if use_ln else ""
            self.layers.append(
                _ExpertLayer(count, width, units, activation, ratio, norm, bias and not use_bn)
            )
            width = units

    def forward(self, x: Tensor) -> Tensor:
        """[rows, count, out_features] of x [rows, in_features]."""
        layers = [layer for layer in self.layers if isinstance(layer, _ExpertLayer)]
        if all(layer.is_relu() for layer in layers) and fits(x, layers[0].weight):
            found = relu_layers(x, [(layer.weight, layer.bias) for layer in layers])
            return found.view(-1, self.count, self.out_features)
        for layer in layers:
            x = layer(x)
        return x


class _ExpertLayer(nn.Module):
    """One layer of all experts: [rows, in] or [rows, count, in] to [rows, count, units]."""

    def __init__(
        self, count: int, width: int, units: int, activation: str, ratio: float, norm: str, bias: bool
    ) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)
        self.count, self.units = count, units
        self.weight = nn.Parameter(torch.empty(count, units, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, units).uniform_(-bound, bound)) if bias else None
        self.batch_norm = nn.BatchNorm1d(count * units) if norm == "batch" else None
        self.scale = nn.Parameter(torch.ones(count, units)) if norm == "layer" else None
        self.shift = nn.Parameter(torch.zeros(count, units)) if norm == "layer" else None
        self.activation = build_activation(activation, count * units)
        if isinstance(self.activation, nn.PReLU):
            # Slopes of its own for each expert.
            slopes, start = self.activation.num_parameters, float(self.activation.weight.detach()[0])
            self.activation = nn.PReLU(count * slopes, init=start)
        self.dropout = nn.Dropout(ratio) if ratio > 0 else None

    def is_relu(self) -> bool:
        """Whether ReLU follows the product and nothing else does."""
        others = (self.batch_norm, self.scale, self.dropout)
        return type(self.activation) is nn.ReLU and all(other is None for other in others)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            bias = None if self.bias is None else self.bias.view(-1)
            x = F.linear(x, self.weight.view(-1, x.shape[1]), bias).view(-1, self.count, self.units)
        else:
            x = torch.bmm(x.transpose(0, 1), self.weight.transpose(1, 2)).transpose(0, 1)
            if self.bias is not None:
                x = x + self.bias
        if self.batch_norm is not None:
            x = self.batch_norm(x.flatten(1)).view(-1, self.count, self.units)
        if self.scale is not None and self.shift is not None:
            x = torch.addcmul(self.shift, F.layer_norm(x, (self.units,)), self.scale)
        if self.activation is not None:
            x = self.activation(self._channels(x)).view(-1, self.count, self.units)
        return x if self.dropout is None else self.dropout(x)

    def _channels(self, x: Tensor) -> Tensor:
        """x [rows, count, units] with what the activation has a weight for, or works over, as dimension 1."""
        if isinstance(self.activation, nn.PReLU) and self.activation.num_parameters == self.count:
            return x
        if isinstance(self.activation, (nn.PReLU, Dice)):
            return x.flatten(1)
        return x.reshape(-1, self.units)


@keep_limits
class MMoE(nn.Module):
    """For each task Σ_e softmax(gate_t(x))_e · expert_e(x), as [rows, tasks, out_features].

    Ma et al. 2018, https://doi.org/10.1145/3219819.3220007

    Args:
        in_features: width of the input.
        expert_mlp: arguments of an expert's MLP.
        num_expert: number of experts, shared by all tasks.
        num_task: number of tasks.
        gate_mlp: arguments of the MLP before a gate's linear layer; none for a linear gate.
    """

    def __init__(
        self,
        in_features: int,
        expert_mlp: MLPSettings,
        num_expert: Parts,
        num_task: int,
        gate_mlp: MLPSettings | None = None,
    ) -> None:
        super().__init__()
        self.num_task, self.num_expert = num_task, num_expert
        self.experts = Experts(num_expert, in_features, **expert_mlp)
        self.out_features = self.experts.out_features
        hidden = Experts(num_task, in_features, **gate_mlp) if gate_mlp and gate_mlp["hidden_units"] else None
        self.gate_mlps = hidden
        width = in_features if hidden is None else hidden.out_features
        self.gates = Experts(num_task, width, [num_expert], activation="")

    def forward(self, x: Tensor) -> Tensor:
        """[rows, num_task, out_features] of x [rows, in_features]."""
        gates = self.gates(x if self.gate_mlps is None else self.gate_mlps(x))
        return mix_experts(torch.softmax(gates, dim=2), [self.experts(x)])


@keep_limits
class ExtractionLayer(nn.Module):
    """One layer of PLE: each task mixes its own experts and the shared ones; the shared part mixes all.

    Tang et al. 2020, https://doi.org/10.1145/3383313.3412236

    Args:
        task_dims: width of each task's input.
        shared_dim: width of the shared input.
        expert_num_per_task: experts of each task.
        task_expert_net: arguments of their MLP.
        share_num: shared experts.
        share_expert_net: arguments of their MLP; must end as wide as task_expert_net.
        last: the last layer has no shared output.
    """

    def __init__(
        self,
        task_dims: Sequence[int],
        shared_dim: int,
        *,
        expert_num_per_task: Parts,
        task_expert_net: MLPSettings,
        share_num: Annotated[int, Range("[0, 10000]")] = 0,
        share_expert_net: MLPSettings | None = None,
        last: bool = False,
    ) -> None:
        super().__init__()
        if share_num and not share_expert_net:
            raise ValueError("share_num needs a share_expert_net, got none")
        if (
            share_num
            and share_expert_net
            and (share_expert_net["hidden_units"][-1:] != task_expert_net["hidden_units"][-1:])
        ):
            raise ValueError(
                "share_expert_net must end as wide as task_expert_net "
                f"({task_expert_net['hidden_units']}), got {share_expert_net['hidden_units']}"
            )
        self.own = nn.ModuleList(Experts(expert_num_per_task, dim, **task_expert_net) for dim in task_dims)
        self.shared = (
            Experts(share_num, shared_dim, **share_expert_net) if share_num and share_expert_net else None
        )
        count = expert_num_per_task + share_num
        self.gates = nn.ModuleList(nn.Linear(dim, count) for dim in task_dims)
        every = len(task_dims) * expert_num_per_task + share_num
        self.shared_gate = None if last or not share_num else nn.Linear(shared_dim, every)
        self.out_features = list(task_expert_net["hidden_units"])[-1]

    def forward(self, tasks: Sequence[Tensor], shared: Tensor) -> tuple[list[Tensor], Tensor]:
        """The tasks' outputs and the shared one (the input itself in the last layer)."""
        own = [experts(x) for experts, x in zip(self.own, tasks, strict=True)]
        common = [] if self.shared is None else [self.shared(shared)]
        outputs = [
            _mix(gate(x), [mine, *common]) for gate, x, mine in zip(self.gates, tasks, own, strict=True)
        ]
        if self.shared_gate is not None:
            shared = _mix(self.shared_gate(shared), own + common)
        return outputs, shared


def _mix(gate: Tensor, experts: Sequence[Tensor]) -> Tensor:
    """Σ_e softmax(gate)_e · expert_e, as [rows, width]."""
    return mix_experts(torch.softmax(gate, dim=1).unsqueeze(1), experts).squeeze(1)


ExtractionSettings = Annotated[Mapping[str, Any], SettingsOf(ExtractionLayer)]
