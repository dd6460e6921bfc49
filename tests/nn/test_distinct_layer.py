"""A first layer by distinct ids, against torch's operations in float64; and where it is used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.nn import distinct_layer
from recgrad.nn import relu_layers as module
from recgrad.nn.distinct_layer import find_distinct, most_ids, split_columns
from recgrad.nn.field_ids import FieldIds, carry_field_ids, field_ids, note_field_ids
from recgrad.nn.fm import interacting
from recgrad.nn.joining import join
from recgrad.nn.mlp import MLP
from recgrad.nn.moe import Experts


@pytest.fixture(autouse=True)
def own(monkeypatch):
    monkeypatch.setattr(module, "own_products", lambda: True)
    monkeypatch.setattr(module, "MIN_OUTPUTS", 1)


class Fields:
    """Ids of some fields, tables to look them up in, and the matrix that they make."""

    def __init__(self, rows, sizes, widths, *, numbers=0, missing=0.0, seed=0):
        rng = np.random.default_rng(seed)
        self.ids = [rng.integers(-(1 << 62), 1 << 62, size)[rng.integers(0, size, rows)] for size in sizes]
        self.lengths = [(rng.random(rows) >= missing).astype(np.int32) for _ in sizes]
        parts = [torch.from_numpy(rng.standard_normal((rows, numbers)).astype(np.float32))]
        for ids, lengths, width in zip(self.ids, self.lengths, widths, strict=True):
            known, code = np.unique(ids, return_inverse=True)
            vectors = rng.standard_normal((len(known), width)).astype(np.float32)[code.reshape(-1)]
            parts.append(torch.from_numpy(np.where(lengths[:, None] > 0, vectors, np.float32(0))))
        self.x = torch.cat(parts, dim=1)
        self.widths = np.array(widths, np.int64)
        self.columns = numbers + np.cumsum(self.widths) - self.widths
        kept = [np.ascontiguousarray(i[n > 0]) for i, n in zip(self.ids, self.lengths, strict=True)]
        addresses = np.array([array.ctypes.data for array in kept], np.int64)
        counted = np.array([array.ctypes.data if missing else 0 for array in self.lengths], np.int64)
        self.noted = FieldIds(self.columns, self.widths, addresses, counted, (kept, self), [])

    def leaf(self):
        x = self.x.clone().requires_grad_()
        return note_field_ids(x, self.noted._replace(found=[]))

    def summed(self, gradient):
        """The gradient of each distinct id, and of the columns that belong to none."""
        gradient = gradient.double()
        found = [gradient[:, : int(self.columns[0])]] if len(self.columns) else [gradient]
        for ids, lengths, column, width in zip(
            self.ids, self.lengths, self.columns, self.widths, strict=True
        ):
            known, code = np.unique(np.where(lengths > 0, ids, 1 << 62), return_inverse=True)
            sums = torch.zeros(len(known), int(width), dtype=torch.float64)
            part = gradient[:, column : column + width]
            found.append(sums.index_add_(0, torch.from_numpy(code.reshape(-1)), part))
        return found


def gradients(block, x, of_out):
    out = block(x)
    out.backward(of_out.to(out.dtype))
    found = [out.detach(), *(p.grad.clone() for p in block.parameters()), x.grad]
    block.zero_grad()
    return found


def check(block, fields, of_out, rows):
    ours = gradients(block, fields.leaf(), of_out)
    exact_block = type(block)(*block.made_of).double()
    exact_block.load_state_dict(block.state_dict())
    exact = gradients(exact_block, fields.x.double().requires_grad_(), of_out)
    for found, wanted in zip([*ours[:-1], *fields.summed(ours[-1])],
                             [*exact[:-1], *fields.summed(exact[-1])], strict=True):  # fmt: skip
        torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=1e-5 * (1 + rows / 100))


def mlp(*made_of):
    torch.manual_seed(0)
    block = MLP(*made_of)
    block.made_of = made_of
    return block


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 2500),
    fields=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=6),
    numbers=st.integers(0, 20),
    units=st.integers(1, 90),
    missing=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1000),
)
def test_values_and_sums_of_gradients_are_those_of_float64(rows, fields, numbers, units, missing, seed):
    made = Fields(rows, *zip(*fields, strict=True), numbers=numbers, missing=missing, seed=seed)
    block = mlp(made.x.shape[1], [units])
    of_out = torch.randn(rows, units, generator=torch.Generator().manual_seed(seed))
    # As near to ReLU's kink as rounding either gradient is right.
    of_out[block[0].double()(made.x.double()).abs() < 1e-5] = 0
    check(block.float(), made, of_out, rows)


def test_layers_above_it_are_those_of_float64():
    made = Fields(500, [9, 30], [16, 16], numbers=3)
    check(mlp(35, [30, 20, 10]), made, torch.randn(500, 10), 500)


def test_a_field_with_few_ids_is_taken_and_one_with_many_is_not():
    made = Fields(800, [5, 700], [16, 16])
    assert find_distinct(made.leaf()).spans == ((0, 16),)


@pytest.mark.parametrize(
    ("rows", "width", "most"), [(8192, 16, 1638), (8192, 64, 3276), (8192, 4, 102), (4, 16, 0)]
)
def test_wider_fields_may_have_more_ids(rows, width, most):
    assert most_ids(rows, np.array([width])).tolist() == [most]


def test_all_that_is_looked_up_is_bounded_by_the_rows(monkeypatch):
    monkeypatch.setattr(distinct_layer, "MOST_IN_ALL", 0.1)
    found = find_distinct(Fields(800, [60, 50, 20, 20], [16] * 4).leaf())
    assert found.spans == ((32, 16), (48, 16))


def test_several_ids_in_a_row_keep_a_field_out():
    made = Fields(400, [5, 6], [16, 16], missing=0.2)
    made.lengths[0][7] = 2
    assert find_distinct(made.leaf()).spans == ((16, 16),)


def test_experts_share_what_is_looked_up():
    made = Fields(300, [4, 9], [16, 16], numbers=3)
    torch.manual_seed(1)
    block = Experts(3, 35, [20, 7])
    block.made_of = (3, 35, [20, 7])
    check(block, made, torch.randn(300, 3, 7), 300)


def test_ids_are_numbered_once_for_all_that_read_them(monkeypatch):
    counted = []
    monkeypatch.setattr(distinct_layer, "_find", lambda fields, rows: counted.append(rows))
    x = Fields(300, [4], [16]).leaf()
    mlp(16, [8])(x)
    mlp(16, [9])(x)
    assert counted == [300]


def test_any_number_of_threads_gives_the_same_bits():
    made = Fields(3000, [7, 40, 3], [16, 16, 8], numbers=5)
    block, of_out = mlp(45, [130, 20]), torch.randn(3000, 20)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(gradients(block, made.leaf(), of_out))
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_what_needs_no_gradient_gets_none():
    made = Fields(300, [4], [16], numbers=2)
    block, x = mlp(18, [8]), made.leaf()
    block[0].weight.requires_grad_(False)
    block(x).sum().backward()
    assert block[0].weight.grad is None
    assert block[0].bias.grad is not None
    assert x.grad is not None


def test_scores_of_rows_do_not_depend_on_the_rows_beside_them():
    made = Fields(400, [4, 6], [16, 16])
    block = mlp(32, [24])
    with torch.no_grad():
        whole = block(made.leaf())
        assert torch.equal(block(made.leaf()[:100]), whole[:100])


def test_the_note_goes_along_with_columns_that_stay_as_they_are():
    made = Fields(300, [4, 5], [16, 16])
    numbers = torch.randn(300, 7)
    joined = join([numbers, made.leaf()])
    assert field_ids(joined).columns.tolist() == [7, 23]
    assert field_ids(interacting(joined, 7, 2, 16)[1]).columns.tolist() == [7, 23]
    assert field_ids(joined * 1) is None
    assert field_ids(carry_field_ids(torch.cat([numbers, numbers], dim=1), [numbers, numbers])) is None


def test_columns_are_divided_into_fields_and_runs_of_others():
    split = split_columns(((3, 4), (12, 20)), 40)
    assert split.rest == ((0, 3), (7, 12), (32, 40))
    assert split.width == 16
    assert split.vectors == 2
    assert split.columns.tolist() == [*range(3, 7), *range(12, 32)]
    assert split.chosen[split.place].tolist() == split.columns.tolist()


@pytest.mark.parametrize(("sizes", "kind"), [([4, 5], "_ByKernelsBackward"), ([290, 5], "ReluBackward0")])
def test_where_torchs_products_are_fast_half_of_them_must_be_spared(monkeypatch, sizes, kind):
    monkeypatch.setattr(module, "own_products", lambda: False)
    out = mlp(31, [24])(Fields(300, sizes, [16, 15]).leaf())
    assert type(out.grad_fn).__name__ == kind
