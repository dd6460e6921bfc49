from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format

from recgrad.config import (
    LegacyWarning,
    PipelineConfig,
    load_config,
    load_with_locations,
    save_config,
)
from recgrad.config.load import MAX_BYTES
from recgrad.config.locations import RepeatedWarning
from recgrad.config.names import joiner_of
from recgrad.config.proto.data_pb2 import FG_DAG, FG_NONE
from recgrad.errors import ConfigError

Written = Callable[[str | bytes], Path]
EXAMPLES = ["deepfm_criteo", "dssm_taobao", "mmoe_taobao", "multi_tower_din_taobao"]


def error_of(path: object) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config(path)  # type: ignore[arg-type]
    return str(raised.value)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.filterwarnings("ignore::recgrad.config.legacy.LegacyWarning")
def test_examples_load_as_protobuf_itself_reads_them(example: Callable[[str], Path], name: str) -> None:
    expected = text_format.Parse(example(name).read_text(), PipelineConfig())
    if expected.data_config.HasField("fg_encoded"):
        expected.data_config.ClearField("fg_encoded")
        expected.data_config.fg_mode = FG_DAG
    assert load_config(example(name)) == expected


@pytest.mark.parametrize("snake_case", [True, False])
def test_json_and_dicts_load_like_text(
    example: Callable[[str], Path], written: Written, config: PipelineConfig, snake_case: bool
) -> None:
    text = json_format.MessageToJson(config, preserving_proto_field_name=snake_case)
    path = written(text)
    assert load_config(path) == config
    assert load_config(str(path)) == config
    tree = json_format.MessageToDict(config, preserving_proto_field_name=snake_case)
    assert load_config(tree) == config


def test_a_message_is_copied(config: PipelineConfig) -> None:
    loaded = load_config(config)
    loaded.model_dir = "elsewhere"
    assert config.model_dir == "experiments/deepfm_criteo"


def test_saved_configs_load_again(config: PipelineConfig, tmp_path: Path) -> None:
    config.data_config.fg_encoded_multival_sep = "\x03中\n"
    path = tmp_path / "new" / "pipeline.config"
    save_config(config, path)
    save_config(config, path)
    assert load_config(path) == config
    assert sorted(os.listdir(path.parent)) == ["pipeline.config"]


def test_saving_where_nothing_can_be_written_is_an_error_of_ours(
    config: PipelineConfig, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_config(config, tmp_path / "file" / "pipeline.config")


def test_unknown_names_are_all_reported_with_the_nearest_one(written: Written) -> None:
    path = written(
        "train_config {\n  dense_optimizer {\n    adamv_optimizer { lr: 0.1 }\n  }\n  num_step: 5\n}\n"
    )
    assert error_of(path) == (
        "x.config:3:5 train_config.dense_optimizer: "
        "no optimizer 'adamv_optimizer'; did you mean 'adamw_optimizer'?\n"
        "        adamv_optimizer { lr: 0.1 }\n"
        "        ^\n"
        "x.config:5:3 train_config: no field 'num_step'; did you mean 'num_steps'?\n"
        "      num_step: 5\n"
        "      ^"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "data_config {\n  dataset_type: ParquetDatset\n}",
            "x.config:2:17 data_config.dataset_type: no DatasetType 'ParquetDatset'; "
            "did you mean 'ParquetDataset'?\n      dataset_type: ParquetDatset\n                    ^",
        ),
        (
            "model_dir: experiments",
            'x.config:1:12 model_dir: text must be in quotes: "experiments"\n'
            "    model_dir: experiments\n               ^",
        ),
        (
            'data_config { dataset_type: "CsvDataset" }',
            "x.config:1:29 data_config.dataset_type: write CsvDataset without quotes\n"
            '    data_config { dataset_type: "CsvDataset" }\n                                ^',
        ),
        (
            "train_config {\n\tnum_steps: 1.5\n}",
            "x.config:2:13 train_config.num_steps: 1.5 is not a whole number from 0 to 4294967295 (uint32)\n"
            "     num_steps: 1.5\n                ^",
        ),
        (
            "train_config { num_steps: -1 }",
            "x.config:1:27 train_config.num_steps: -1 is not a whole number from 0 to 4294967295 (uint32)\n"
            "    train_config { num_steps: -1 }\n                              ^",
        ),
        (
            "train_config { use_tensorboard: yes }",
            "x.config:1:33 train_config.use_tensorboard: yes is not true or false\n"
            "    train_config { use_tensorboard: yes }\n                                    ^",
        ),
        (
            "train_config {\n  num_steps: 5\n",
            "x.config:1:14 train_config: this '{' is not closed\n    train_config {\n                 ^",
        ),
        (
            "model_dir 'x'",
            "x.config:1:11: expected ':' after 'model_dir', got ''x''\n    model_dir 'x'\n              ^",
        ),
        (
            'model_dir: "x',
            'x.config:1:12: this text has no closing quote on its line\n    model_dir: "x\n               ^',
        ),
        (
            "model_dir: 'x'\n}",
            "x.config:2:1: expected a field name, got '}'\n    }\n    ^",
        ),
        (
            "train_config: 5",
            "x.config:1:15: expected '{' after 'train_config', got '5'\n"
            "    train_config: 5\n                  ^",
        ),
        (
            "feature_configs { id_feature {} raw_feature {} }",
            "x.config:1:33 feature_configs[0]: id_feature and raw_feature are both set; keep one\n"
            "    feature_configs { id_feature {} raw_feature {} }\n                                    ^",
        ),
        (
            "model_dir: ['a']",
            "x.config:1:1: 'model_dir' holds one value, not a list\n    model_dir: ['a']\n    ^",
        ),
        (
            "model_dir: '\\q'",
            "x.config:1:12: no escape '\\q'; write a backslash as '\\\\'\n"
            "    model_dir: '\\q'\n               ^",
        ),
        (
            "model_dir: '\\xff'",
            "x.config:1:12: the escapes of this text do not make valid UTF-8\n"
            "    model_dir: '\\xff'\n               ^",
        ),
        (
            "train_config { dense_optimizer { adam_optimizer { lr: 1e39 } } }",
            "x.config:1:55 train_config.dense_optimizer.adam_optimizer.lr: 1e+39 is too large for a float\n"
            "    train_config { dense_optimizer { adam_optimizer { lr: 1e39 } } }\n"
            "                                                          ^",
        ),
    ],
)
def test_errors_in_text_say_where_and_what(written: Written, text: str, expected: str) -> None:
    assert error_of(written(text)) == expected


def test_extensions_are_refused(written: Written) -> None:
    path = written("model_dir: 'a'\n[x.y]: 5")
    assert error_of(path).startswith("x.config:2:1: extensions and Any are not part of the config language")


def test_deep_json_is_refused_where_it_nests(written: Written) -> None:
    assert error_of(written('{"a":' + "[" * 100_000)) == "x.config: the JSON is nested too deep"


def test_errors_in_json_say_the_line(written: Written) -> None:
    path = written('{"modelDir": "a",\n "trainConfig": {"numSteps": -5,\n  "dense_optimizer": {"adam": {}}}}')
    assert error_of(path).splitlines() == [
        "x.config:2 train_config.num_steps: -5 is not a whole number from 0 to 4294967295 (uint32)",
        "x.config:3 train_config.dense_optimizer: no optimizer 'adam'; did you mean 'adam_optimizer'?",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"model_dir": }', 'x.config:1:15: Expecting value\n    {"model_dir": }\n                  ^'),
        (
            '{"train_config": {}, "train_config": {}}',
            "x.config: key 'train_config' is given twice in one JSON object; keep one",
        ),
        (
            '{"model_dir": "a", "modelDir": "b"}',
            "x.config: 'model_dir' and 'modelDir' are the same field; keep one",
        ),
        (
            '{"feature_configs": [{"id_feature": {}, "raw_feature": {}}]}',
            "x.config:1 feature_configs[0]: id_feature and raw_feature are both set; keep one",
        ),
        ('{"train_config": 5}', "x.config:1 train_config: 5 is not a TrainConfig"),
        (
            '{"train_config": {"num_steps": true}}',
            "x.config:1 train_config.num_steps: true is not a whole number",
        ),
        ("[1, 2]", "x.config: a config is a JSON object, not a list of 2"),
    ],
)
def test_errors_in_json(written: Written, text: str, expected: str) -> None:
    assert error_of(written(text)).startswith(expected)


def test_locations_find_fields_and_the_message_around_a_missing_one(example: Callable[[str], Path]) -> None:
    loaded = load_with_locations(example("deepfm_criteo"))
    lines = example("deepfm_criteo").read_text().splitlines()
    for path, start in [
        ("train_config", "train_config {"),
        ("train_config.dense_optimizer.adam_optimizer.lr", "lr: 1e-3"),
        ("data_config.label_fields[0]", "label_fields:"),
        (
            "feature_configs[3].raw_feature.feature_name",
            'feature_configs { raw_feature { feature_name: "int_3"',
        ),
        ("model_config.deepfm.final.hidden_units[0]", "final {"),
    ]:
        line = loaded.locations.line(path)
        assert line is not None
        assert lines[line - 1].strip().startswith(start), path
    assert loaded.locations.line("train_config.num_steps") == loaded.locations.line("train_config")
    assert loaded.locations.where("train_config.num_steps") == "deepfm_criteo.config:5 train_config.num_steps"
    assert loaded.locations.line("nothing.of.that") is None


def test_json_locations_follow_camel_case_and_lists(written: Written) -> None:
    path = written(
        '{\n"trainConfig": {\n"numSteps": 5},\n"featureConfigs": [{}, \n'
        '{"idFeature": {\n"featureName": "a, {\\"b"}}]}'
    )
    locations = load_with_locations(path).locations
    assert locations.line("train_config.num_steps") == 3
    assert locations.line("feature_configs[0]") == 4
    assert locations.line("feature_configs[1]") == 5
    assert locations.line("feature_configs[1].id_feature.feature_name") == 6


@pytest.mark.parametrize(("value", "mode"), [("true", FG_NONE), ("false", FG_DAG)])
def test_fg_encoded_becomes_fg_mode_with_one_warning(written: Written, value: str, mode: int) -> None:
    path = written(f"model_dir: 'a'\ndata_config {{\n  fg_encoded: {value}\n}}")
    with pytest.warns(LegacyWarning) as warned:
        config = load_config(path)
    assert config.data_config.fg_mode == mode
    assert not config.data_config.HasField("fg_encoded")
    name = {FG_NONE: "FG_NONE", FG_DAG: "FG_DAG"}[mode]
    assert [str(w.message) for w in warned] == [
        f"x.config:3 data_config.fg_encoded: is replaced by fg_mode; read as fg_mode: {name}"
    ]


@pytest.mark.parametrize(
    ("value", "mode"), [("true", "FG_DAG"), ("false", "FG_NONE"), ("true", "FG_BUCKETIZE")]
)
def test_fg_encoded_and_fg_mode_must_not_contradict(written: Written, value: str, mode: str) -> None:
    path = written(f"data_config {{\n  fg_encoded: {value}\n  fg_mode: {mode}\n}}")
    assert error_of(path) == (
        f"x.config:2 data_config.fg_encoded: {value} contradicts fg_mode: {mode}; keep fg_mode alone"
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "x.config: the file is empty; a config sets at least model_config"),
        (b" \n\t\n", "x.config: the file is empty; a config sets at least model_config"),
        (b"\xff\xfem\x00o\x00", "x.config: the file is UTF-16; save it as UTF-8"),
        (b"\xfe\xff\x00m", "x.config: the file is UTF-16; save it as UTF-8"),
        (b'a: 1\nmodel_dir: "\xe9"', "x.config:2:13: byte 0xE9 is not UTF-8; save the file as UTF-8"),
        (b"\x00\x01\x02", "x.config:1:1: the file holds the control character U+0000; is it a config?"),
        (b"PAR1\x15\x04", "x.config:1:5: the file holds the control character U+0015; is it a config?"),
        (
            b"x" * (MAX_BYTES + 1),
            "is larger than 4 MB, so it is no config; give long vocabularies as vocab_file",
        ),
        (
            b"{" * 200,
            "x.config:1:2: Expecting property name enclosed in double quotes\n    " + "{" * 100 + "\n     ^",
        ),
    ],
)
def test_files_that_are_no_configs(written: Written, data: bytes, expected: str) -> None:
    assert error_of(written(data)).endswith(expected)


def test_a_byte_order_mark_is_passed_over(written: Written) -> None:
    assert load_config(written(b"\xef\xbb\xbfmodel_dir: 'a'")).model_dir == "a"
    assert load_config(written(b'\xef\xbb\xbf{"model_dir": "a"}')).model_dir == "a"


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "deepfm.config").write_text("model_dir: 'a'")
    assert error_of(tmp_path / "deepfn.config").endswith("no such file; did you mean 'deepfm.config'?")
    assert error_of(tmp_path).endswith(
        "is a folder without pipeline.config; name a config file, or the model_dir of a run"
    )
    assert "cannot be read" in error_of("a\0b")
    assert error_of(3) == "a config is a path, a dict or a PipelineConfig message, not int"


def nested_struct(depth: int) -> str:
    return "feature_configs { custom_feature { operator_params {" + (
        'fields { key: "a" value { struct_value {' * depth
    )


@pytest.mark.parametrize(
    "text",
    [
        nested_struct(100_000),
        "a {" * 500_000,
        "train_config {" * 100_000,
        "[" * 1_000_000,
        '{"a":' * 300_000,
        '{"feature_configs":[{"custom_feature":{"operator_params":' + '{"a":' * 50_000,
        "model_dir: " + '"a" ' * 500_000,
        "a" * 4_000_000,
        "#" * 4_000_000,
        "{" + " " * 4_000_000,
        "model_dir: '" + "\\" * 3_000_000,
        "train_config { num_steps: " + "9" * 4_000_000,
        '{"train_config": {"num_steps": ' + "9" * 4_000_000 + "}}",
        "model_config {\n" + "feature_groups { group_name: 'g' feature_names: 'a' }\n" * 75_000 + "}",
        '{"data_config": {"label_fields": [' + '"a",' * 800_000 + '"a"]}}',
    ],
    ids=lambda text: f"{text[:30]!r}…",
)
def test_hostile_files_end_quickly(written: Written, text: str) -> None:
    path = written(text)
    start = time.process_time()
    message = ""
    try:
        load_config(path)
    except ConfigError as error:
        message = str(error)
    assert time.process_time() - start < 8
    assert len(message) < 20_000


def test_importing_is_light() -> None:
    """A config can be loaded and edited without any of the libraries that take long to import."""
    heavy = ("torch", "numpy", "numba", "pyarrow", "matplotlib", "rich", "torchmetrics", "tensorboard")
    code = f"import sys, recgrad.config; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("model_dir: 'a'\nmodel_dir: 'b'", "x.config:2:1 model_dir: is set twice; the last one counts"),
        (
            '{"model_dir": "a", "model_dir": "b"}',
            "x.config: key 'model_dir' is set twice; the last one counts",
        ),
        (
            "train_config { num_steps: 1 } model_dir: 'b' train_config { num_steps: 2 }",
            "x.config:1:61 train_config.num_steps: is set twice; the last one counts",
        ),
    ],
)
def test_of_a_value_that_is_set_twice_the_last_counts(written, text: str, warning: str) -> None:
    with pytest.warns(RepeatedWarning) as caught:
        config = load_config(written(text))
    assert [str(one.message) for one in caught] == [warning]
    assert config.model_dir == "b"
    assert config.train_config.num_steps in (0, 2)


@pytest.mark.parametrize("number", [4294967296, 2**32 + 1, -1, 2**70])
def test_a_number_that_no_enum_has_is_an_error_of_its_line(written, number: int) -> None:
    what = f"{number} is not a FieldType" if number < 10**20 else "is not a FieldType"
    field = f"input_name: 'a' input_type: {number}"
    for text in (
        f"data_config {{ input_fields {{ {field} }} }}",
        f'{{"data_config": {{"input_fields": [{{"input_name": "a", "input_type": {number}}}]}}}}',
    ):
        with pytest.raises(ConfigError, match=re.escape(what)):
            load_config(written(text))


def test_the_environment_asks_for_one_underscore(written, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written("model_dir: 'x'")
    assert joiner_of(load_config(path)) == "__"
    monkeypatch.setenv("USE_RTP", "1")
    config = load_config(path)
    assert joiner_of(config) == "_"
    save_config(config, path)
    monkeypatch.delenv("USE_RTP")
    assert joiner_of(load_config(path)) == "_"  # what was read once stays in the saved config
    monkeypatch.setenv("USE_RTP", "1")
    assert joiner_of(load_config(written("rtp_names: false"))) == "__"


def test_a_model_dir_means_its_config_wherever_it_is_now(tmp_path: Path, written: Written) -> None:
    config = load_config(written('model_dir: "elsewhere/model" train_input_path: "a"'))
    save_config(config, tmp_path / "moved" / "pipeline.config")
    loaded = load_with_locations(tmp_path / "moved")
    assert loaded.message.model_dir == str(tmp_path / "moved")
    config.model_dir = str(tmp_path / "moved")
    assert loaded.message == config
    assert loaded.locations.where("model_dir") == "model_dir"
    assert loaded.locations.where("train_input_path") == "pipeline.config:1 train_input_path"
