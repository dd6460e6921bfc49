"""`recgrad schedule`: the rates it shows, and what it must be told."""

from __future__ import annotations

import pytest

from recgrad.cli.main import main

PLAIN = """
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.05 } step_decay_learning_rate { step_size: 50 gamma: 0.5 } }
  dense_optimizer { adam_optimizer { lr: 0.01 } one_cycle_learning_rate { total_size: 100 } }
  %s
}
"""


@pytest.fixture
def config(tmp_path):
    def write(text, length="num_steps: 100"):
        path = tmp_path / "pipeline.config"
        path.write_text(text % length if "%s" in text else text)
        return str(path)

    return write


def test_schedule_shows_every_part_and_writes_the_picture(config, tmp_path, capsys):
    picture = tmp_path / "plot.png"
    assert main(["schedule", config(PLAIN), "--out", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "dense learning rates" in shown
    assert "sparse learning rates" in shown
    assert "momentum" in shown
    rows = {
        line.split()[0]: line.split()[1:] for line in shown.splitlines() if line[:6] in ("dense ", "sparse")
    }
    assert rows["dense"] == ["OneCycle", "0.0004", "0.01", "29", "4e-08"]
    assert rows["sparse"] == ["StepDecay", "0.05", "0.05", "0", "0.025"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_schedule_steps_go_before_the_config_s(config, capsys):
    assert main(["schedule", config(PLAIN), "--steps", "120"]) == 0
    assert "0.0125" in capsys.readouterr().out.splitlines()[-1]


BY_EPOCH = """
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.08 } step_decay_learning_rate { step_size: 1 gamma: 0.5 %s } }
  dense_optimizer { adam_optimizer { lr: 0.01 }
    step_decay_learning_rate { step_size: 1 gamma: 0.5 by_epoch: true } }
  num_epochs: 4
}
"""


def last_rates(shown):
    return {line.split()[0]: float(line.split()[-1]) for line in shown.splitlines()[-2:]}


def test_schedule_by_epoch_needs_no_steps_when_all_go_by_epoch(config, capsys):
    assert main(["schedule", config(BY_EPOCH, "by_epoch: true")]) == 0
    shown = capsys.readouterr().out
    assert "finished epochs" in shown
    assert last_rates(shown) == {"dense": 0.00125, "sparse": 0.01}


def test_schedule_by_epoch_takes_its_length_from_the_flags(config, capsys):
    path = config(BY_EPOCH, "")
    assert main(["schedule", path, "--steps-per-epoch", "2"]) == 0
    assert last_rates(capsys.readouterr().out) == {"dense": 0.00125, "sparse": 0.000625}
    assert main(["schedule", path, "--steps", "8"]) == 0
    assert last_rates(capsys.readouterr().out) == {"dense": 0.00125, "sparse": 0.000625}
    assert main(["schedule", path]) == 2
    assert "say how long with --steps-per-epoch N" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("length", "arguments", "message"),
    [
        ("", [], "the config has no num_steps; say how long with --steps N"),
        ("num_steps: 5", ["--steps", "0"], "--steps: must be at least 1, got 0"),
    ],
)
def test_schedule_says_what_it_needs(config, capsys, length, arguments, message):
    assert main(["schedule", config(PLAIN, length), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_schedule_tells_a_bad_schedule_with_its_place(config, capsys):
    text = PLAIN.replace("total_size: 100", "total_size: 0")
    assert main(["schedule", config(text)]) == 2
    message = capsys.readouterr().err
    assert (
        "train_config.dense_optimizer.one_cycle_learning_rate: total_size must be at least 1, got 0"
        in message
    )
