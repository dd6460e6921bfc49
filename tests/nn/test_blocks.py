"""Blocks against the definitions they are faster ways of computing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from recgrad.nn.activation import Dice, build_activation
from recgrad.nn.cin import CIN
from recgrad.nn.cross import Cross, CrossV2
from recgrad.nn.dense_embedding import AutoDis, LinearEmbedding
from recgrad.nn.fm import factorization_machine
from recgrad.nn.gate import GatedMLP
from recgrad.nn.interaction import DotInteraction
from recgrad.nn.mask import MaskBlock, MaskNet
from recgrad.nn.mlp import MLP
from recgrad.nn.moe import Experts, ExtractionLayer, MMoE
from recgrad.nn.variational_dropout import VariationalDropout
from recgrad.nn.wukong import WuKongLayer


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def count(module):
    return sum(p.numel() for p in module.parameters())


# --- MLP ---


@pytest.mark.parametrize("norm", ["", "bn", "ln"])
@pytest.mark.parametrize(
    "activation", ["nn.ReLU", "nn.PReLU", "Dice", "", "nn.LeakyReLU(negative_slope=0.3)"]
)
def test_mlp_is_linear_norm_activation_dropout(norm, activation):
    block = MLP(
        5, [4, 3], activation=activation, use_bn=norm == "bn", use_ln=norm == "ln", dropout_ratio=[0.5]
    )
    names = [type(layer).__name__ for layer in block]
    one = ["Linear"] + ([{"bn": "BatchNorm", "ln": "LayerNorm"}[norm]] if norm else [])
    one += [activation.split("(")[0].removeprefix("nn.")] if activation else []
    assert names == [*one, "Dropout", *one, "Dropout"]
    assert (block.linear0.bias is None) == (norm == "bn")
    assert block.out_features == 3
    block.eval()
    x = torch.randn(7, 5)
    expected = x
    for layer in block:
        expected = layer(expected)
    assert torch.equal(block(x), expected)


def test_mlp_takes_leading_dimensions_as_batch():
    block = MLP(5, [4], use_bn=True, activation="Dice").double()
    flat = MLP(5, [4], use_bn=True, activation="Dice").double()
    flat.load_state_dict(block.state_dict())
    x = double(3, 4, 5)
    torch.testing.assert_close(block(x).reshape(12, 4), flat(x.reshape(12, 5)))


def test_mlp_starts_as_torchs_linear_layers_do():
    block = MLP(400, [300])
    for value in (block.linear0.weight, block.linear0.bias):
        assert value.abs().max() <= 1 / math.sqrt(400)
        assert value.abs().max() > 0.97 / math.sqrt(400)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use_bn": True, "use_ln": True}, "exclude each other"),
        ({"dropout_ratio": [0.1, 0.2, 0.3]}, "0, 1 or 2 values, got 3"),
        ({"dropout_ratio": [1.0]}, r"\[0, 1\)"),
        ({"hidden_units": [4, 0]}, "at least 1"),
        ({"activation": "nn.ReLUU"}, "did you mean 'ReLU"),
        ({"activation": "nn.ELU(alpha=open('x'))"}, "must read like"),
        ({"activation": "nn.ELU(1.0)"}, "must read like"),
        ({"activation": "Dice(alpha=0.2)"}, "Dice takes no arguments, got 'Dice\\(alpha=0.2\\)'"),
    ],
)
def test_mlp_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        MLP(5, **{"hidden_units": [4, 3], **arguments})


def test_activation_texts():
    assert build_activation("", 3) is None
    assert isinstance(build_activation("dice", 3), Dice)
    assert build_activation("torch.nn.Softplus(beta=2)", 3).beta == 2
    assert isinstance(build_activation("torch.nn.modules.activation.Tanh", 3), nn.Tanh)


def test_dice_formula():
    dice = Dice(3).double()
    dice.alpha.data = double(3)
    x = double(6, 3)
    p = torch.sigmoid((x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + 1e-5))
    torch.testing.assert_close(dice(x), p * x + (1 - p) * dice.alpha * x)
    assert [name for name, _ in dice.named_parameters()] == ["alpha"]  # the norm learns nothing


# --- interactions ---


def test_fm_is_the_sum_over_pairs():
    v = double(4, 5, 3)
    expected = sum(v[:, i] * v[:, j] for i in range(5) for j in range(i + 1, 5))
    torch.testing.assert_close(factorization_machine(v), expected)


def test_dot_interaction_and_its_gradient():
    v = double(3, 4, 2).requires_grad_()
    block = DotInteraction(4)
    expected = torch.stack([(v[:, i] * v[:, j]).sum(1) for i in range(4) for j in range(i + 1, 4)], dim=1)
    torch.testing.assert_close(block(v), expected)
    assert torch.autograd.gradcheck(block, v)
    assert block.out_features == 6


@pytest.mark.parametrize("sizes", [[3], [4, 2], [4, 3, 2]])
def test_cin_is_its_definition(sizes):
    block = CIN(5, sizes).double()
    x0 = x = double(3, 5, 4)
    pooled = []
    for layer in block.layers:
        products = torch.einsum("bhd,bfd->bhfd", x, x0).flatten(1, 2)
        x = torch.einsum("bpd,op->bod", products, layer.weight) + layer.bias[:, None]
        pooled.append(x.sum(2))
    torch.testing.assert_close(block(x0), torch.cat(pooled, dim=1))
    assert block.out_features == sum(sizes)
    before = [5, *sizes[:-1]]
    assert count(block) == sum(h * 5 * o + o for h, o in zip(before, sizes, strict=True))


def test_cross_networks():
    x = double(3, 5)
    cross, low_rank = Cross(5, 2).double(), CrossV2(5, 2, 3).double()
    assert count(cross) == 2 * (5 + 5)
    assert count(low_rank) == 2 * (5 * 3 + 3 * 5 + 5)
    expected = x
    for w, b in zip(cross.weight, cross.bias, strict=True):
        expected = x * (expected @ w)[:, None] + b + expected
    torch.testing.assert_close(cross(x), expected)
    expected = x
    for down, up in zip(low_rank.down, low_rank.up, strict=True):
        expected = x * (expected @ down.weight.t() @ up.weight.t() + up.bias) + expected
    torch.testing.assert_close(low_rank(x), expected)


# --- experts ---


def copy_expert(experts, number):
    """One expert as an ordinary MLP."""
    first = experts.layers[0]
    widths = [layer.units for layer in experts.layers]
    activation = type(first.activation).__name__ if first.activation is not None else ""
    norm = {"use_bn": first.batch_norm is not None, "use_ln": first.scale is not None}
    block = MLP(first.weight.shape[2], widths, activation=activation, bias=first.bias is not None, **norm)
    for i, layer in enumerate(experts.layers):
        span = slice(number * layer.units, (number + 1) * layer.units)
        getattr(block, f"linear{i}").weight.data = layer.weight.data[number]
        if layer.bias is not None:
            getattr(block, f"linear{i}").bias.data = layer.bias.data[number]
        if layer.batch_norm is not None:
            getattr(block, f"norm{i}").weight.data = layer.batch_norm.weight.data[span]
            getattr(block, f"norm{i}").bias.data = layer.batch_norm.bias.data[span]
        if layer.scale is not None:
            getattr(block, f"norm{i}").weight.data = layer.scale.data[number]
            getattr(block, f"norm{i}").bias.data = layer.shift.data[number]
        if isinstance(layer.activation, nn.PReLU):
            getattr(block, f"activation{i}").weight.data = layer.activation.weight.data[number : number + 1]
        if isinstance(layer.activation, Dice):
            dice = getattr(block, f"activation{i}")
            dice.alpha.data = layer.activation.alpha.data[span]
    return block.double()


@pytest.mark.parametrize("norm", ["", "use_bn", "use_ln"])
@pytest.mark.parametrize("activation", ["nn.ReLU", "nn.PReLU", "Dice", ""])
@pytest.mark.parametrize("bias", [True, False])
def test_experts_are_as_many_mlps(norm, activation, bias):
    options = {norm: True} if norm else {}
    experts = Experts(3, 6, [5, 4], activation=activation, bias=bias, **options).double()
    for parameter in experts.parameters():
        parameter.data = torch.randn_like(parameter)
    x = double(7, 6)
    expected = torch.stack([copy_expert(experts, i)(x) for i in range(3)], dim=1)
    torch.testing.assert_close(experts(x), expected)
    assert count(experts) == sum(count(copy_expert(experts, i)) for i in range(3))


@pytest.mark.parametrize("hidden", [[3], [5, 3]])
@pytest.mark.parametrize("dim", [1, -1])
def test_an_activation_over_channels_is_that_of_each_expert(hidden, dim):
    experts = Experts(2, 4, hidden, activation=f"nn.Softmax(dim={dim})").double()
    torch.testing.assert_close(experts(double(7, 4)).sum(2), torch.ones(7, 2, dtype=torch.float64))


def test_slopes_for_each_channel_are_those_of_each_expert():
    experts = Experts(2, 4, [3], activation="nn.PReLU(num_parameters=3, init=0.5)").double()
    (layer,) = experts.layers
    layer.activation.weight.data = torch.arange(6).double()
    x = double(7, 4)
    before = nn.functional.linear(x, layer.weight.view(6, 4), layer.bias.view(6)).view(7, 2, 3)
    slopes = layer.activation.weight.view(2, 3)
    torch.testing.assert_close(experts(x), torch.where(before > 0, before, slopes * before))


def test_experts_drop_out_in_training_only():
    experts = Experts(2, 4, [50], dropout_ratio=[0.5], activation="")
    x = torch.randn(20, 4)
    zeros = (experts(x) == 0).float().mean()
    assert 0.4 < zeros < 0.6
    assert (experts.eval()(x) != 0).all()


def test_mmoe_with_one_expert_is_that_expert():
    block = MMoE(6, {"hidden_units": [5]}, 1, 3).double()
    x = double(4, 6)
    torch.testing.assert_close(block(x), block.experts(x).expand(4, 3, 5))


def test_extraction_without_shared_experts_separates_the_tasks():
    layer = ExtractionLayer([4, 4], 4, expert_num_per_task=2, task_expert_net={"hidden_units": [3]}).double()
    x = double(5, 4)
    (first, _), shared = layer([x, x], x)
    (again, _), _ = layer([x, x + 1], x)
    assert torch.equal(first, again)
    assert torch.equal(shared, x)


def test_extraction_refuses_experts_of_different_width():
    with pytest.raises(ValueError, match="end as wide"):
        ExtractionLayer(
            [4],
            4,
            expert_num_per_task=1,
            task_expert_net={"hidden_units": [3]},
            share_num=1,
            share_expert_net={"hidden_units": [2]},
        )


# --- masks, wukong, gates ---


def test_mask_blocks_parallel_and_serial():
    x = double(3, 6)
    parallel = MaskNet(6, 2, {"hidden_dim": 4}).double()
    normed = parallel.norm(x)
    torch.testing.assert_close(parallel(x), torch.cat([b(normed, x) for b in parallel.blocks], dim=1))
    serial = MaskNet(6, 2, {"hidden_dim": 4}, use_parallel=False).double()
    first, second = serial.blocks
    torch.testing.assert_close(serial(x), second(first(serial.norm(x), x), x))


def test_mask_block_widths():
    assert MaskBlock(10, 6, hidden_dim=4, reduction_ratio=0.5).aggregate.out_features == 5
    assert MaskBlock(10, 6, hidden_dim=4, aggregation_dim=7).aggregate.out_features == 7
    with pytest.raises(ValueError, match="exclude each other"):
        MaskBlock(10, 6, hidden_dim=4, aggregation_dim=7, reduction_ratio=0.5)


def test_wukong_residual_is_the_input_where_the_number_of_fields_stays():
    options = {"feature_num_mlp": {"hidden_units": [5]}, "compressed_feature_num": 2}
    same = WuKongLayer(4, 3, lcb_feature_num=2, fmb_feature_num=2, **options)
    other = WuKongLayer(4, 3, lcb_feature_num=2, fmb_feature_num=3, **options)
    assert isinstance(same.residual, nn.Identity)
    assert other.residual.weight.shape == (5, 4)
    assert other(torch.randn(2, 4, 3)).shape == (2, 5, 3)


def test_gates_see_the_main_features_without_gradient():
    net = GatedMLP(4, 2, [3, 3])
    for layer in net.layers:
        layer[0].weight.data.zero_()  # the only way for a gradient to reach `main` is through the gates
    main = torch.randn(5, 4, requires_grad=True)
    net(main, torch.randn(5, 2)).sum().backward()
    assert not main.grad.any()


# --- embeddings of numbers ---


def test_autodis_formula():
    block = AutoDis(2, 3, 4, temperature=0.5, keep_prob=0.7).double()
    x = double(5, 2)
    for row in range(5):
        for n in range(2):
            h = nn.functional.leaky_relu(block.scale[n] * x[row, n])
            mixed = block.mix[n] @ h + 0.7 * h
            expected = torch.softmax(mixed / 0.5, 0) @ block.meta[n]
            torch.testing.assert_close(block(x)[row, 3 * n : 3 * n + 3], expected)


@pytest.mark.parametrize("value_dim", [1, 3])
def test_linear_embedding_formula(value_dim):
    block = LinearEmbedding(2, 4, value_dim).double()
    x = double(5, 2 * value_dim)
    expected = [x[:, n * value_dim : (n + 1) * value_dim] @ block.weight[n] for n in range(2)]
    torch.testing.assert_close(block(x), torch.cat(expected, dim=1))


# --- variational dropout ---


def test_variational_dropout_in_evaluation_scales_by_one_minus_p():
    block = VariationalDropout([2, 3], 0.5).double().eval()
    x = double(4, 5)
    p = torch.sigmoid(block.theta)
    y, penalty = block(x)
    torch.testing.assert_close(y, x * (1 - p)[[0, 0, 1, 1, 1]])
    torch.testing.assert_close(penalty, 0.5 / 4 * (1 - p).sum())
    torch.testing.assert_close(block.dropout_probabilities(), p.detach())


def test_variational_dropout_in_training_drops_whole_fields_at_rate_p():
    block = VariationalDropout([1, 2])
    block.theta.data = torch.tensor([2.0, -2.0])
    kept, _ = block(torch.ones(20000, 3))
    assert torch.equal(kept[:, 1], kept[:, 2])
    rates = 1 - kept.mean(0)
    # The relaxation's mean is within .01 of p at these p; 20000 draws have a standard error below .003.
    assert abs(rates[0] - torch.sigmoid(torch.tensor(2.0))) < 0.02
    assert abs(rates[1] - torch.sigmoid(torch.tensor(-2.0))) < 0.02


def test_variational_dropout_by_column():
    assert VariationalDropout([2, 3], embedding_wise=True).theta.shape == (5,)
