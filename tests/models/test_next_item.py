"""sasrec and hstu: what they learn at which position, against plain loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from google.protobuf import text_format
from torch.nn import functional as F

from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.data.batch import Batch, JaggedDense, KeyedDense, KeyedJagged, NextItems
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.errors import ConfigError, DataError
from recgrad.models.build import build_model
from recgrad.training.task import Task

ITEMS, DIM = 9, 4
ID = {"kind": Kind.SPARSE, "num_rows": ITEMS, "embedding_dim": DIM, "embedding_name": "item"}
FEATURES = (
    FeatureSpec("item", **ID),
    FeatureSpec("seen__item", sequence=True, sequence_name="seen", **ID),
    FeatureSpec("seen__time", Kind.DENSE, sequence=True, sequence_name="seen"),
    FeatureSpec("now", Kind.DENSE, data_type="FP64"),
)
GROUPS = """
feature_groups { group_name: "seen" feature_names: "seen__item" group_type: JAGGED_SEQUENCE }
feature_groups { group_name: "item" feature_names: "item" group_type: DEEP }
"""
TIMES = """
feature_groups { group_name: "times" feature_names: "seen__time" group_type: JAGGED_SEQUENCE }
feature_groups { group_name: "now" feature_names: "now" group_type: DEEP }
"""
COMMON = 'input: "seen" item_tower { input: "item" } max_seq_len: 4 dropout_ratio: 0'
TIMED = 'time_input: "times" request_time_input: "now"'
SASREC = f"{GROUPS} sasrec {{ {COMMON} EXTRA }}"
MODELS = {
    "sasrec": SASREC,
    "hstu": f"{GROUPS} {TIMES} hstu {{ {COMMON} {TIMED} EXTRA }}",
    "masked": f"{GROUPS} sasrec {{ {COMMON} training: MASKED_ITEM mask_ratio: 0.5 norm: POST EXTRA }}",
}
HISTORIES = [[1, 2, 3], [4], [5, 6, 7, 8, 1, 2], [3, 3]]
OWN = [8, 7, 3, 1]
LOSS = "losses { full_softmax {} }"


def make(name, extra="", loss=LOSS, seed=0):
    config = text_format.Parse(MODELS[name].replace("EXTRA", extra) + loss, ModelConfig())
    model = build_model(config, FEATURES, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


def ids_of(key, values):
    values = torch.tensor(values)
    ones = torch.ones(len(values), dtype=torch.int32)
    return KeyedJagged((key,), values, ones, (len(values),), None, True)


def rows(histories=HISTORIES, own=OWN, drawn=None, training=True):
    """A batch, with all items as negatives, or the items of events and those drawn."""
    lengths = torch.tensor([len(history) for history in histories], dtype=torch.int32)
    flat = [item for history in histories for item in history]
    times = torch.cat([1.7e9 + 1000.0 * torch.arange(n, dtype=torch.float64) ** 2 for n in lengths.tolist()])
    events = torch.tensor(
        [item for history, one in zip(histories, own, strict=True) for item in [*history, one]]
    )
    negatives, known = list(range(ITEMS)), NextItems(events, lengths.long())
    if drawn is not None:
        unique, places = events.unique(return_inverse=True)
        same = (unique[:, None] == torch.tensor(drawn)).nonzero()
        counts = torch.linspace(-1, 1, len(drawn))
        known = NextItems(places, lengths.long(), len(unique), same, counts)
        negatives = [*unique.tolist(), *drawn]
    size = len(histories)
    return Batch(
        size,
        KeyedDense(("now",), (1,), torch.zeros(size, 1)),
        ids_of("item", own),
        {"seen__item": lengths, "seen__time": lengths},
        ids_of("seen__item", flat),
        {"seen__time": JaggedDense(times.unsqueeze(1), lengths)},
        negatives=empty_rows(ids_of("item", negatives)) if training else None,
        next_items=known if training else None,
        precise={"now": torch.full((size,), 1.7e9 + 50_000, dtype=torch.float64)},
    )


def empty_rows(ids):
    size = len(ids.values)
    none = torch.zeros(0)
    return Batch(
        size, KeyedDense((), (), torch.zeros(size, 0)), ids, sequence_sparse=None, precise={"x": none}
    )


def items_of(model):
    with torch.no_grad():
        return model.embed(empty_rows(ids_of("item", range(ITEMS))), "item")


def users(model, histories, **more):
    """The vector after each history, one at a time."""
    out = []
    for history in histories:
        with torch.no_grad():
            out.append(model.embed(rows([history], [0], training=False, **more), "user")[0])
    return torch.stack(out)


def prefixes():
    """Every (history, what came next); a model looks at the last four events."""
    for history, own in zip(HISTORIES, OWN, strict=True):
        whole = [*history, own]
        for end in range(max(1, len(history) - 3), len(history) + 1):
            yield history[max(0, len(history) - 4) : end], whole[end]


def test_every_position_learns_what_comes_next_among_all_items():
    """As if each beginning of a history were a row of its own."""
    model = make("sasrec", "similarity: COSINE temperature: 0.5").eval()
    model.train()
    task = Task(model)
    batch = rows()
    loss = task.losses(task(batch), batch)["total"]
    _, wanted = zip(*prefixes(), strict=True)
    outputs = task(batch)
    assert outputs["rows"].tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 3, 3]
    h, items = outputs["users"], items_of(model)
    expected = F.cross_entropy(h @ items.T, torch.tensor(wanted))
    torch.testing.assert_close(loss, expected)
    assert outputs["own"].tolist() == list(wanted)
    ends = [2, 3, 7, 9]
    model.eval()
    torch.testing.assert_close(h[ends], users(model, HISTORIES) / 0.5)


def test_positions_of_hstu_are_beginnings_of_histories():
    """Places count from the oldest, and times are those of the item that comes next."""
    model = make("hstu")
    outputs = model(rows([[1, 2, 3, 5]], [8]))
    model.eval()
    for end in range(1, 5):
        batch = rows([[1, 2, 3, 5][:end]], [0], training=False)
        if end < 4:
            then = torch.tensor([1.7e9 + 1000.0 * end**2], dtype=torch.float64)
            batch = replace(batch, precise={"now": then})
        with torch.no_grad():
            vector = model.embed(batch, "user")[0]
        torch.testing.assert_close(outputs["users"][end - 1], vector / 0.05, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["sasrec", "hstu"])
def test_nothing_that_comes_later_is_seen(name):
    model = make(name)
    changed = [[1, 2, 7], [4], [5, 6, 7, 8, 1, 4], [3, 5]]
    before, after = model(rows())["users"], model(rows(changed))["users"]
    same = torch.tensor([1, 1, 0, 1, 1, 1, 1, 0, 1, 0], dtype=torch.bool)
    assert torch.equal(before[same], after[same])
    assert not torch.isclose(before[~same], after[~same]).all(1).any()


@pytest.mark.parametrize("name", ["sasrec", "hstu", "masked"])
def test_the_newest_events_are_kept(name):
    model = make(name).eval()
    batch = rows([[5, 6, 7, 8, 1, 2]], [0], training=False)
    short = rows([[7, 8, 1, 2]], [0], training=False)
    times = batch.sequence_dense["seen__time"].values[2:]
    short = replace(
        short, sequence_dense={"seen__time": JaggedDense(times, short.sequence_lengths["seen__item"])}
    )
    with torch.no_grad():
        torch.testing.assert_close(model.embed(batch, "user"), model.embed(short, "user"))


def test_drawn_items_are_corrected_and_never_the_own_one():
    loss = "losses { softmax_cross_entropy { log_q_correction: true } }"
    model, drawn = make("sasrec", loss=loss), [0, 3, 8, 3, 6]
    batch = rows(drawn=drawn)
    outputs = model(batch)
    _, wanted = zip(*prefixes(), strict=True)
    items = items_of(model)
    full = make("sasrec")(rows())["users"]
    expected = torch.cat([(full * items[list(wanted)]).sum(1, keepdim=True), full @ items[drawn].T], dim=1)
    for position, own in enumerate(wanted):
        for place, item in enumerate(drawn):
            if item == own:
                expected[position, 1 + place] = -torch.inf
    torch.testing.assert_close(outputs["logits"], expected)
    torch.testing.assert_close(outputs["corrected"][:, 1:], expected[:, 1:] - batch.next_items.log_counts)
    task = Task(model)
    total = task.losses(task(batch), batch)["total"]
    torch.testing.assert_close(
        total, F.cross_entropy(outputs["corrected"], torch.zeros(10, dtype=torch.long))
    )


def test_hidden_items_and_the_last_one_are_told():
    torch.manual_seed(4)
    model = make("masked")
    outputs = model(rows())
    # As many positions as were hidden of the last four, and one for each row's own item.
    torch.manual_seed(4)
    hidden = torch.rand(10) < 0.5
    kept = [[1, 2, 3], [4], [7, 8, 1, 2], [3, 3]]
    flat = iter(hidden.tolist())
    wanted = []
    for history, own in zip(kept, OWN, strict=True):
        wanted += [item for item in history if next(flat)] + [own]
    assert 4 < len(wanted) < 14
    assert outputs["own"].tolist() == wanted
    # A hidden item has no influence, another one has, on both sides.
    model.eval()
    assert not torch.equal(*users(model, [[1, 2, 3], [1, 5, 3]]))


def test_an_empty_history_is_one_position_of_a_default_value_or_none():
    model = make("sasrec")
    batch = rows([[1, 2], [0]], [3, 4])
    known = replace(batch.next_items, items=torch.tensor([1, 2, 3, 4]), lengths=torch.tensor([2, 0]))
    outputs = model(replace(batch, next_items=known))
    assert outputs["own"].tolist() == [2, 3, 4]
    nothing = rows([[1, 2], []], [3, 4])
    assert model(nothing)["own"].tolist() == [2, 3]
    model.eval()
    assert not model.embed(rows([[], [1]], [3, 4], training=False), "user")[0].any()


def test_sample_weights_are_of_rows():
    model = make("sasrec")
    task = Task(model, sample_weight_fields=["w"])
    weights = torch.tensor([1.0, 2.0, 0.0, 3.0])
    batch = replace(rows(), sample_weights={"w": weights})
    outputs = task(batch)
    values = F.cross_entropy(outputs["users"] @ outputs["items"].T, outputs["own"], reduction="none")
    by_position = weights[outputs["rows"]]
    expected = (values * by_position).sum() / by_position.sum()
    torch.testing.assert_close(task.losses(outputs, batch)["total"], expected)


def test_lengths_that_differ_are_refused():
    batch = rows()
    wrong = replace(batch, next_items=replace(batch.next_items, lengths=torch.tensor([3, 1, 5, 2])))
    with pytest.raises(DataError, match="a history has 5 items and 6 positions"):
        make("sasrec")(wrong)


@pytest.mark.parametrize(
    ("name", "extra", "message"),
    [
        ("sasrec", "num_heads: 3", "num_heads must divide the width of positions, 4"),
        ("sasrec", "similarity: EUCLID", "similarity must be COSINE or INNER_PRODUCT"),
        ("sasrec", "mask_ratio: 2", "mask_ratio must be in"),
        ("sasrec", "num_layers: 0", "num_layers must be at least 1"),
    ],
)
def test_settings_without_meaning_are_refused(name, extra, message):
    with pytest.raises(ConfigError, match=message):
        make(name, extra)


def test_times_of_hstu_are_both_given_and_numbers():
    for now, message in (("", "go together"), ("item", "group 'item' of times must be one raw_feature")):
        text = MODELS["hstu"].replace("EXTRA", "") + LOSS
        text = text.replace('request_time_input: "now"', f'request_time_input: "{now}"')
        config = text_format.Parse(text, ModelConfig())
        read = [group for group in config.feature_groups if group.group_name != "now"]
        del config.feature_groups[:]
        config.feature_groups.extend(read)
        with pytest.raises(ConfigError, match=message):
            build_model(config, FEATURES)
