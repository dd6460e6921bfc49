"""What a config names is not called before it is known to be a class of its kind, and can be refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import message_factory

import recgrad
from recgrad.check import check_config
from recgrad.cli.main import main
from recgrad.config import PipelineConfig, edit_config, load_config, save_config
from recgrad.config.class_paths import class_paths
from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.errors import ConfigError, RecgradError
from recgrad.synth import write_synth

MARK = "called"
MODULE = f"""
from pathlib import Path

MARK = Path(__file__).parent / "{MARK}"

def function(*args, **kwargs):
    MARK.touch()

class Meta(type):
    def __call__(cls, *args, **kwargs):
        MARK.touch()

class Other(metaclass=Meta):
    def __init_subclass__(cls, **kwargs):
        MARK.touch()

class Instance:
    def __call__(self, *args, **kwargs):
        MARK.touch()
    __repr__ = __str__ = __call__

instance = Instance()
"""
KINDS: dict[str, Any] = {
    "train_config.dense_optimizer": "custom_optimizer",
    "train_config.sparse_optimizer": "custom_optimizer",
    "model_config.losses[0]": "custom_loss",
    "model_config.metrics[0]": "custom_metric",
    "model_config": "custom_model",
}


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    write_synth(folder, 300)
    return folder


@pytest.fixture
def config(rows: Path, tmp_path: Path) -> PipelineConfig:
    config = load_config(rows / "deepfm.config")
    config.model_dir = str(tmp_path / "model")
    return config


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that leaves a mark when something in it is called."""
    name = f"own_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    assert not (tmp_path / MARK).exists(), "something that the config names was called"


def with_class(config: PipelineConfig, place: str, class_path: str) -> PipelineConfig:
    kind = KINDS[place]
    groups = [{"group_name": "all", "feature_names": ["int_0"], "group_type": "DEEP"}]
    edits: Mapping[str, Any] = {f"{place}.{kind}.class_path": class_path}
    if kind == "custom_model":
        edits = {**edits, "model_config.feature_groups": groups}
    return edit_config(config, edits)


@pytest.mark.parametrize("what", ["function", "Other", "instance", "Path.home"])
@pytest.mark.parametrize("place", KINDS)
def test_no_component_is_called_before_its_kind_is_known(
    config: PipelineConfig, own: str, place: str, what: str
) -> None:
    with pytest.raises(RecgradError, match=r"class|import"):
        recgrad.train(with_class(config, place, f"{own}.{what}"))


@pytest.mark.parametrize("what", ["function", "Other", "instance"])
def test_no_activation_is_called_before_it_is_known_to_be_a_module(
    config: PipelineConfig, own: str, what: str
) -> None:
    edits = {"model_config.deepfm.deep.activation": f"{own}.{what}(args=['touch', 'x'])"}
    with pytest.raises(RecgradError, match=r"is not a class|subclass of torch\.nn\.Module"):
        recgrad.train(edit_config(config, edits))


@pytest.mark.parametrize("path", ["..Thing", "a..B", "x y.Z", "os\0.x", "-.a"])
def test_paths_that_are_none_are_refused_without_a_traceback(config: PipelineConfig, path: str) -> None:
    with pytest.raises(RecgradError, match="is not an import path"):
        recgrad.train(with_class(config, "train_config.dense_optimizer", path))


def test_every_field_of_the_schema_that_takes_a_class_path_is_found() -> None:
    fields = list(_naming_fields(PipelineConfig.DESCRIPTOR, set()))
    assert len(fields) >= 8
    for field in fields:
        message = message_factory.GetMessageClass(field.containing_type)()
        if field.message_type is None:
            setattr(message, field.name, "my.own.Swish(beta=1)")
            expected = field.name
        else:
            getattr(message, field.name).class_path = "my.own.Class"
            expected = f"{field.name}.class_path"
        assert [found.path for found in class_paths(message)] == [expected]


def test_an_activation_that_the_schema_lists_is_no_class_path() -> None:
    model = ModelConfig()
    model.sasrec.activation = model.sasrec.DESCRIPTOR.fields_by_name["activation"].enum_type.values[-1].number
    assert class_paths(model) == ()


def _naming_fields(message: Any, seen: set[str]) -> Iterator[Any]:
    """The fields of the schema that can name a class: custom components, and activations."""
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    for field in message.fields:
        inner = field.message_type
        text = field.type == field.TYPE_STRING and "activation" in field.name
        if text if inner is None else "class_path" in inner.fields_by_name:
            yield field
        elif inner is not None:
            yield from _naming_fields(inner, seen)


def test_every_custom_component_of_a_oneof_is_found(config: PipelineConfig) -> None:
    for place in KINDS:
        found = class_paths(with_class(config, place, "my.own.Class"))
        assert [(one.path, one.imports) for one in found] == [(f"{place}.{KINDS[place]}.class_path", True)]
    named = class_paths(with_class(config, "model_config.losses[0]", "poly_loss"))
    assert [one.imports for one in named] == [False]


@pytest.mark.parametrize(
    "text", ["nn.ReLU", "torch.nn.Softplus(beta=2)", "Dice", "", "torch.nn.modules.activation.Tanh"]
)
def test_activations_of_torch_are_no_custom_code(config: PipelineConfig, text: str) -> None:
    assert not class_paths(edit_config(config, {"model_config.deepfm.deep.activation": text}))


COMMANDS = {
    "check": [],
    "train": [],
    "eval": [],
    "predict": ["--predict_input_path=x.parquet", "--predict_output_path=y.parquet"],
    "lr-find": [],
    "schedule": [],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_custom_code_before_it_is_imported(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, command: str
) -> None:
    (tmp_path / "would_run.py").write_text(f"open({str(tmp_path / MARK)!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    edited = with_class(config, "train_config.dense_optimizer", "would_run.Optimizer")
    edited.model_config.deepfm.deep.activation = "would_run.Swish"
    save_config(edited, tmp_path / "own.config")
    line = [command, str(tmp_path / "own.config"), *COMMANDS[command]]
    assert main([*line, "--no_custom_code"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "own.config:" in said[0]
    assert "'would_run.Optimizer' would be imported, and custom code is refused" in "\n".join(said)
    assert not (tmp_path / MARK).exists()
    assert not Path(config.model_dir).exists()


def test_a_report_refuses_custom_code(config: PipelineConfig, tmp_path: Path, capsys: Any) -> None:
    own = with_class(config, "model_config.losses[0]", "parts.PolyLoss")
    save_config(own, tmp_path / "model" / "pipeline.config")
    assert main(["report", str(tmp_path / "model"), "--no_custom_code"]) == 2
    assert "'parts.PolyLoss' would be imported" in capsys.readouterr().err
    assert not (tmp_path / "model" / "report.html").exists()


def test_python_refuses_custom_code(config: PipelineConfig, tmp_path: Path) -> None:
    own = with_class(config, "model_config.losses[0]", "parts.PolyLoss")
    for call in (
        lambda: recgrad.train(own, custom_code=False),
        lambda: recgrad.evaluate(own, custom_code=False),
        lambda: recgrad.predict(own, input_path="x", output_path=tmp_path / "y.csv", custom_code=False),
    ):
        with pytest.raises(
            ConfigError, match=r"losses\[0\].custom_loss.class_path: 'parts.PolyLoss' would be"
        ):
            call()
    (problem,) = check_config(own, custom_code=False).problems
    assert "'parts.PolyLoss' would be imported" in str(problem)


def test_the_check_lists_what_a_run_would_import(
    config: PipelineConfig, own: str, tmp_path: Path, capsys: Any
) -> None:
    assert not check_config(config).class_paths
    (tmp_path / f"{own}.py").write_text("import torch\nclass Optimizer(torch.optim.Adam): ...\n")
    save_config(
        with_class(config, "train_config.dense_optimizer", f"{own}.Optimizer"), tmp_path / "own.config"
    )
    assert main(["check", str(tmp_path / "own.config")]) == 0
    said = capsys.readouterr().out
    assert (
        f"custom code: train_config.dense_optimizer.custom_optimizer.class_path imports {own}.Optimizer"
        in said
    )
