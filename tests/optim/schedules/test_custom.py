"""Schedules of the user's own: by class_path in every place of a config that takes a schedule."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from google.protobuf import text_format

from recgrad.cli.main import main
from recgrad.config.proto import optimizer_pb2
from recgrad.config.proto.optimizer_pb2 import DenseOptimizer, SparseOptimizer
from recgrad.config.proto.train_pb2 import TrainConfig
from recgrad.errors import CheckpointError, ConfigError, RecgradError
from recgrad.optim.dense.sgd import SGD
from recgrad.optim.optimizer_state import load_schedule
from recgrad.optim.part import OptimizerPart
from recgrad.optim.plan import plan_parts
from recgrad.optim.schedules import Schedule, build_schedule, build_schedules

CALLED: list[str] = []


class Halving(Schedule):
    """Halves the rate every `every` updates."""

    def __init__(self, *, every: int, **common: Any) -> None:
        super().__init__(**common)
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every = every

    def after_warmup(self, base: float, n: int) -> float:
        return base * 0.5 ** (n // self.every)


class Bare(Schedule):
    """Has no call of super().__init__, as a class in a hurry would not."""

    def __init__(self, *, value: float = 0.5) -> None:
        self.value = value

    def after_warmup(self, base: float, n: int) -> float:
        return self.value


class Listening(Schedule):
    """A rate that is the last value of a metric; its state has no names before the first."""

    metric = "auc"

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, float] = {}

    def after_warmup(self, base: float, n: int) -> float:
        return self.seen.get("last", base)

    def observe(self, value: float) -> bool:
        self.seen["last"] = value
        return True

    def state_dict(self) -> dict[str, Any]:
        return dict(self.seen)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = dict(state)


class Strict(Listening):
    """Refuses what it does not know."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = {"last": state["first"]}


def not_a_schedule(**_: Any) -> Schedule:
    CALLED.append("called")
    return Bare()


def own(name: str, params: str = "") -> str:
    return f'custom_learning_rate {{ class_path: "{__name__}.{name}" params {{ {params} }} }}'


def number(key: str, value: float) -> str:
    return f'fields {{ key: "{key}" value {{ number_value: {value} }} }}'


HALVING = own("Halving", number("every", 10) + number("warmup_size", 4))


def test_a_class_is_built_with_its_params() -> None:
    schedule = build_schedule(text_format.Parse(HALVING, DenseOptimizer()))
    assert isinstance(schedule, Halving)
    assert [schedule.rate(0.8, n) for n in (0, 2, 4, 14, 24)] == [0.0, 0.4, 0.8, 0.4, 0.2]


def test_every_oneof_of_schedules_takes_one() -> None:
    holders = [
        message
        for message in vars(optimizer_pb2).values()
        if isinstance(message, type) and "learning_rate" in message.DESCRIPTOR.oneofs_by_name
    ]
    holders.append(optimizer_pb2.SequenceLR.Stage)
    assert len(holders) == 5
    for message in holders:
        field = message.DESCRIPTOR.fields_by_name["custom_learning_rate"]
        assert field.message_type.name == "CustomComponent"
        assert field.containing_oneof.name == "learning_rate"


def test_parts_and_stages_take_one() -> None:
    stages = f"stages {{ size: 3 constant_learning_rate {{}} }} stages {{ {HALVING} }}"
    part_text = f"part_optimizers {{ regex_pattern: 'a' sgd_optimizer {{ lr: 1 }} {HALVING} }}"
    text = f"sequence_learning_rate {{ {stages} }} {part_text}"
    for message in (DenseOptimizer(), SparseOptimizer()):
        main_one, part = build_schedules(text_format.Parse(text, message), where="here")
        assert isinstance(part, Halving)
        assert main_one.rate(1.0, 3 + 4 + 10) == 0.5


def test_one_that_waits_for_evaluations_is_no_stage() -> None:
    text = f"sequence_learning_rate {{ stages {{ {own('Listening')} }} }}"
    with pytest.raises(ConfigError, match="must be a function of the step, got Listening"):
        build_schedule(text_format.Parse(text, DenseOptimizer()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (own("Halving"), "here.custom_learning_rate: .*every"),
        (own("Halving", number("every", 0)), "here.custom_learning_rate: every must be at least 1, got 0"),
        (own("Halving", number("every", 2) + number("evry", 3)), "evry"),
        (own("Gone"), "has no 'Gone'"),
        ('custom_learning_rate { class_path: "no.such.Class" }', "cannot import 'no.such'"),
        ('custom_learning_rate { class_path: "halving" }', "entry points 'recgrad.schedules'"),
        (own("not_a_schedule"), "here.custom_learning_rate: .*is not a class"),
        (
            'custom_learning_rate { class_path: "torch.optim.Adam" }',
            r"here.custom_learning_rate.class_path: must name a subclass of recgrad.optim.schedules.Schedule",
        ),
    ],
)
def test_what_cannot_be_built_is_a_problem_of_the_config(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_schedule(text_format.Parse(text, DenseOptimizer()), where="here")
    assert CALLED == []  # nothing is called before it is known to be a schedule


def test_a_class_without_a_call_of_super_works() -> None:
    schedule = build_schedule(text_format.Parse(own("Bare"), DenseOptimizer()))
    assert schedule.rate(0.1, 7) == 0.5


@pytest.mark.parametrize("value", [-0.1, 1e400, math.nan])
def test_what_is_no_rate_is_refused(value: float) -> None:
    part = part_of(Bare())
    part.schedule.value = value
    with pytest.raises(RecgradError, match=r"the schedule Bare gives the rate .* after 3 updates"):
        part.set_rates(3)


def part_of(schedule: Schedule) -> OptimizerPart:
    return OptimizerPart("dense", SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1), schedule)


def test_the_state_goes_back_whatever_its_names() -> None:
    saved = Listening()
    saved.observe(0.7)
    part = part_of(Listening())
    load_schedule(part, saved.state_dict(), "Listening")
    assert part.schedule.rate(0.1, 0) == 0.7


def test_the_state_of_another_class_is_left() -> None:
    part = part_of(Listening())
    load_schedule(part, {"last": 0.7}, "ReduceOnPlateau")
    assert part.schedule.rate(0.1, 0) == 0.1


def test_a_state_that_is_not_taken_back_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="Strict of part 'dense' does not take back"):
        load_schedule(part_of(Strict()), {"last": 0.7}, "Strict")


def test_the_plan_and_the_plot_show_it(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    halves = f"sparse_optimizer {{ adagrad_optimizer {{ lr: 0.8 }} {own('Listening')} }}"
    halves += f"dense_optimizer {{ adam_optimizer {{ lr: 0.8 }} {own('Halving', number('every', 10))} }}"
    config = text_format.Parse(halves, TrainConfig(), allow_unknown_field=False)
    assert plan_parts(config)[0].rate(25) == 0.2
    path = tmp_path / "pipeline.config"
    path.write_text(f"train_config {{ {halves} num_steps: 30 }}")
    assert main(["schedule", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "Halving" in shown
    assert "Listening waits for evaluations" in shown


def test_the_list_says_how_to_name_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "schedules", "custom_learning_rate"]) == 0
    assert "class_path" in capsys.readouterr().out
