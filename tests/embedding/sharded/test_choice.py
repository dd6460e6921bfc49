"""Which kernels a table gets, how it may be spread then, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from recgrad.embedding.build import TableOptimizer
from recgrad.embedding.living import LivingSpec
from recgrad.embedding.sharded.choice import choose_kernels
from recgrad.embedding.sharded.fbgemm import RULES, decay_mode, fused_arguments
from recgrad.embedding.spec import TableSpec
from recgrad.errors import ConfigError
from recgrad.optim.sparse import SGD, SPARSE_OPTIMIZERS

OWN = "customized_kernel"
EVERYTHING = "add customized_kernel, which has everything"


def optimizer(name: str = "adagrad_optimizer", **settings: Any) -> TableOptimizer:
    kind = SPARSE_OPTIMIZERS[name]
    return TableOptimizer(kind, dict(kind([{"params": []}], **settings).param_groups[0]), name)


def choose(own: TableOptimizer, devices: tuple[str, ...] = ("cpu",), **spec: Any) -> tuple[str, Any]:
    table = TableSpec(**{"name": "t", "num_rows": 10, "dim": 8, **spec})
    choice = choose_kernels([table], {"t": own}, devices=devices)["t"]
    return choice.kernel, choice.sharding_types


@pytest.mark.parametrize("name", sorted(SPARSE_OPTIMIZERS))
def test_without_a_word_cpus_have_ours_and_gpus_fbgemms_where_it_computes_the_same(name: str) -> None:
    same = {"sgd", "adagrad", "rowwise_adagrad", "adam", "partial_rowwise_adam"}
    assert choose(optimizer(name)) == (OWN, ())
    there = "fused" if name.removesuffix("_optimizer") in same else OWN
    assert choose(optimizer(name), ("cuda",)) == (there, ())


@pytest.mark.parametrize("name", sorted(SPARSE_OPTIMIZERS))
def test_cpus_have_three_of_fbgemms(name: str) -> None:
    if name in ("sgd_optimizer", "adagrad_optimizer", "rowwise_adagrad_optimizer"):
        assert choose(optimizer(name), compute_kernels=("fused",)) == ("fused", ())
        return
    with pytest.raises(ConfigError, match="compute_kernels: table 't' cannot have fused"):
        choose(optimizer(name), compute_kernels=("fused",))
    assert choose(optimizer(name), compute_kernels=("fused", OWN)) == (OWN, ())


@pytest.mark.parametrize("name", ["adam_optimizer", "partial_rowwise_adam_optimizer"])
def test_rows_that_catch_up_have_our_kernels_and_are_whole(name: str) -> None:
    dense = optimizer(name, lazy=False)
    assert choose(dense, ("cuda",)) == (OWN, ())
    assert choose(dense, sharding_types=("column_wise", "row_wise")) == (OWN, ("row_wise",))
    with pytest.raises(ConfigError, match=f"FBGEMM's {name} leaves untouched rows alone, and lazy is false"):
        choose(dense, ("cuda",), compute_kernels=("fused",))


def test_tables_that_live_have_our_kernels_and_lie_whole_on_a_rank() -> None:
    living = LivingSpec(9)
    assert choose(optimizer(), ("cuda",), living=living) == (OWN, ())
    assert choose(optimizer(), living=living, sharding_types=("row_wise", "table_wise")) == (
        OWN,
        ("table_wise",),
    )
    with pytest.raises(ConfigError, match=r"table 't' may not lie whole .* allow table_wise"):
        choose(optimizer(), living=living, sharding_types=("row_wise",))
    with pytest.raises(ConfigError, match=f"its rows belong to ids as they come .*{EVERYTHING}"):
        choose(optimizer(), living=living, compute_kernels=("fused",))


DECAYED = [
    ("sgd_optimizer", "L2", ()),
    ("sgd_optimizer", "DECOUPLE", ()),
    ("adagrad_optimizer", "L2", ()),
    ("rowwise_adagrad_optimizer", "L2", ("cuda",)),
    ("rowwise_adagrad_optimizer", "DECOUPLE", ("cuda",)),
    ("adam_optimizer", "L2", ()),
    ("adam_optimizer", "DECOUPLE", ("cuda",)),
    ("partial_rowwise_adam_optimizer", "DECOUPLE", ("cuda",)),
]


@pytest.mark.parametrize(("name", "mode", "devices"), DECAYED)
def test_weight_decay_only_where_fbgemm_has_the_formula(
    name: str, mode: str, devices: tuple[str, ...]
) -> None:
    decayed = optimizer(name, weight_decay=0.1, weight_decay_mode=mode)
    for device in ("cpu", "cuda"):
        expected = "fused" if device in devices else OWN
        assert choose(decayed, (device,), compute_kernels=("fused", OWN))[0] == expected
    # Without a rate, the mode says nothing.
    assert (
        choose(optimizer("sgd_optimizer", weight_decay_mode=mode), compute_kernels=("fused",))[0] == "fused"
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "memory of a GPU's host": (
        {"compute_kernels": ("fused_uvm", "fused_uvm_caching")},
        "compute_kernels: table 't' cannot have "
        "fused_uvm (it keeps rows in host memory for a GPU, and there is none) or "
        "fused_uvm_caching (it keeps rows in host memory for a GPU, and there is none)",
    ),
    "halves": (
        {"compute_kernels": ("fused",), "data_type": "FP16"},
        "fused (FBGEMM rounds FP16 rows by random bits that no checkpoint keeps)",
    ),
    "width": (
        {"compute_kernels": ("fused",), "dim": 6},
        "FBGEMM needs a dim that is a multiple of 4, this one is 6",
    ),
    "copies": (
        {"compute_kernels": ("fused",), "sharding_types": ("data_parallel",)},
        "fused (copies of a table (data_parallel) have our own kernels only)",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_had_is_refused_with_the_alternative(what: str) -> None:
    spec, said = REFUSED[what]
    with pytest.raises(ConfigError) as caught:
        choose(optimizer(), **spec)
    assert said in str(caught.value)
    assert str(caught.value).endswith(EVERYTHING)
    spec = {**spec, "compute_kernels": (*spec["compute_kernels"], OWN)}
    assert choose(optimizer(), **spec)[0] == OWN


def test_a_gpu_may_have_rows_in_the_hosts_memory() -> None:
    for kernel in ("fused_uvm", "fused_uvm_caching"):
        assert choose(optimizer(), ("cuda",), compute_kernels=(kernel,)) == (kernel, ())
        assert choose(optimizer(), ("cpu", "cuda"), compute_kernels=(kernel,)) == (kernel, ())


def test_whole_rows_are_not_cut() -> None:
    rows = optimizer("rowwise_adagrad_optimizer")
    both = ("column_wise", "row_wise")
    assert choose(rows, sharding_types=both) == (OWN, ("row_wise",))
    assert choose(optimizer(), sharding_types=both) == (OWN, both)
    assert choose(rows, sharding_types=("column_wise",), trainable=False) == (OWN, ("column_wise",))
    with pytest.raises(ConfigError) as caught:
        choose(rows, sharding_types=("column_wise",))
    assert str(caught.value) == (
        "sharding_types: table 't' may be spread by columns alone, "
        "but rowwise_adagrad_optimizer needs whole rows; allow one of table_wise, row_wise, data_parallel"
    )


def test_copies_are_left_out_where_fbgemm_is_chosen() -> None:
    both = ("data_parallel", "row_wise")
    assert choose(optimizer(), compute_kernels=("fused", OWN), sharding_types=both) == (
        "fused",
        ("row_wise",),
    )
    assert choose(optimizer(), compute_kernels=(OWN, "fused"), sharding_types=both) == (OWN, both)
    assert choose(optimizer(), ("cuda",), sharding_types=("data_parallel",)) == (OWN, ("data_parallel",))


def test_problems_name_the_field_and_the_tables_once() -> None:
    tables = [TableSpec(name, 10, 6, compute_kernels=("fused",)) for name in "abcde"]
    paths = {("a", "compute_kernels"): "here"}
    with pytest.raises(ConfigError) as caught:
        choose_kernels(tables, {name: optimizer() for name in "abcde"}, paths=paths)
    first, second = str(caught.value).splitlines()
    assert first.startswith("here: table 'a' cannot have fused")
    assert second.startswith("compute_kernels: tables 'b', 'c', 'd' and 1 more cannot have fused")


def test_settings_go_by_fbgemms_names() -> None:
    own = optimizer("adam_optimizer", lr=0.5, beta1=0.8, eps=1e-4, weight_decay=0.25)
    arguments = fused_arguments(RULES[own.kind], own.settings)
    assert arguments == {"lr": 0.5, "beta1": 0.8, "beta2": 0.999, "eps": 1e-4, "weight_decay": 0.25}
    assert decay_mode(own.settings) == "DECOUPLE"
    assert fused_arguments(RULES[SGD], optimizer("sgd_optimizer", lr=0.5).settings) == {"lr": 0.5}


def test_fbgemm_knows_the_optimizers_by_these_names() -> None:
    configs = pytest.importorskip("fbgemm_gpu.split_embedding_configs", exc_type=(ImportError, OSError))
    for rule in RULES.values():
        assert hasattr(configs.EmbOptimType, rule.optim_type)
