"""Linear layers with ReLU after each: a product and what follows it, without a pass over memory for each.

    x_{i+1} = relu(x_i · W_iᵀ + b_i)

Torch copies the bias before a product and goes over its output once more for ReLU; backward it writes the
gate's result to new memory and reads that again for the gradient of the bias. Here kernels of our own do all
of that while sums are in registers, where they are faster than torch's products; elsewhere products of
torch's are each followed by one pass in place. Several networks of one shape (experts) go side by side:

    x [rows, in] ─▶ W_0 of all ─▶ ┌ units ┬ units ┬ units ┐ ─▶ W_1 of each over its own columns ─▶ …
                    one product   └───────┴───────┴───────┘    a product each, reading and writing in place

Of float32 on a CPU; `fits` tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recgrad.cpu import read_vendor
from recgrad.nn.field_ids import field_ids

if TYPE_CHECKING:
    from recgrad.nn.distinct_layer import Distinct

MIN_OUTPUTS = 1 << 16  # of a layer: below, torch's operations are as fast


def runs_kernels(*tensors: Tensor) -> bool:
    """Whether kernels may run on these, here and now: float32 on a CPU, and no other compiler looks on."""
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if torch.compiler.is_compiling() or tracing or torch.is_autocast_enabled("cpu"):
        return False
    plain = all(type(x) in (Tensor, nn.Parameter) for x in tensors)
    return plain and all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether `relu_layers` takes this input and pays, by the weight of the first layer.

    One network by torch's products is no faster than by torch's operations; experts are, without copies, and
    any by products of our own where ids that repeat spare many of them.
    """
    large = x.dim() == 2 and x.shape[0] * weight.shape[-2] >= MIN_OUTPUTS
    if not large or not runs_kernels(x, weight):
        return False
    return weight.dim() == 3 or own_products() or _is_much(_repeating(x), x)


def relu_layers(x: Tensor, layers: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
    """[rows, count · units of the last layer]: the outputs of `count` networks on one input, side by side.

    Args:
        x: [rows, in].
        layers: W [count, units, width] and b [count, units], or None, of each layer; [units, width] and
            [units] of one network.
    """
    flat = [tensor for layer in layers for tensor in layer]
    distinct = _repeating(x)
    if own_products() or _is_much(distinct, x):
        return _ByKernels.apply(x, distinct, *flat)  # type: ignore[no-any-return, no-untyped-call]
    return _ByTorch.apply(x, *flat)  # type: ignore[no-any-return, no-untyped-call]


def _is_much(distinct: Distinct | None, x: Tensor) -> bool:
    """Whether half of the first layer's products are spared."""
    return distinct is not None and 2 * sum(width for _, width in distinct.spans) >= x.shape[1]


def _repeating(x: Tensor) -> Distinct | None:
    """The fields of x whose ids repeat; None where there are none, or the gradient of x is not wanted."""
    if not (torch.is_grad_enabled() and x.requires_grad and field_ids(x) is not None):
        return None
    from recgrad.nn.distinct_layer import find_distinct

    return find_distinct(x)


class _ByTorch(torch.autograd.Function):
    """By torch's products, each with one pass over its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *flat: Tensor | None) -> Tensor:
        # Imported here, since it brings numba along.
        from recgrad.nn.relu_kernels import add_bias_relu

        x = _rows(x)
        values = [x]
        for weight, bias in _layers(flat):
            count, units, width = weight.shape
            out = x.new_empty(x.shape[0], count * units)
            for e in range(count):
                torch.mm(_columns(x, e, width), weight[e].t(), out=_columns(out, e, units))
            add_bias_relu(out, None if bias is None else bias.contiguous())
            values.append(out)
            x = out
        ctx.save_for_backward(*values, *flat)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from recgrad.nn.relu_kernels import gate, new_sums

        values, flat = _saved(ctx)
        found: list[Tensor | None] = []
        g, room = _rows(gradient), torch.empty_like(values[-1])
        for i, (weight, bias) in reversed(list(enumerate(_layers(flat)))):
            count, units, width = weight.shape
            of_weights, of_bias = ctx.needs_input_grad[1 + 2 * i : 3 + 2 * i]
            sums = new_sums(room) if of_bias and bias is not None else None
            gate(g, values[i + 1], room, sums)
            of_weight = torch.empty_like(weight) if of_weights else None
            below = torch.empty(values[i].shape) if i or ctx.needs_input_grad[0] else None
            for e in range(count):
                own = _columns(room, e, units)
                if of_weight is not None:
                    torch.mm(own.t(), _columns(values[i], e, width), out=of_weight[e])
                if below is not None:
                    torch.mm(own, weight[e], out=_columns(below, e, width))
            of_rows = None if sums is None else sums.sum(0)
            found = [_as(of_weight, flat[2 * i]), _as(of_rows, flat[2 * i + 1]), *found]
            if i and below is not None:
                g = room = below
        return below, *found


class _ByKernels(torch.autograd.Function):
    """By products of our own, which do the rest in the registers. All is made ready first, then all run."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, distinct: Distinct | None, *flat: Tensor | None) -> Tensor:
        # Imported here, since it brings numba along.
        from recgrad.kernels.parallel import Launches
        from recgrad.nn import layer_products as own
        from recgrad.nn.distinct_layer import DistinctLayer

        layers, later = _layers(flat), Launches()
        count = _networks(flat)
        ctx.first = None
        values = [x if distinct is not None else own.with_room(x)]
        for i, (weight, bias) in enumerate(layers):
            units = weight.shape[0] * weight.shape[1] // count
            out = own.new_matrix(x.shape[0], count, units, odd=i + 1 < len(layers))
            if i == 0 and distinct is not None:
                ctx.first = DistinctLayer(_rows(x), distinct, weight[0], bias, out, later)
            else:
                panels = own.pack(weight, transposed=True, run=later.add)
                own.forward(values[-1], panels, bias, out, later.add)
            values.append(out)
        later.run()
        ctx.save_for_backward(*values, *flat)
        return values[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from recgrad.kernels.parallel import Launches
        from recgrad.nn import layer_products as own
        from recgrad.nn.relu_kernels import gate

        values, flat = _saved(ctx)
        rows, count, later = gradient.shape[0], _networks(flat), Launches()
        sums: list[Tensor | None] = []
        g = own.new_matrix(rows, count, gradient.shape[1] // count)
        gate(_rows(gradient), values[-1], g, run=later.add)
        below: Tensor | None = None
        for i, (weight, bias) in reversed(list(enumerate(_layers(flat)))):
            of_weight, of_bias = ctx.needs_input_grad[2 + 2 * i : 4 + 2 * i]
            of_bias = of_bias and bias is not None
            own_sums: tuple[Tensor | None, ...] = (None, None)
            if i == 0 and ctx.first is not None:
                wants = {"of_weight": of_weight, "of_bias": of_bias, "of_x": ctx.needs_input_grad[0]}
                *own_sums, below = ctx.first.backward(g, weight[0], later, **wants)
            elif of_weight or of_bias:
                x = values[i]
                own_sums = own.weight_gradients(g, x, weight.shape[0], with_bias=of_bias, run=later.add)
            sums = [*own_sums, *sums]
            if i:
                below = own.new_matrix(rows, count, weight.shape[2])
                panels = own.pack(weight, transposed=False, run=later.add)
                own.backward(g, panels, below, values[i], later.add)
                g = below
            elif ctx.first is None:
                below = None
                if ctx.needs_input_grad[0]:
                    below = own.new_matrix(rows, 1, weight.shape[2], odd=False)
                    own.backward(g, own.pack(weight, transposed=False, run=later.add), below, None, later.add)
        later.run()
        return below, None, *(_as(found, like) for found, like in zip(sums, flat, strict=True))


@cache
def own_products() -> bool:
    """Whether products of our own are faster here than torch's: MKL's are best on Intel's processors."""
    return read_vendor() == "AuthenticAMD"


def _layers(flat: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor | None]]:
    """W [networks, units, width] and b of each layer; the first, of which all have the input, as of one."""
    found = []
    for i, (weight, bias) in enumerate(zip(flat[::2], flat[1::2], strict=True)):
        assert weight is not None
        joined = i == 0 or weight.dim() == 2
        found.append((weight.reshape(1, -1, weight.shape[-1]) if joined else weight, bias))
    return found


def _networks(flat: Sequence[Tensor | None]) -> int:
    assert flat[0] is not None
    return flat[0].shape[0] if flat[0].dim() == 3 else 1


def _saved(ctx: Any) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
    """The input with the outputs of all layers, and the weights."""
    depth = (len(ctx.saved_tensors) - 1) // 3
    return ctx.saved_tensors[: depth + 1], ctx.saved_tensors[depth + 1 :]


def _as(gradient: Tensor | None, like: Tensor | None) -> Tensor | None:
    return None if gradient is None or like is None else gradient.reshape(like.shape)


def _columns(x: Tensor, e: int, width: int) -> Tensor:
    """The columns of one network."""
    return x if x.shape[1] == width else x[:, e * width : (e + 1) * width]


def _rows(x: Tensor) -> Tensor:
    """x with columns that lie side by side, as kernels and products read them without a copy."""
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()
