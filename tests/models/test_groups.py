"""Feature groups: tables, lookups, columns, sequences, and what is refused."""

from __future__ import annotations

import pytest
import torch

from recgrad.config.proto.feature_pb2 import AutoDisEmbedding, MLPEmbedding, ParameterConstraints
from recgrad.data.batch import KeyedJagged
from recgrad.errors import ConfigError, DataError
from recgrad.models.batch_ids import align
from recgrad.models.feature_groups import FeatureGroups
from recgrad.models.group_plan import EncoderSpec, FeatureGroup, SequenceGroup, plan_groups


def tables(plan):
    return {table.name: table for table in plan.tables}


# --- tables ---


def test_features_of_one_embedding_name_share_a_table(specs):
    features = [specs.sparse("a", embedding_name="t"), specs.sparse("b", embedding_name="t")]
    plan = plan_groups([FeatureGroup("deep", ["a", "b"])], features)
    assert list(tables(plan)) == ["t"]
    assert [lookup.key for lookup in plan.lookups] == ["a", "b"]


def test_one_feature_in_two_groups_is_looked_up_once(specs):
    groups = [FeatureGroup("deep", ["a", "b"]), FeatureGroup("fm", ["b", "a"])]
    plan = plan_groups(groups, [specs.sparse("a"), specs.sparse("b")])
    assert len(plan.lookups) == 2
    assert plan.rows["fm"].lookups == ("b", "a")


def test_suffix_and_wide_give_tables_of_their_own(specs):
    groups = [
        FeatureGroup("deep", ["a"]),
        FeatureGroup("other", ["a"], embedding_name_suffix="o"),
        FeatureGroup("wide", ["a"], "WIDE"),
    ]
    features = [specs.sparse("a", 8, embedding_name="t", init_fn="nn.init.zeros_")]
    plan = plan_groups(groups, features, wide_embedding_dim=3, wide_init_fn="nn.init.ones_")
    made = tables(plan)
    assert {name: (t.dim, t.init_fn) for name, t in made.items()} == {
        "t": (8, "nn.init.zeros_"),
        "t_o": (8, "nn.init.zeros_"),
        "t_wide": (3, "nn.init.ones_"),
    }
    assert {lookup.table for lookup in plan.lookups} == set(made)
    assert len({lookup.name for lookup in plan.lookups}) == 3


def test_a_wide_table_keeps_the_features_initialiser_by_default(specs):
    plan = plan_groups([FeatureGroup("wide", ["a"], "WIDE")], [specs.sparse("a", init_fn="nn.init.zeros_")])
    assert tables(plan)["a_wide"].init_fn == "nn.init.zeros_"


def test_options_of_a_feature_reach_its_table_and_lookup(specs):
    spec = specs.sparse("a", pooling="mean", data_type="FP16", trainable=False, storage="COMPACT")
    plan = plan_groups([FeatureGroup("deep", ["a"])], [spec])
    assert (plan.tables[0].data_type, plan.tables[0].trainable, plan.tables[0].storage) == (
        "FP16",
        False,
        "COMPACT",
    )
    assert plan.lookups[0].pooling == "mean"


def test_constraints_of_a_shared_table_reach_it_and_must_agree(specs):
    one = ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["fused"])
    other = ParameterConstraints(sharding_types=["row_wise"])
    features = [specs.sparse(n, embedding_name="t", embedding_constraints=one) for n in "ab"]
    plan = plan_groups([FeatureGroup("deep", ["a", "b"])], features)
    assert [(t.sharding_types, t.compute_kernels) for t in plan.tables] == [(("row_wise",), ("fused",))]
    features.append(specs.sparse("c", embedding_name="t", embedding_constraints=other))
    with pytest.raises(ConfigError, match=r"cannot share table 't': compute_kernels \('fused',\) and \(\)"):
        plan_groups([FeatureGroup("deep", ["a", "c"])], features)


def test_lookups_of_a_width_stand_together(specs):
    features = [specs.sparse(n, d) for n, d in [("a", 4), ("b", 8), ("c", 4), ("d", 8)]]
    plan = plan_groups([FeatureGroup("deep", "abcd")], features)
    assert plan.rows["deep"].lookups == ("a", "c", "b", "d")
    assert list(plan.rows["deep"].widths.values()) == [4, 4, 8, 8]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([FeatureGroup("deep", ["aa"])], "no feature 'aa'; did you mean 'a'"),
        ([FeatureGroup("deep", [])], "feature_names is empty"),
        ([FeatureGroup("deep", ["a", "a"])], "listed twice"),
        ([FeatureGroup("deep", ["a"]), FeatureGroup("deep", ["b"])], "two groups are called 'deep'"),
        ([FeatureGroup("deep", ["a", "narrow"])], "cannot share table 'a': dim 4 and 2"),
        ([FeatureGroup("deep", ["a"], "WIDER")], "group_type must be one of"),
        ([FeatureGroup("wide", ["x"], "WIDE")], "dense feature 'x' cannot be in a WIDE group"),
        ([FeatureGroup("s", ["a"], "SEQUENCE")], "has no sequence feature"),
        ([FeatureGroup("deep", ["empty"])], "has 0 rows of width 4"),
        (
            [FeatureGroup("one", ["a"], embedding_name_suffix="o"), FeatureGroup("two", ["a_o"])],
            "choose another suffix",
        ),
        ([FeatureGroup("deep", ["a"], sequences=[SequenceGroup("s", ["h"])])], "has no sequence_encoder"),
        ([FeatureGroup("deep", ["a"], encoders=[EncoderSpec("pooling_encoder", "s")])], "it has none"),
        (
            [FeatureGroup("w", ["a"], "WIDE", sequences=[SequenceGroup("s", ["h"])])],
            "belong in DEEP groups only",
        ),
        (
            [
                FeatureGroup(
                    "deep",
                    ["a"],
                    sequences=[SequenceGroup("s", ["h"])],
                    encoders=[EncoderSpec("pooling_encoder", "", name="a")],
                )
            ],
            "two fields are called 'a'",
        ),
        (
            [FeatureGroup("w", ["a"], "WIDE", combine="SUM")],
            "combine: SUM belongs in DEEP groups only, got WIDE",
        ),
        ([FeatureGroup("s", ["h"], "SEQUENCE", combine="SUM")], "DEEP groups only, got SEQUENCE"),
        ([FeatureGroup("deep", ["a"], combine="MEAN")], "combine must be one of CONCAT, SUM, got MEAN"),
    ],
)
def test_refusals(groups, message, specs):
    features = [
        specs.sparse("a"),
        specs.sparse("b"),
        specs.sparse("narrow", 2, embedding_name="a"),
        specs.sparse("a_o"),
        specs.sparse("empty", rows=0),
        specs.dense("x"),
        specs.sparse("h", sequence=True),
    ]
    with pytest.raises(ConfigError, match=message):
        plan_groups(groups, features)


def test_all_problems_are_told_at_once(specs):
    with pytest.raises(ConfigError) as caught:
        plan_groups([FeatureGroup("deep", ["p", "q"])], [specs.sparse("a")])
    assert len(caught.value.problems) == 2


def test_an_encoder_that_does_not_fit_is_told_with_its_place(specs):
    groups = [
        FeatureGroup(
            "deep",
            ["a"],
            sequences=[SequenceGroup("s", ["h"])],
            encoders=[EncoderSpec("din_encoder", "s", {"attn_mlp": {"hidden_units": [2]}})],
        )
    ]
    with pytest.raises(ConfigError, match=r"feature_groups\[deep\].sequence_encoders.*needs a query"):
        FeatureGroups(groups, [specs.sparse("a"), specs.sparse("h", sequence=True)])


# --- inputs ---


@pytest.fixture
def run(plain_engine, batch_of):
    """The inputs that groups make of a random batch, with the engine that they came from."""

    def go(groups, features, seed=0, rows=5, alter=lambda batch: batch):
        made = FeatureGroups(groups, features).double()
        plan = made.plan
        engine = None
        if plan.tables:
            keys = {"keys": made.ids.keys, "sequence_keys": made.ids.sequence_keys}
            engine = plain_engine(plan.tables, plan.lookups, **keys).double()
        batch = alter(batch_of(features, rows, seed, double=True))
        parts = made.gather(batch, engine)
        return made, engine, batch, made(parts)

    return go


def test_columns_are_raw_then_dense_embeddings_then_lookups(specs, run):
    features = [
        specs.sparse("a"),
        specs.dense("x", 2),
        specs.dense("u", embedding_dim=3, dense_embedding=AutoDisEmbedding(num_channels=4)),
        specs.sparse("b", 5),
        specs.dense("y"),
        specs.dense("v", 2, embedding_dim=3, dense_embedding=MLPEmbedding()),
        specs.dense("w", embedding_dim=3, dense_embedding=AutoDisEmbedding(num_channels=4)),
    ]
    order = ["a", "u", "y", "b", "v", "x", "w"]
    made, engine, batch, inputs = run([FeatureGroup("deep", order)], features)
    assert made.widths("deep") == {"y": 1, "x": 2, "u": 3, "v": 3, "w": 3, "a": 4, "b": 5}
    assert made.dim("deep") == inputs["deep"].shape[1] == 21
    # Features of equal settings run as one module, each with weights of its own.
    (autodis, mlp) = made.dense_embeddings
    both = autodis(torch.cat([batch.dense["u"], batch.dense["w"]], dim=1))
    ids = {n: engine.tables[n][batch.sparse[n].values] for n in "ab"}
    expected = [
        batch.dense["y"],
        batch.dense["x"],
        both[:, :3],
        mlp(batch.dense["v"]),
        both[:, 3:],
        ids["a"],
        ids["b"],
    ]
    torch.testing.assert_close(inputs["deep"], torch.cat(expected, dim=1))


def test_dense_columns_side_by_side_are_a_view(specs, run):
    features = [specs.dense("x"), specs.dense("y", 2), specs.dense("z")]
    _, _, batch, inputs = run([FeatureGroup("deep", ["x", "y"])], features)
    assert inputs["deep"].data_ptr() == batch.dense.values.data_ptr()


def test_a_feature_of_two_groups_is_one_tensor(specs, run):
    """So that its gradient is one as well."""
    groups = [FeatureGroup("deep", ["a", "b"]), FeatureGroup("fm", ["a", "b"])]
    _, _, _, inputs = run(groups, [specs.sparse("a"), specs.sparse("b")])
    assert inputs["deep"].data_ptr() == inputs["fm"].data_ptr()


@pytest.mark.parametrize("kind", ["SEQUENCE", "JAGGED_SEQUENCE"])
def test_sequence_groups_have_query_sequence_and_lengths(kind, specs, run):
    features = [
        specs.sparse("a"),
        specs.dense("x"),
        specs.sparse("h__i", sequence=True, sequence_name="h", embedding_name="a"),
        specs.dense("h__p", 2, sequence=True, sequence_name="h"),
        specs.dense(
            "h__q", sequence=True, sequence_name="h", embedding_dim=3, dense_embedding=MLPEmbedding()
        ),
    ]
    names = ["h__q", "h__p", "x", "h__i", "a"]
    made, engine, batch, inputs = run([FeatureGroup("hist", names, kind)], features)
    assert (made.query_dim("hist"), made.sequence_dim("hist")) == (5, 9)
    query = torch.cat([batch.dense["x"], engine.tables["a"][batch.sparse["a"].values]], dim=1)
    torch.testing.assert_close(inputs.sequences["hist"].query, query)
    (mlp,) = made.dense_embeddings
    sequence = [
        engine.tables["a"][batch.sequence_sparse["h__i"].values],
        batch.sequence_dense["h__p"].values,
        mlp(batch.sequence_dense["h__q"].values),
    ]
    torch.testing.assert_close(inputs.sequences["hist"].sequence, torch.cat(sequence, dim=1))
    assert torch.equal(inputs.sequences["hist"].lengths, batch.sequence_lengths["h__i"])


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_a_sequence_feature_in_a_deep_group_is_pooled(pooling, specs, run):
    features = [
        specs.sparse("h__i", sequence=True, sequence_name="h", pooling=pooling),
        specs.dense("h__p", 2, sequence=True, sequence_name="h", pooling=pooling),
        specs.sparse("a"),
    ]
    made, engine, batch, inputs = run([FeatureGroup("deep", ["h__p", "h__i", "a"])], features)
    assert made.widths("deep") == {"a": 4, "h__p": 2, "h__i": 4}
    lengths = batch.sequence_lengths["h__i"].tolist()
    price = batch.sequence_dense["h__p"].values.split(lengths)
    item = engine.tables["h__i"][batch.sequence_sparse["h__i"].values].split(lengths)
    for row, n in enumerate(lengths):
        by = max(n, 1) if pooling == "mean" else 1
        expected = torch.cat([price[row].sum(0) / by, item[row].sum(0) / by])
        torch.testing.assert_close(inputs["deep"][row, 4:], expected)


def test_encoders_append_their_columns(specs, run):
    features = [specs.sparse("a"), specs.sparse("h", sequence=True)]
    groups = [
        FeatureGroup(
            "deep",
            ["a"],
            sequences=[SequenceGroup("s", ["a", "h"], "own")],
            encoders=[
                EncoderSpec("pooling_encoder", "s", {"pooling_type": "sum"}),
                EncoderSpec("simple_attention", "s", name="attended"),
            ],
        )
    ]
    made, engine, batch, inputs = run(groups, features)
    assert made.widths("deep") == {"a": 4, "deep_seq_encoder_0": 4, "attended": 4}
    assert set(engine.tables) == {"a", "a_own", "h_own"}
    lengths = batch.sequence_lengths["h"].tolist()
    positions = engine.tables["h_own"][batch.sequence_sparse["h"].values].split(lengths)
    query = engine.tables["a_own"][batch.sparse["a"].values]
    for row in range(5):
        s = positions[row]
        torch.testing.assert_close(inputs["deep"][row, 4:8], s.sum(0))
        torch.testing.assert_close(inputs["deep"][row, 8:], (s @ query[row]).softmax(0) @ s)


def test_a_sum_adds_all_fields(specs, run):
    features = [
        specs.sparse("a"),
        specs.sparse("bag", value_dim=0, pooling="mean"),
        specs.dense("x", 4),
        specs.dense("u", embedding_dim=4, dense_embedding=MLPEmbedding()),
        specs.sparse("h", sequence=True, pooling="sum"),
    ]
    encoder = EncoderSpec("pooling_encoder", "s", {"pooling_type": "mean"})
    parts = {"sequences": [SequenceGroup("s", ["h"])], "encoders": [encoder]}
    names = ["a", "bag", "x", "u", "h"]
    beside, engine, batch, wide = run([FeatureGroup("deep", names, **parts)], features)
    summed = FeatureGroups([FeatureGroup("deep", names, **parts, combine="SUM")], features).double()
    summed.load_state_dict(beside.state_dict())
    assert len(beside.widths("deep")) == 6
    assert (summed.widths("deep"), summed.dim("deep"), summed.field_dim("deep")) == ({"deep": 4}, 4, 4)
    inputs = summed(summed.gather(batch, engine))
    torch.testing.assert_close(inputs["deep"], wide["deep"].reshape(5, 6, 4).sum(1))


def test_a_sum_of_one_field_is_that_field(specs, run):
    _, _, _, inputs = run([FeatureGroup("deep", ["a"], combine="SUM")], [specs.sparse("a")])
    _, _, _, plain = run([FeatureGroup("deep", ["a"])], [specs.sparse("a")])
    assert torch.equal(inputs["deep"], plain["deep"])


def test_fields_of_several_widths_are_not_added(specs):
    features = [specs.sparse("a"), specs.sparse("b", 8), specs.dense("x")]
    what = (
        r"feature_groups\[deep\]: combine: SUM needs features of equal width, got 'x' 1, 'a' 4, 'b' 8; "
        "give them one embedding_dim"
    )
    with pytest.raises(ConfigError, match=what):
        FeatureGroups([FeatureGroup("deep", ["a", "b", "x"], combine="SUM")], features)


def test_sequences_of_one_group_must_be_equally_long(specs, run):
    features = [specs.sparse("h", sequence=True), specs.sparse("k", sequence=True)]
    with pytest.raises(DataError, match="different lengths"):
        run([FeatureGroup("s", ["h", "k"], "SEQUENCE")], features)


def test_a_missing_dense_feature_is_told(specs, run, batch_of):
    features = [specs.dense("x"), specs.dense("y")]
    with pytest.raises(DataError, match="no dense feature y"):
        run([FeatureGroup("deep", ["x", "y"])], features, alter=lambda b: batch_of(features[:1], 3))


def test_align_orders_keys_and_fills_missing_ones():
    ids = KeyedJagged(
        ("b", "a"),
        torch.tensor([5, 6, 7]),
        torch.tensor([1, 1, 0, 1], dtype=torch.int32),
        (2, 2),
        torch.tensor([0.5, 0.6, 0.7]),
    )
    aligned = align(ids, ("a", "c", "b"), 2)
    assert aligned.keys == ("a", "c", "b")
    assert aligned.values.tolist() == [7, 5, 6]
    assert aligned.lengths.tolist() == [0, 1, 0, 0, 1, 1]
    assert aligned.bag_counts == (2, 2, 2)
    torch.testing.assert_close(aligned.weights, torch.tensor([0.7, 0.5, 0.6]))
    assert not aligned.single
    assert align(aligned, ("a", "c", "b"), 2) is aligned


def test_dense_embeddings_refuse_what_they_cannot_embed(specs):
    wide = specs.dense("x", 2, embedding_dim=3, dense_embedding=AutoDisEmbedding(num_channels=2))
    with pytest.raises(ConfigError, match="autodis needs value_dim 1"):
        FeatureGroups([FeatureGroup("deep", ["x"])], [wide])
    flat = specs.dense("x", dense_embedding=MLPEmbedding())
    with pytest.raises(ConfigError, match="embedding_dim of at least 1"):
        FeatureGroups([FeatureGroup("deep", ["x"])], [flat])


def test_parts_name_their_tensors_and_take_others(specs, batch_of):
    features = [
        specs.dense("x"),
        specs.dense("u", embedding_dim=3, dense_embedding=MLPEmbedding()),
        specs.dense("h__p", 2, sequence=True, sequence_name="h"),
        specs.dense("k", sequence=True, embedding_dim=3, dense_embedding=MLPEmbedding()),
    ]
    groups = [FeatureGroup("deep", ["x", "u", "h__p"]), FeatureGroup("seq", ["k"], "SEQUENCE")]
    made = FeatureGroups(groups, features).double()
    parts = made.gather(batch_of(features, 5, double=True), None)
    assert sorted(parts.tensors()) == [
        "numbers.0",
        "rows.deep.pooled.0.lengths",
        "rows.deep.pooled.0.values",
        "rows.deep.raw",
        "sequences.seq.lengths",
        "sequences.seq.numbers.0",
    ]
    twice = parts.replaced({**parts.tensors(), "rows.deep.raw": parts.tensors()["rows.deep.raw"] * 2})
    torch.testing.assert_close(made(twice)["deep"][:, :1], made(parts)["deep"][:, :1] * 2)
    torch.testing.assert_close(made(twice)["deep"][:, 1:], made(parts)["deep"][:, 1:])
