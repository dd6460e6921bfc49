"""What docs/extending.md shows runs as it stands there, and what it says of it holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from recgrad.check.capabilities import available
from recgrad.check.unsupported import KINDS
from recgrad.cli.main import main
from recgrad.config import edit_config, load_config
from recgrad.config.proto import loss_pb2, metric_pb2, model_pb2, optimizer_pb2
from recgrad.data.batch import Batch
from recgrad.data.faults import Faults
from recgrad.data.features.build import features_of
from recgrad.data.features.frame import Frame
from recgrad.data.readers.build import open_reader
from recgrad.data.samplers.build import build_sampler
from recgrad.data.samplers.sampler import Place, SamplerSource
from recgrad.nn.encoders.base import build_encoder
from recgrad.training.checkpoint import read_checkpoint

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
TEXT = PAGE.read_text(encoding="utf-8")

MORE = """

class Pairs(Loss):
    needs_session = True

    def __init__(self, *, session_name, scale=1.0):
        super().__init__()
        self.scale = scale

    def rows(self, logits, labels, session):
        assert session.dtype == torch.int64 and session.shape == labels.shape
        return self.scale * (session >= 0) * torch.ones_like(logits) + 0 * logits

    def predict(self, logits):
        return torch.sigmoid(logits)


class Groups(torchmetrics.Metric):
    needs_key = True

    def __init__(self, *, grouping_key):
        super().__init__()
        self.grouping_key = grouping_key
        self.add_state("seen", [], dist_reduce_fx="cat")

    def update(self, preds, labels, key):
        assert key.dtype == torch.int64 and key.shape == preds.shape == labels.shape
        self.seen.append(key)

    def compute(self):
        return torch.cat(self.seen).unique().numel()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the data, `parts.py` and `own.config` of the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["synth", "--rows", "20000", "--out", "data"]) == 0
    (tmp_path / "parts.py").write_text("\n\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.S)) + MORE)
    own, towers = re.findall(r"```protobuf\n(.*?)```", TEXT, re.S)
    (tmp_path / "own.config").write_text(own)
    (tmp_path / "towers.config").write_text(towers)
    yield tmp_path
    sys.modules.pop("parts", None)


@pytest.fixture
def edited(folder: Path) -> Callable[..., list[str]]:
    """The train command with some edits."""
    return lambda **edits: [
        "train", "own.config", "--edit-config-json",
        json.dumps({key.replace("__", "."): value for key, value in edits.items()}),
    ]  # fmt: skip


def last_event(folder: Path, kind: str) -> dict[str, dict[str, float]]:
    lines = (folder / "own" / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind][-1]


def test_the_parts_of_the_page_train_and_resume_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "own.config"]) == 0
    assert "hint" not in capsys.readouterr().out
    assert main(["train", "own.config"]) == 0
    assert main(["train", "own.config", "--continue-train"]) == 0
    metrics = json.loads((folder / "own" / "train_eval_result.txt").read_text().splitlines()[-1])
    # Three of the planted columns alone: far from chance, and from the best of all, 0.89.
    assert metrics["auc"] > 0.65
    assert metrics["Lift"] > 1.4
    assert set(last_event(folder, "train")["losses"]) == {"PolyLoss", "total"}
    assert main(["eval", "own.config"]) == 0
    predict = ["predict", "own.config", "--predict-input-path", "data/eval.parquet"]
    assert main([*predict, "--predict-output-path", "p.parquet"]) == 0
    assert pq.read_schema(folder / "p.parquet").names == ["probs"]


def test_the_edit_of_the_page_is_made(folder: Path) -> None:
    (command,) = re.findall(r"recgrad (train own.config --model_dir own2 .*?)\n```", TEXT, re.S)
    edit = re.findall(r"'(\{.*\})'", command)[0]
    assert main(["check", "own.config", "--edit-config-json", edit]) == 0
    assert json.loads(edit)["model_config.losses[0]"]["custom_loss"]["params"] == {"epsilon": 2}


ENTRY_POINTS = {
    "recgrad.dense_optimizers": ("signum", "Signum"),
    "recgrad.sparse_optimizers": ("sparse_signum", "SparseSignum"),
    "recgrad.schedules": ("sawtooth", "Sawtooth"),
    "recgrad.losses": ("poly_loss", "PolyLoss"),
    "recgrad.metrics": ("lift", "Lift"),
}


def test_names_that_an_installed_package_gives_are_class_paths(folder: Path) -> None:
    info = folder / "parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: parts\nVersion: 1.0\n")
    lines = [f"[{group}]\n{name} = parts:{cls}\n" for group, (name, cls) in ENTRY_POINTS.items()]
    (info / "entry_points.txt").write_text("".join(lines))
    config = (folder / "own.config").read_text()
    for name, cls in ENTRY_POINTS.values():
        assert f'"parts.{cls}"' in config
        config = config.replace(f'"parts.{cls}"', f'"{name}"')
    (folder / "own.config").write_text(config)

    def run(*line: str) -> str:
        # In a process of its own: registries keep what they have found.
        command = [sys.executable, "-m", "recgrad", *line]
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout

    run("train", "own.config")
    assert set(last_event(folder, "train")["losses"]) == {"PolyLoss", "total"}
    assert "Lift" in last_event(folder, "eval")["metrics"]
    assert 'custom_loss { class_path: "poly_loss" }' in run("list", "losses", "poly_loss")
    assert 'custom_optimizer { class_path: "signum" }' in run("list", "optimizers", "signum")
    assert 'custom_learning_rate { class_path: "sawtooth" }' in run("list", "schedules", "sawtooth")
    assert "Sawtooth" in run("schedule", "own.config")


def test_two_losses_of_ones_own_both_count(folder: Path, edited: Callable[..., list[str]]) -> None:
    """They used to have one name, and the second replaced the first."""
    poly = {"custom_loss": {"class_path": "parts.PolyLoss"}}
    pairs = {"custom_loss": {"class_path": "parts.Pairs", "params": {"session_name": "user_id", "scale": 5}}}
    stop = {"train_config__num_epochs": None, "train_config__num_steps": 2}
    assert main(edited(model_config__losses=[poly, pairs], **stop)) == 0
    losses = last_event(folder, "train")["losses"]
    assert losses["Pairs"] == pytest.approx(5.0)
    assert losses["total"] == pytest.approx(losses["PolyLoss"] + losses["Pairs"])


def test_the_same_loss_twice_is_refused(
    folder: Path, edited: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    twice = [{"custom_loss": {"class_path": "parts.PolyLoss"}}] * 2
    assert main(edited(model_config__losses=twice)) == 2
    assert "loss 'PolyLoss' is configured twice; keep one" in capsys.readouterr().err


def test_a_metric_of_groups_gets_its_column(folder: Path, edited: Callable[..., list[str]]) -> None:
    groups = {"custom_metric": {"class_path": "parts.Groups", "params": {"grouping_key": "user_id"}}}
    stop = {"train_config__num_epochs": None, "train_config__num_steps": 2}
    assert main(edited(model_config__metrics=[{"auc": {}}, groups], **stop)) == 0
    users = pq.read_table("data/eval.parquet", columns=["user_id"])["user_id"]
    assert last_event(folder, "eval")["metrics"]["Groups"] == len(users.unique())


def test_the_schedules_of_the_page_resume_with_their_state(
    folder: Path, edited: Callable[..., list[str]]
) -> None:
    """A run of two parts has the rates and the bytes of a whole one."""
    short = {"train_config__num_epochs": None, "train_config__save_checkpoints_steps": 10}
    ends = {}
    for name, lengths in {"whole": (40,), "parts": (20, 40)}.items():
        for steps in lengths:
            edits = {**short, "train_config__num_steps": steps, "model_dir": name}
            assert main([*edited(**edits), *(["--continue-train"] if steps != lengths[0] else [])]) == 0
        checkpoint = folder / name / "model.ckpt-40"
        ends[name] = {p.name: p.read_bytes() for p in checkpoint.rglob("*") if p.is_file()}
    assert ends["whole"] == ends["parts"]
    whole, parts = (
        [e["rates"] for e in map(json.loads, (folder / name / "events.jsonl").read_text().splitlines())
         if e["kind"] == "train"]
        for name in ("whole", "parts")
    )  # fmt: skip
    assert whole == parts
    tree = read_checkpoint(folder / "whole" / "model.ckpt-40").tree
    assert tree["updater"]["schedules"]["sparse"].keys() == {"halvings", "last"}
    assert tree["updater"]["schedules"]["sparse"]["last"] is not None


@pytest.fixture
def towers(folder: Path) -> Path:
    """The rows of the second config, as the page has them written."""
    (line,) = re.findall(r'python -c "(.*?)"\n', TEXT)
    exec(line, {})
    return folder


OWN = {
    "data_config.custom_reader": ("recgrad.readers", "feather_files", "parts.FeatherFiles"),
    "data_config.custom_sampler": ("recgrad.samplers", "other_groups", "parts.OtherGroups"),
    "feature_configs[4].custom_kind_feature": ("recgrad.features", "cyclic", "parts.Cyclic"),
    "model_config.feature_groups[0].sequence_encoders[0].custom_sequence_encoder": (
        "recgrad.sequence_encoders",
        "recency",
        "parts.Recency",
    ),
}


@pytest.mark.slow
def test_the_towers_of_the_page_train_resume_predict_and_leave(
    towers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of two parts has the bytes of a whole one, with classes of one's own in all four places."""
    assert main(["check", "towers.config"]) == 0
    said = capsys.readouterr().out
    for place, (_, _, class_path) in OWN.items():
        assert f"custom code: {place}.class_path imports {class_path}" in said
    short = {"train_config.num_epochs": None, "train_config.save_checkpoints_steps": 5}
    ends = {}
    for name, lengths in {"whole": (10,), "parts": (5, 10)}.items():
        for steps in lengths:
            edits = json.dumps({**short, "train_config.num_steps": steps, "model_dir": name})
            more = ["--continue-train"] if steps != lengths[0] else []
            assert main(["train", "towers.config", "--edit-config-json", edits, *more]) == 0
        checkpoint = towers / name / "model.ckpt-10"
        ends[name] = {p.name: p.read_bytes() for p in checkpoint.rglob("*") if p.is_file()}
    assert ends["whole"] == ends["parts"]
    metrics = json.loads((towers / "whole" / "train_eval_result.txt").read_text().splitlines()[-1])
    assert metrics["recall@10"] > 0.3  # 10 of 256 items by chance: 0.04
    predict = ["predict", "--predict-input-path", "data/eval.feather", "--predict-output-path", "p.parquet"]
    assert main(["predict", "whole", *predict[1:]]) == 0
    assert pq.read_table("p.parquet").num_rows == pq.read_table("data/eval.parquet").num_rows
    _check_bundle(predict[1:], capsys)


def _check_bundle(predict: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The bundle of the model reads, encodes and scores with the same classes, or says which is missing."""
    pytest.importorskip("onnxruntime")
    expected = pq.read_table("p.parquet")
    assert main(["export", "whole", "--export-dir", "bundle"]) == 0
    programs = json.loads(Path("bundle/manifest.json").read_text())["programs"].values()
    assert {program["kind"] for program in programs} == {"onnx"}
    assert main(["predict", "bundle", *predict]) == 0
    found = pq.read_table("p.parquet")
    assert found.schema.names == expected.schema.names
    for name in expected.schema.names:
        one, other = (np.stack(table[name].to_numpy()) for table in (found, expected))
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    capsys.readouterr()
    assert main(["predict", "bundle", *predict, "--no-custom-code"]) == 2
    assert "'parts.FeatherFiles' would be imported" in capsys.readouterr().err
    Path("parts.py").rename("elsewhere.py")
    sys.modules.pop("parts")
    assert main(["predict", "bundle", *predict]) == 2
    assert "parts" in capsys.readouterr().err
    Path("elsewhere.py").rename("parts.py")


def test_a_sampler_of_ones_own_is_what_its_text_says(towers: Path) -> None:
    """Pairs of rows with one value of the column are left out, and no others."""
    config = load_config("towers.config")
    features = features_of(config)
    reader = open_reader(config.train_input_path, config.data_config)
    sampler = build_sampler(SamplerSource(config.data_config, features, reader, training=True, seed=0))
    assert sampler is not None
    groups = pa.array([3, 5, 3, None, 3])
    batch: Any = Batch(5, None, None, {}, None, {}, {})  # type: ignore[arg-type]
    found = sampler.sample(batch, {"cat_6": groups}, Place(0, 0, 0)).comparison
    assert found is not None
    assert sorted(map(tuple, found.excluded.tolist())) == [(0, 2), (0, 4), (2, 0), (2, 4), (4, 0), (4, 2)]


def test_a_sampler_of_ones_own_draws_items(towers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Drawn items are encoded as rows are, follow from seed and place, and train a model."""
    items = pa.table({"cat_6": pa.array([5, 7, 9]), "cat_15": pa.array([50, 70, 90])})
    pq.write_table(items, "items.parquet")
    edits: dict[str, Any] = {
        "data_config.custom_sampler": {
            "class_path": "parts.ItemsOfFile", "params": {"path": "items.parquet", "count": 6},
        },
        "model_config.dssm.in_batch_negative": False,
        "train_config.num_epochs": None,
        "train_config.num_steps": 3,
    }  # fmt: skip
    config = edit_config(load_config("towers.config"), edits)
    reader = open_reader(config.train_input_path, config.data_config)
    source = SamplerSource(config.data_config, features_of(config), reader, training=True, seed=4)
    sampler = build_sampler(source)
    assert sampler is not None
    batch: Any = Batch(2, None, None, {}, None, {}, {})  # type: ignore[arg-type]
    one, again, other = (sampler.sample(batch, {}, Place(0, 0, row)).negatives for row in (0, 0, 256))
    assert one is not None
    assert again is not None
    assert other is not None
    assert one.size == 6
    assert set(one.sparse.keys) == {"cat_6", "cat_15"}
    ids = {name: one.sparse[name].values.tolist() for name in one.sparse.keys}
    assert set(ids["cat_6"]) <= {5, 7, 9}
    assert ids["cat_15"] == [10 * value for value in ids["cat_6"]]
    assert torch.equal(one.sparse.values, again.sparse.values)
    assert not torch.equal(one.sparse.values, other.sparse.values)
    assert main(["train", "towers.config", "--edit-config-json", json.dumps(edits)]) == 0
    pq.write_table(pa.table({"nothing": [1]}), "items.parquet")
    edits["model_dir"] = "again"
    assert main(["train", "towers.config", "--edit-config-json", json.dumps(edits)]) == 2
    assert "no feature reads the columns nothing alone" in capsys.readouterr().err


def test_the_feature_and_the_encoder_of_the_page_compute_their_formulas(towers: Path) -> None:
    config = load_config("towers.config")
    feature = next(one for one in features_of(config) if one.name == "angle")
    dense: Any = feature.encode(Frame({"int_12": pa.array([0.0, 1.0, None, -2.5])}, 4), Faults())
    angles = np.array([0.0, 1.0, 0.0, -2.5]) * 2 * np.pi / 4
    expected = np.stack([np.sin(angles), np.cos(angles)], 1)
    expected[2] = 0  # a null is the default value, not the angle 0
    np.testing.assert_allclose(np.asarray(dense.values, np.float64).reshape(4, 2), expected, atol=1e-6)
    encoder = build_encoder(
        "custom_sequence_encoder", 0, 2, {"class_path": "parts.Recency", "params": {"decay": 0.5}}
    )
    sequence = torch.tensor([[1.0, 2.0], [4.0, 8.0], [3.0, 3.0]])
    found = encoder(torch.zeros(3, 0), sequence, torch.tensor([2, 0, 1]))
    np.testing.assert_allclose(found, [[3.0, 6.0], [0.0, 0.0], [3.0, 3.0]])


@pytest.mark.parametrize("place", OWN)
def test_what_is_wrong_with_a_class_of_ones_own_is_said_at_its_line(
    towers: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    wrong = {"period": -1, "decay": 2, "fragment_rows": 0, "column": 1}
    text = (towers / "towers.config").read_text()
    lines = text.splitlines()
    class_path = OWN[place][2]
    at = next(i for i, line in enumerate(lines) if class_path in line)
    for name, said in {
        "parts.Nothing": "'parts' has no 'Nothing'",
        "parts.Ratio": "is not a subclass of recgrad",
        "no_such_name": "or a name that a package gives in its entry points 'recgrad.",
    }.items():
        (towers / "wrong.config").write_text(text.replace(class_path, name))
        assert main(["check", "wrong.config"]) == 2
        error = capsys.readouterr()
        (problem,) = [line for line in (error.out + error.err).splitlines() if said in line]
        number = int(problem.split(":")[1].split()[0])
        assert abs(number - 1 - at) <= 4, problem
    for params in ({"nothing": 1}, {key: value for key, value in wrong.items() if key in lines[at + 1]}):
        if params == {"column": 1}:  # texts have no limits
            continue
        edits = json.dumps({f"{place}.params": params})
        assert main(["check", "towers.config", "--edit-config-json", edits]) == 2
        error = capsys.readouterr()
        assert place in error.out + error.err
    assert main(["check", "towers.config", "--no-custom-code"]) == 2
    error = capsys.readouterr()
    assert f"'{class_path}' would be imported" in error.out + error.err


def test_readers_and_their_settings_go_together(towers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for edits, said in (
        ({"data_config.dataset_type": "ParquetDataset"}, "has no effect with dataset_type: ParquetDataset"),
        ({"data_config.custom_reader": None}, "CustomDataset needs data_config.custom_reader"),
    ):
        assert main(["check", "towers.config", "--edit-config-json", json.dumps(edits)]) == 2
        error = capsys.readouterr()
        assert said in error.out + error.err


@pytest.mark.slow
def test_names_of_an_installed_package_stand_for_readers_samplers_features_and_encoders(towers: Path) -> None:
    info = towers / "parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: parts\nVersion: 1.0\n")
    lines = [f"[{group}]\n{name} = {path.replace('.', ':')}\n" for group, name, path in OWN.values()]
    (info / "entry_points.txt").write_text("".join(lines))
    config = (towers / "towers.config").read_text()
    for _, name, path in OWN.values():
        config = config.replace(f'"{path}"', f'"{name}"')
    (towers / "towers.config").write_text(config)
    edits = json.dumps({"train_config.num_epochs": None, "train_config.num_steps": 3})
    command = [sys.executable, "-m", "recgrad", "train", "towers.config", "--no-custom-code"]
    path = os.pathsep.join(filter(None, [str(towers), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    subprocess.run([*command, "--edit-config-json", edits], check=True, capture_output=True, env=env)


def test_what_a_class_refuses_is_a_problem_of_the_config(
    folder: Path, edited: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"class_path": "parts.Signum", "params": {"beta": 2}}
    assert main(edited(train_config__dense_optimizer={"custom_optimizer": wrong})) == 2
    error = capsys.readouterr().err
    assert "train_config.dense_optimizer" in error
    assert "beta must be in [0, 1), got 2" in error


def test_a_class_of_ones_own_is_available_wherever_the_schema_takes_one() -> None:
    """The check refuses what is not available, and with it every config that names such a class."""
    optimizers = (
        optimizer_pb2.DenseOptimizer,
        optimizer_pb2.PartOptimizer,
        optimizer_pb2.SparseOptimizer,
        optimizer_pb2.SparsePartOptimizer,
    )
    messages = (
        *optimizers,
        optimizer_pb2.SequenceLR.Stage,
        loss_pb2.LossConfig,
        metric_pb2.MetricConfig,
        model_pb2.ModelConfig,
    )
    known = available()
    found = 0
    for message in messages:
        for field in message.DESCRIPTOR.fields:
            if field.message_type is not None and field.message_type.name == "CustomComponent":
                kind = KINDS[(message.DESCRIPTOR.name, field.containing_oneof.name)]
                assert field.name in known[kind], f"{message.DESCRIPTOR.name}.{field.name}"
                found += 1
    assert found == len(messages) + len(optimizers)  # which take a schedule as well
