"""Looking at the data before a run: columns, types, and a sample of the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.bad_rows import add_unparsed, describe
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.order import plan_epoch
from recgrad.data.readers.build import check_declared, open_reader
from recgrad.data.readers.reader import Block, Reader
from recgrad.data.samplers.build import provided_features
from recgrad.data.targets import Targets, check_number, check_types, encode_targets
from recgrad.data.units import Unit, Window, WindowSlice
from recgrad.errors import DataError, Problem, RecgradError


def check_data(
    config: PipelineConfig, features: Sequence[Feature], targets: Targets, *, sample_rows: int = 10_000
) -> list[Problem]:
    """All problems of the training and evaluation data that a look at them shows.

    Every file's columns and types are checked. Of each dataset, the first rows of the first and of
    the last fragment are encoded, `sample_rows` in all, and the first bad value of each kind is
    reported. With `on_bad_row: SKIP` bad rows are no problem.
    """
    problems = []
    provided = provided_features(config, features)
    features = [feature for feature in features if feature.name not in provided]
    for where in ("train_input_path", "eval_input_path"):
        path = getattr(config, where)
        if path and not (where == "eval_input_path" and path == config.train_input_path):
            problems += _check_path(where, path, config.data_config, features, targets, sample_rows)
    return problems


def _check_path(
    where: str,
    path: str,
    data: DataConfig,
    features: Sequence[Feature],
    targets: Targets,
    sample_rows: int,
) -> list[Problem]:
    try:
        reader = open_reader(path, data)
    except RecgradError as error:
        return [Problem(where, str(error))]
    encoder = FeatureEncoder(features)
    costs = [data.sample_cost_field] if data.sample_cost_field else []
    columns = list(dict.fromkeys([*encoder.columns, *targets.columns, *costs]))
    problems = []
    for name in columns:
        try:
            reader.check_columns([name])
        except DataError as error:
            problems.append(Problem(where, str(error)))
    if problems:
        return problems
    first_file = reader.files[reader.first_file]
    try:
        check_declared(reader, data, columns)
        check_types(targets, reader.schema, first_file)
        for name in costs:
            check_number("sample cost", name, reader.schema, first_file)
        found = _check_sample(reader, encoder, targets, sample_rows)
    except DataError as error:
        return [Problem(where, str(error))]
    if data.on_bad_row == DataConfig.SKIP:
        return []
    return [Problem(where, text) for text in found]


def _check_sample(reader: Reader, encoder: FeatureEncoder, targets: Targets, sample_rows: int) -> list[str]:
    """The first bad value of each kind among the first rows of the first and the last fragment."""
    columns = list(dict.fromkeys([*encoder.columns, *targets.columns]))
    picked = dict.fromkeys(i for i in (0, len(reader.fragments) - 1) if reader.fragments)
    found: dict[tuple[str, str], str] = {}
    left = sample_rows
    for number, index in enumerate(picked):
        fragment = reader.fragments[index]
        wanted = left // (len(picked) - number)
        for block in reader.read(fragment, columns):
            count = min(wanted, block.table.num_rows)
            faults = _encode(block.slice(0, count), encoder, targets, columns)
            for fault in faults.firsts():
                text = describe(
                    fault, reader.files[fragment.file], block.row_number(fault.row, fragment.first_row)
                )
                found.setdefault((fault.feature, fault.reason), text)
            left -= count
            break
    return list(found.values())


def _encode(block: Block, encoder: FeatureEncoder, targets: Targets, columns: Sequence[str]) -> Faults:
    count = block.table.num_rows
    plan = plan_epoch([count], batch_size=max(count, 1), shuffle=False, window_batches=1, seed=0, epoch=0)
    unit = Unit(0, (WindowSlice(Window(0, 0, (block,), plan), 0, count),), (0, count))
    arrays = unit.columns(columns)
    faults = Faults()
    add_unparsed(faults, unit.bad())
    with np.errstate(all="ignore"):
        encoder.encode(arrays, count, faults)
    encode_targets(targets, arrays, faults)
    return faults
