"""Loading and saving configs."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import text_format

from recgrad.config.fill import fill
from recgrad.config.json_source import MAX_PROBLEMS, parse_json
from recgrad.config.legacy import LegacyWarning, replace_fg_encoded
from recgrad.config.locations import Locations, RepeatedWarning
from recgrad.config.names import take_environment
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.config.text_source import parse_text
from recgrad.errors import ConfigError, Problem, nearest, system_reason, whole_path

Source = str | os.PathLike[str] | PipelineConfig | Mapping[str, Any]

CONFIG_FILE = "pipeline.config"
"""The config of a run as it ran, in its model_dir."""

MAX_BYTES = 4 * 2**20
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f]")


class LoadedConfig(NamedTuple):
    """A config, where its fields stand in its file, and what to warn the user of."""

    message: PipelineConfig
    locations: Locations
    warnings: tuple[str, ...] = ()

    def warn(self, stacklevel: int) -> None:
        """Issue the warnings: fields that have been replaced, and values that were set twice."""
        for warning in self.warnings:
            warnings.warn(warning, LegacyWarning, stacklevel=stacklevel)
        for warning in self.locations.repeated:
            warnings.warn(warning, RepeatedWarning, stacklevel=stacklevel)


def load_config(source: Source) -> PipelineConfig:
    """The config that a file, a dict or a message holds.

    A file holds protobuf text format or JSON, told apart by content. A folder is the model_dir of
    a run: its pipeline.config is loaded, with model_dir as the folder is named here. A message is copied.
    Replaced fields are brought up to date, with a LegacyWarning. Of a value that is set twice the
    last counts, with a RepeatedWarning.

    Raises:
        ConfigError: the file cannot be read, or does not follow the schema.
    """
    loaded = load_with_locations(source)
    loaded.warn(stacklevel=3)
    return loaded.message


def load_with_locations(source: Source) -> LoadedConfig:
    """As load_config, with the lines of the fields, and with warnings returned instead of issued."""
    config = PipelineConfig()
    locations = Locations()
    if isinstance(source, PipelineConfig):
        config.CopyFrom(source)
    elif isinstance(source, Mapping):
        _from_dict(source, config)
    elif isinstance(source, (str, os.PathLike)):
        locations = _from_file(source, config)
    else:
        raise ConfigError(
            f"a config is a path, a dict or a PipelineConfig message, not {type(source).__name__}"
        )
    take_environment(config)
    warning = replace_fg_encoded(config, locations)
    return LoadedConfig(config, locations, () if warning is None else (warning,))


def save_config(config: PipelineConfig, path: str | os.PathLike[str]) -> None:
    """Write a config as text format; the file appears whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = Path(path)
    text = text_format.MessageToString(config, as_utf8=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ConfigError([Problem(str(path), f"cannot be written: {system_reason(error)}")]) from error


def _from_dict(source: Mapping[str, Any], config: PipelineConfig) -> None:
    problems: list[Problem] = []

    def report(path: str, what: str) -> None:
        if len(problems) < MAX_PROBLEMS:
            problems.append(Problem(path, what))

    fill(config, source, report)
    if problems:
        raise ConfigError(problems)


def _from_file(path: str | os.PathLike[str], config: PipelineConfig) -> Locations:
    name = os.fspath(path)
    if os.path.isdir(name):
        return _from_model_dir(name, config)
    source = os.path.basename(name) or name
    text = _decode(_read(name), source)
    start = text.lstrip()[:1]
    if not start:
        raise ConfigError([Problem(source, "the file is empty; a config sets at least model_config")])
    parse = parse_json if start in ("{", "[") else parse_text
    return parse(text, config, source)


def _from_model_dir(folder: str, config: PipelineConfig) -> Locations:
    """The config of the run that the folder is of, wherever the folder was when it ran."""
    try:
        found = CONFIG_FILE in os.listdir(folder)
    except OSError as error:
        what = f"cannot be read{whole_path(folder)}: {system_reason(error)}"
        raise ConfigError([Problem(folder, what)]) from None
    if not found:
        what = f"is a folder{whole_path(folder)} without {CONFIG_FILE}; "
        what += "name a config file, or the model_dir of a run"
        raise ConfigError([Problem(folder, what)])
    locations = _from_file(os.path.join(folder, CONFIG_FILE), config)
    config.model_dir = folder
    locations.forget("model_dir")
    return locations


def _read(name: str) -> bytes:
    """The bytes of a file, which may not be larger than any config is."""
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        folder, base = os.path.split(name)
        try:
            near = nearest(base, os.listdir(folder or "."))
        except OSError:
            near = ""
        raise ConfigError([Problem(name, f"no such file{whole_path(name)}{near}")]) from None
    except OSError as error:
        what = f"cannot be read{whole_path(name)}: {system_reason(error)}"
        raise ConfigError([Problem(name, what)]) from None
    except ValueError as error:
        raise ConfigError([Problem(name, f"cannot be read: {error}")]) from None
    if len(data) > MAX_BYTES:
        what = (
            f"is larger than {MAX_BYTES >> 20} MB, so it is no config; give long vocabularies as vocab_file"
        )
        raise ConfigError([Problem(name, what)])
    return data


def _decode(data: bytes, source: str) -> str:
    """File bytes as text: UTF-8, with or without a byte-order mark."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError([Problem(source, "the file is UTF-16; save it as UTF-8")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        line = data.count(b"\n", 0, start) + 1
        column = start - (data.rfind(b"\n", 0, start) + 1) + 1
        what = f"byte 0x{data[start]:02X} is not UTF-8; save the file as UTF-8"
        raise ConfigError([Problem(f"{source}:{line}:{column}", what)]) from None
    control = _CONTROL.search(text)
    if control is not None:
        place = Locations(source, text).at(control.start())
        what = f"the file holds the control character U+{ord(control.group()):04X}; is it a config?"
        raise ConfigError([Problem(place, what)])
    return text
