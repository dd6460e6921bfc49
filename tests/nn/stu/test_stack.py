"""The parts of the schema's HSTU against their formulas, row by row and token by token in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from recgrad.nn.attention import Mask
from recgrad.nn.jagged import Segments
from recgrad.nn.stu.inputs import Events, HSTUInput
from recgrad.nn.stu.positional import PositionalEncoder
from recgrad.nn.stu.stack import HSTU
from recgrad.nn.stu.tokens import Tokens

DU, DC, D, CONTEXTS, WIDTH = 5, 7, 8, 2, 3
ACTIONS = {
    "action_embedding_dim": 3,
    "action_weights": [1, 4],
    "watchtime_to_action_thresholds": [30],
    "watchtime_to_action_weights": [8],
}


def stack(preprocessor="contextual_preprocessor", candidates=True, dtype=torch.float64, **changes):
    given = {
        "stu": {
            "embedding_dim": D,
            "num_heads": 2,
            "hidden_dim": 4,
            "attention_dim": 3,
            "output_dropout_ratio": 0.0,
            **changes.pop("stu", {}),
        },
        "positional_encoder": {"num_position_buckets": 20, **changes.pop("positional_encoder", {})},
        "output_postprocessor": changes.pop("output_postprocessor", {"layernorm_postprocessor": {}}),
        "max_seq_len": 16,
        "input_dropout_ratio": 0.0,
        "attn_num_layers": 2,
        "contextual": (CONTEXTS, WIDTH),
        "history_dim": DU,
        "candidate_dim": DC if candidates else 0,
    }
    parts = {
        "action_encoder": {"simple_action_encoder": ACTIONS},
        "action_mlp": {"simple_mlp": {"hidden_dim": 6}},
        "content_encoder": {"slice_content_encoder": {}},
        "content_mlp": {"simple_mlp": {"hidden_dim": 6}},
        **changes.pop("parts", {}),
    }
    if not candidates:
        parts = {key: value for key, value in parts.items() if key.startswith("action")}
    parts = {key: value for key, value in parts.items() if value is not None}
    torch.manual_seed(0)
    model = HSTU(input_preprocessor={preprocessor: parts}, **{**given, **changes})
    with torch.no_grad():
        for parameter in model.parameters():  # no bias stays 0, no weight of a norm 1
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return model.to(dtype).train()


def rows(history=(4, 0, 7, 1), candidates=(2, 3, 1, 2), dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)

    def events(lengths, width, start):
        count = sum(lengths)
        segments = Segments.from_lengths(torch.tensor(lengths), count)
        gaps = torch.randint(1, 4000, (count,), generator=rng).double()
        times = 1.7e9 + start + torch.cat([g.cumsum(0) for g in gaps.split(list(lengths))])
        actions = torch.randint(0, 16, (count,), generator=rng)
        watched = torch.randint(0, 60, (count,), generator=rng).to(dtype)
        values = torch.randn(count, width, generator=rng).to(dtype)
        return Events(values, times, segments, actions, watched)

    context = torch.randn(len(history), CONTEXTS * WIDTH, generator=rng).to(dtype)
    return HSTUInput(events(history, DU, 0), events(candidates, DC, 50_000), context)


# --- the formulas, of one row ---


def norm(x, eps=1e-5, weight=1.0, bias=0.0):
    mean = x.mean()
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean() + eps) * weight + bias


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def simple_mlp(p, at, x):
    """LN(W₂·swishLN(W₁·x + b₁) + b₂)."""
    h = p[f"{at}.layers.0.weight"] @ x + p[f"{at}.layers.0.bias"]
    h = h * sigmoid(norm(h, weight=p[f"{at}.layers.1.norm.weight"], bias=p[f"{at}.layers.1.norm.bias"]))
    out = p[f"{at}.layers.2.weight"] @ h + p[f"{at}.layers.2.bias"]
    return norm(out, weight=p[f"{at}.layers.3.weight"], bias=p[f"{at}.layers.3.bias"])


def parameterized_mlp(p, at, x, context):
    h = p[f"{at}.compress.weight"] @ context + p[f"{at}.compress.bias"]
    matrix = (p[f"{at}.attention.weight"] @ h + p[f"{at}.attention.bias"]).reshape(len(x), D)
    matrix = norm(matrix, weight=p[f"{at}.attention_norm.weight"], bias=p[f"{at}.attention_norm.bias"])
    r = p[f"{at}.residual.0.weight"] @ h + p[f"{at}.residual.0.bias"]
    r = r * sigmoid(norm(r, weight=p[f"{at}.residual.1.norm.weight"], bias=p[f"{at}.residual.1.norm.bias"]))
    return x @ matrix + p[f"{at}.residual.2.weight"] @ r + p[f"{at}.residual.2.bias"]


def mlp(p, at, x, context, kind):
    return simple_mlp(p, at, x) if kind == "simple_mlp" else parameterized_mlp(p, at, x, context)


def action_vector(p, action, watched):
    table, bits = p["preprocessor.actions.table"], [1, 4, 8]
    action |= 8 if watched >= 30 else 0
    return np.concatenate([table[k] * (action & bit > 0) for k, bit in enumerate(bits)])


def sees(i, j, length, targets, c, w, k1=0, k2=0):
    h = length - targets
    if k1 or k2:
        k = max(k2, c)
        return j < h if i >= h else j < min(i + 1, k) or max(i - k1 + 1, k) <= j < i + 1
    m = h - c + 1 if c else h
    a, b = (min(max(x - c + 1, 0) if c else x, m) for x in (i, j))
    return ((i == j or a > b) and (w == 0 or a - b <= w)) or (c > 0 and a == 0 and b < m)


def stu(p, at, x, targets, c, settings, divisor=16.0):
    heads, dv, dq = 2, 4, 3
    uvqk = []
    for token in x:
        y = norm(token, 1e-6, p[f"{at}.input_norm.weight"], p[f"{at}.input_norm.bias"])
        uvqk.append(p[f"{at}.uvqk.weight"] @ y + p[f"{at}.uvqk.bias"])
    out = []
    for i in range(len(x)):
        u = uvqk[i][: heads * dv] * sigmoid(uvqk[i][: heads * dv])
        o = np.zeros(heads * dv)
        for j in range(len(x)):
            if not sees(i, j, len(x), targets, c, *settings["window"]):
                continue
            for head in range(heads):
                q = uvqk[i][2 * heads * dv :][: heads * dq][head * dq : (head + 1) * dq]
                k = uvqk[j][2 * heads * dv + heads * dq :][head * dq : (head + 1) * dq]
                v = uvqk[j][heads * dv + head * dv : heads * dv + (head + 1) * dv]
                s = (settings["alpha"] or dq**-0.5) * (q @ k)
                o[head * dv : (head + 1) * dv] += s * sigmoid(s) / divisor * v
        weight, bias = p[f"{at}.output_norm.weight"], p[f"{at}.output_norm.bias"]
        if settings["group_norm"]:
            normed = [norm(o[h * dv : (h + 1) * dv], 1e-6, weight[h], bias[h]) for h in range(heads)]
            normed = np.concatenate(normed)
        else:
            normed = norm(o, 1e-6, weight, bias)
        out.append(x[i] + p[f"{at}.output.weight"] @ np.concatenate([u, o, u * normed]))
    return out


def encode_positions(p, x, times, targets, c, settings):
    length, last = len(x), len(p["positional.positions"]) - 1
    h = length - targets
    out = []
    for col in range(length):
        place = min(col, min(h, last))
        vector = math.sqrt(D) * x[col]
        if settings["time"]:
            place = col if col < c else min(c + h - min(col, h), last)
            buckets, increments, function = settings["time"]
            apart = max(settings.get("anchor", times[-1]) - times[col], 1e-6) / increments
            value = {"sqrt": math.sqrt, "log": math.log}[function](apart)
            vector = vector + p["positional.times"][int(min(max(value / buckets, 0), 1) * buckets)]
        out.append(vector + p["positional.positions"][place])
    return out


def reference(model, given, settings, train=True):
    """Outputs of candidates (or of all tokens) of all rows."""
    p = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    outputs = []
    for row in range(len(given.history.segments.lengths)):

        def of(events, row=row):
            chosen = (events.segments.rows == row).numpy()
            parts = (events.values, events.times, events.actions, events.watch_times)
            return list(zip(*(part.numpy()[chosen] for part in parts), strict=True))

        context = given.contextual[row].double().numpy()
        weight, bias = p["preprocessor.contextual_tokens.weight"], p["preprocessor.contextual_tokens.bias"]
        c = CONTEXTS
        x = [context[k * WIDTH : (k + 1) * WIDTH] @ weight[k] + bias[k, 0] for k in range(c)]
        times = [0.0] * c
        content, action = settings["content_mlp"], settings["action_mlp"]
        candidates = [] if given.candidates is None else of(given.candidates)
        for events, is_history in ((of(given.history), True), (candidates, False)):
            for value, time, act, watched in events:
                value = value.astype(np.float64)
                if settings["encoder"] == "linear":
                    token = p["preprocessor.linear.weight"] @ value + p["preprocessor.linear.bias"]
                else:
                    if settings["encoder"] == "slice":
                        value = value[:DU]
                    elif settings["encoder"] == "pad" and is_history:
                        value = np.concatenate([value, p["preprocessor.content.filler"][0]])
                    token = mlp(p, "preprocessor.content_mlp", value, context, content)
                acted = None
                if action:
                    vector = (
                        action_vector(p, int(act), watched)
                        if is_history
                        else p["preprocessor.actions.candidate"][0]
                    )
                    acted = mlp(p, "preprocessor.action_mlp", vector, context, action)
                if settings["interleaved"]:
                    turns = [token, acted] if is_history or train else [token]
                    x += turns
                    times += [time] * len(turns)
                else:
                    x.append(token if acted is None else token + acted)
                    times.append(time)
        per = 2 if settings["interleaved"] and train else 1
        targets = per * len(candidates)
        x = encode_positions(p, x, times, targets, c, settings)
        for layer in range(2):
            if layer == 1 and settings["tail"]:
                h = len(x) - targets
                keep = [i for i in range(len(x)) if i < c or i >= h - settings["tail"]]
                x, times = [x[i] for i in keep], [times[i] for i in keep]
            x = stu(p, f"layers.{layer}", x, targets, c, settings)
        first = len(x) - targets if given.candidates is not None else 0
        for i in range(first, len(x), per):
            outputs.append(finish(p, x[i], times[i], settings["finish"]))
    return np.stack(outputs)


def finish(p, x, time, kind):
    if kind == "l2":
        return x / max(np.linalg.norm(x), 1e-6)
    if kind == "time":
        waves = []
        for unit, period in ((3600, 24), (86400, 7)):
            angle = 2 * 3.14 * ((time // unit) % period) / period
            waves += [math.cos(angle), math.sin(angle)]
        x = p["postprocessor.linear.weight"] @ np.concatenate([x, waves]) + p["postprocessor.linear.bias"]
    return norm(x, weight=p["postprocessor.norm.weight"], bias=p["postprocessor.norm.bias"])


PLAIN = {
    "encoder": "slice",
    "content_mlp": "simple_mlp",
    "action_mlp": "simple_mlp",
    "interleaved": False,
    "window": (0,),
    "alpha": 0.0,
    "group_norm": False,
    "time": None,
    "tail": 0,
    "finish": "ln",
}
TIMED = {"use_time_encoding": True, "num_time_buckets": 50}
CASES = {
    "plain": ({}, {}),
    "no actions": ({"parts": {"action_encoder": None, "action_mlp": None}}, {"action_mlp": None}),
    "pad": ({"parts": {"content_encoder": {"pad_content_encoder": {}}}}, {"encoder": "pad"}),
    "parameterized": (
        {
            "parts": {
                name: {"parameterized_mlp": {"hidden_dim": 6, "contextual_dropout_ratio": 0.0}}
                for name in ("content_mlp", "action_mlp")
            }
        },
        {"content_mlp": "parameterized_mlp", "action_mlp": "parameterized_mlp"},
    ),
    "interleaved": (
        {"preprocessor": "contextual_interleave_preprocessor", "parts": {"enable_interleaving": True}},
        {"interleaved": True},
    ),
    "window": ({"stu": {"max_attn_len": 2}}, {"window": (2,)}),
    "semi-local": ({"stu": {"sla_k1": 2, "sla_k2": 1}}, {"window": (0, 2, 1)}),
    "alpha": ({"stu": {"attn_alpha": 0.7}}, {"alpha": 0.7}),
    "group norm": ({"stu": {"use_group_norm": True}}, {"group_norm": True}),
    "sqrt time": ({"positional_encoder": TIMED}, {"time": (50, 60, "sqrt")}),
    "log time": (
        {"positional_encoder": {**TIMED, "time_bucket_fn": "log", "time_bucket_increments": 7.0}},
        {"time": (50, 7, "log")},
    ),
    "truncation": (
        {"attn_truncation_split_layer": 1, "attn_truncation_tail_len": 3},
        {"tail": 3},
    ),
    "l2 norm": ({"output_postprocessor": {"l2norm_postprocessor": {}}}, {"finish": "l2"}),
    "times of day": (
        {
            "output_postprocessor": {
                "timestamp_layernorm_postprocessor": {
                    "time_duration_period_units": [3600, 86400],
                    "time_duration_units_per_period": [24, 7],
                }
            }
        },
        {"finish": "time"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_candidates_of_every_kind_of_stack(case):
    changes, settings = CASES[case]
    settings = {**PLAIN, **settings}
    model, given = stack(**changes), rows()
    expected = reference(model, given, settings)
    np.testing.assert_allclose(model(given).values.detach().numpy(), expected, rtol=1e-9, atol=1e-9)
    single = stack(**changes, dtype=torch.float32)
    got = single(rows(dtype=torch.float32)).values.detach().numpy()
    np.testing.assert_allclose(got, reference(single, rows(dtype=torch.float32), settings), atol=2e-4)


def test_candidates_have_one_token_each_when_evaluated():
    changes, settings = CASES["interleaved"]
    model, given = stack(**changes).eval(), rows()
    expected = reference(model, given, {**PLAIN, **settings}, train=False)
    np.testing.assert_allclose(model(given).values.detach().numpy(), expected, rtol=1e-9, atol=1e-9)


def test_the_history_alone():
    changes = {"positional_encoder": TIMED}
    model, given = stack("uih_preprocessor", candidates=False, **changes), rows()
    given = replace(given, candidates=None)
    settings = {**PLAIN, "encoder": "linear", "time": (50, 60, "sqrt")}
    tokens = model(given)
    expected = reference(model, given, settings)
    np.testing.assert_allclose(tokens.values.detach().numpy(), expected, rtol=1e-9, atol=1e-9)
    ends = tokens.segments.lengths.cumsum(0) - 1
    assert torch.equal(tokens.last(), tokens.values[ends])
    asked = replace(given, query_times=torch.full((4,), 1.8e9, dtype=torch.float64))
    expected = reference(model, asked, {**settings, "anchor": 1.8e9})
    np.testing.assert_allclose(model(asked).values.detach().numpy(), expected, rtol=1e-9, atol=1e-9)


def test_an_mlp_for_each_side():
    contents = {
        "mlp_content_encoder": {"uih_mlp": {"hidden_units": [4]}, "target_mlp": {"hidden_units": [4]}}
    }
    model, given = stack(parts={"content_encoder": contents}), rows()
    encoder = model.preprocessor.content
    history, candidates = encoder(given.history.values, given.candidates.values)
    assert torch.equal(history, encoder.history(given.history.values))
    assert torch.equal(candidates, encoder.target(given.candidates.values))
    assert model(given).values.shape == (8, D)
    contents["mlp_content_encoder"]["target_mlp"] = {"hidden_units": [3]}
    with pytest.raises(ValueError, match="equally wide, got 4 and 3"):
        stack(parts={"content_encoder": contents})


# --- properties ---


def test_a_batch_is_its_rows():
    model, given = stack(), rows()
    whole = model(given).values
    single = []
    for row in range(4):

        def of(events, row=row):
            chosen = events.segments.rows == row
            segments = Segments.from_lengths(events.segments.lengths[row : row + 1], int(chosen.sum()))
            parts = (events.values, events.times, events.actions, events.watch_times)
            values, times, actions, watched = (part[chosen] for part in parts)
            return Events(values, times, segments, actions, watched)

        own = HSTUInput(of(given.history), of(given.candidates), given.contextual[row : row + 1])
        single.append(model(own).values)
    torch.testing.assert_close(whole, torch.cat(single))


def test_a_candidate_does_not_change_the_others():
    model, given = stack(), rows()
    values = given.candidates.values.clone()
    values[0] += 1  # the first of row 0
    changed = replace(given, candidates=replace(given.candidates, values=values))
    before, after = model(given).values, model(changed).values
    assert not torch.allclose(before[0], after[0])
    assert torch.equal(before[1:], after[1:])


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"stu": {"max_attn_len": 100}}, {}),
        ({"attn_truncation_split_layer": 1, "attn_truncation_tail_len": 7}, {}),
        ({"stu": {"scaling_seqlen": 16}}, {}),
    ],
)
def test_limits_that_nothing_reaches_change_nothing(changes, same):
    given = rows()
    torch.testing.assert_close(stack(**changes)(given).values, stack(**same)(given).values)


def test_semi_local_attention_of_everything_is_causal_in_the_history():
    lengths = torch.tensor([9, 4])
    wide = Mask("SEMI_LOCAL", near=9).matrix(lengths, 9)
    assert torch.equal(wide, Mask().matrix(lengths, 9))


def test_reversed_events_are_those_in_order():
    given = rows()
    once = given.history.reversed()
    assert once.values[0].equal(given.history.values[3])
    twice = once.reversed()
    for name in ("values", "times", "actions", "watch_times"):
        assert torch.equal(getattr(twice, name), getattr(given.history, name))


def test_time_buckets_of_the_schema():
    deltas = [0.0, 59.0, 60.0, 3600.0, 86400.0, 1.7e9]
    times = torch.tensor([1.7e9 - d for d in deltas], dtype=torch.float64)
    rows = Segments.from_lengths(torch.tensor([6]), 6)
    tokens = Tokens(torch.zeros(6, 1), times, rows, torch.tensor([0]))
    for function, expected in (("sqrt", [0, 0, 1, 7, 37, 2048]), ("log", [0, 0, 0, 4, 7, 17])):
        encoder = PositionalEncoder(
            1,
            num_position_buckets=4,
            num_time_buckets=2048,
            use_time_encoding=True,
            time_bucket_fn=function,
        )
        anchor = torch.tensor([1.7e9], dtype=torch.float64)
        assert encoder.time_buckets(tokens, anchor).tolist() == expected


def test_places_of_the_worked_example():
    rows = Segments.from_lengths(torch.tensor([8]), 8)
    tokens = Tokens(torch.zeros(8, 1), torch.zeros(8, dtype=torch.float64), rows, torch.tensor([2]), 2)
    timed = PositionalEncoder(1, num_position_buckets=20, num_time_buckets=1, use_time_encoding=True)
    assert timed.places(tokens).tolist() == [0, 1, 6, 5, 4, 3, 2, 2]
    assert PositionalEncoder(1, num_position_buckets=20).places(tokens).tolist() == [0, 1, 2, 3, 4, 5, 6, 6]


def test_gradients_by_finite_differences():
    model = stack(**CASES["interleaved"][0])
    given = rows(history=(3, 1), candidates=(1, 2))

    def loss(history, contextual):
        own = replace(given, history=replace(given.history, values=history), contextual=contextual)
        return model(own).values.square().sum()

    inputs = [given.history.values, given.contextual[:2]]
    assert torch.autograd.gradcheck(loss, [x.clone().requires_grad_() for x in inputs], rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_truncation_split_layer": 1}, "both be 0, or both above 0"),
        ({"attn_truncation_split_layer": 2, "attn_truncation_tail_len": 1}, "below attn_num_layers 2"),
        ({"parts": {"action_mlp": None}}, "go together"),
        ({"parts": {"content_encoder": {}}}, "content_encoder must be one of slice_content_encoder"),
        ({"preprocessor": "uih_preprocessor"}, "input_preprocessor must be contextual_preprocessor or"),
        ({"positional_encoder": {"use_time_encoding": True}}, "num_time_buckets must be at least 1"),
        ({"positional_encoder": {"time_bucket_fn": "exp"}}, "time_bucket_fn must be one of 'sqrt', 'log'"),
        ({"stu": {"scaling_seqlen": 0}}, "scaling_seqlen"),
        ({"stu": {"num_heads": 0}}, "num_heads must be at least 1"),
        ({"stu": {"contextual_seq_len": 3}}, "at most the number of contextual tokens, 2"),
    ],
)
def test_settings_without_meaning_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        stack(**changes)
