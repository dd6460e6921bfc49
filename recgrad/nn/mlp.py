"""Multilayer perceptron, the block in every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from torch import Tensor, nn

from recgrad.limits import Count, SettingsOf, Share, keep_limits
from recgrad.nn.activation import build_activation
from recgrad.nn.relu_layers import fits, relu_layers


@keep_limits
class MLP(nn.Sequential):
    """Linear → batch or layer norm → activation → dropout, once for each hidden width.

    Weights and biases start as U(−1/√fan_in, 1/√fan_in), torch's default for linear layers;
    norms start as the identity. With batch norm the linear layer has no bias, since the norm
    would take it away again. The last dimension is the channel; batch norm takes all others
    as batch.

    Args:
        in_features: width of the input.
        hidden_units: width of each layer; none makes the block the identity.
        activation: see `build_activation`; "" for none.
        dropout_ratio: share of outputs dropped after each layer: one for each, one for all, or none.
        use_bn: batch norm before the activation.
        use_ln: layer norm before the activation.
        bias: whether linear layers have one.
    """

    def __init__(
        self,
        in_features: Count,
        hidden_units: Sequence[Count] = (),
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
        ratios = dropout_ratios(dropout_ratio, len(hidden_units))
        width = in_features
        for i, (units, ratio) in enumerate(zip(hidden_units, ratios, strict=True)):
            self.add_module(f"linear{i}", nn.Linear(width, units, bias=bias and not use_bn))
            if use_bn:
                self.add_module(f"norm{i}", BatchNorm(units))
            if use_ln:
                self.add_module(f"norm{i}", nn.LayerNorm(units))
            function = build_activation(activation, units)
            if function is not None:
                self.add_module(f"activation{i}", function)
            if ratio > 0:
                self.add_module(f"dropout{i}", nn.Dropout(ratio))
            width = units
        self.out_features = width

    def forward(self, x: Tensor) -> Tensor:
        """[..., out_features] of x [..., in_features]."""
        modules, place = list(self), 0
        while place < len(modules):
            linear = _relu_run(modules[place:])
            if linear and fits(x, linear[0].weight):
                x = relu_layers(x, [(layer.weight, layer.bias) for layer in linear])
                place += 2 * len(linear)
            else:
                x = modules[place](x)
                place += 1
        return x

    def layer_outputs(self, x: Tensor) -> list[Tensor]:
        """The output of every layer; the last is what calling the block gives."""
        outputs: list[Tensor] = []
        for name, module in self.named_children():
            if name.startswith("linear") and name != "linear0":
                outputs.append(x)
            x = module(x)
        return [*outputs, x]

    def after_first(self, x: Tensor) -> Tensor:
        """What follows the first linear layer, for callers that compute that layer in a cheaper way."""
        for module in list(self)[1:]:
            x = module(x)
        return x

    def relu_layers(self) -> list[nn.Linear] | None:
        """The linear layers, where ReLU follows each and nothing else does; None for any other block."""
        linear, after = list(self)[::2], list(self)[1::2]
        if len(linear) != len(after) or any(type(module) is not nn.ReLU for module in after):
            return None
        return [module for module in linear if isinstance(module, nn.Linear)]


def _relu_run(modules: Sequence[nn.Module]) -> list[nn.Linear]:
    """The linear layers that these begin with and ReLU follows, as far as no hook waits for an output."""
    run: list[nn.Linear] = []
    for linear, relu in zip(modules[::2], modules[1::2], strict=False):
        if type(linear) is not nn.Linear or type(relu) is not nn.ReLU or _has_hooks(linear, relu):
            break
        run.append(linear)
    return run


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _has_hooks(*modules: nn.Module) -> bool:
    return any(getattr(module, kind) for module in modules for kind in _HOOKS)


MLPSettings = Annotated[Mapping[str, Any], SettingsOf(MLP, filled=("hidden_units",))]
"""Arguments of an MLP with at least one layer, as a config has them."""


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the last dimension, whatever the number of dimensions before it."""

    def forward(self, x: Tensor) -> Tensor:
        """The normed x [..., width]."""
        if x.dim() == 2:
            return super().forward(x)
        return super().forward(x.reshape(-1, x.shape[-1])).reshape(x.shape)


def dropout_ratios(ratio: Sequence[float] | float, layers: int) -> list[float]:
    """One dropout ratio for each layer, from none, one for all, or one for each."""
    ratios = [ratio] if isinstance(ratio, (int, float)) else list(ratio)
    if len(ratios) <= 1:
        ratios = (ratios or [0.0]) * layers
    if len(ratios) != layers:
        raise ValueError(f"dropout_ratio must have 0, 1 or {layers} values, got {len(ratios)}")
    if any(not 0 <= value < 1 for value in ratios):
        raise ValueError(f"dropout_ratio must be in [0, 1), got {ratios}")
    return ratios
