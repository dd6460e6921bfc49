"""The loader that a config asks for: of files that are there, or of a stream."""

from __future__ import annotations

from collections.abc import Sequence

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.batching import UnitEncoder
from recgrad.data.coded import CodedEncoder
from recgrad.data.event_time import check_time
from recgrad.data.features.base import Feature
from recgrad.data.file_loader import Loader
from recgrad.data.loader_settings import resolve_settings
from recgrad.data.position import Position
from recgrad.data.readers.build import check_declared, open_reader
from recgrad.data.readers.reader import Reader
from recgrad.data.readers.streams.source import ColumnsOf, Source
from recgrad.data.samplers.build import build_sampler, leaves_unused, provided_features
from recgrad.data.samplers.sampler import SamplerSource
from recgrad.data.stream_loader import StreamLoader, Waits
from recgrad.data.stream_source import is_stream, open_source
from recgrad.data.targets import Targets, check_number, check_types

__all__ = ["Loader", "Position", "build_loader"]


def build_loader(
    config: PipelineConfig,
    input_path: str,
    *,
    features: Sequence[Feature],
    targets: Targets | None,
    training: bool,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    carry_columns: Sequence[str] = (),
    pin: bool = False,
) -> Loader:
    """A loader of the dataset at `input_path`, as `config.data_config` says.

    Args:
        config: the whole config; data_config counts.
        input_path: files, globs, folders or table addresses, joined by commas; or a topic.
        features: what to encode.
        targets: labels, sample weights and keys to read; None reads none of them, and samples nothing.
        training: shuffle, drop the remainder, mask and sample as for training.
        seed: with the epoch, decides all that is random.
        rank: which of `world_size` shares of the data to read.
        world_size: the number of processes that read the data together.
        carry_columns: columns to pass through beside the batches.
        pin: batches go to a GPU, from page-locked memory if data_config.pin_memory says so.

    Raises:
        ConfigError: settings contradict each other.
        DataError: files are missing or damaged, or lack a column or have it with a wrong type.
    """
    data = config.data_config
    settings = resolve_settings(data, training=training, seed=seed, rank=rank, world_size=world_size, pin=pin)
    stream = is_stream(input_path, data, training=training)
    endless = training and bool(config.train_config.num_steps)
    rows: Reader | Source
    if stream:
        rows = open_source(input_path, data, settings, endless=endless)
    else:
        rows = open_reader(input_path, data)
    sampler = None
    if targets is not None and not leaves_unused(config):
        known = rows if isinstance(rows, Reader) else ColumnsOf(rows)
        sampler = build_sampler(SamplerSource(data, features, known, training=training, seed=seed))
    targets = targets or Targets()
    provided = provided_features(config, features) if sampler else frozenset[str]()
    encoder = CodedEncoder([f for f in features if f.name not in provided], rows.coded_columns)
    needed = [*encoder.columns, *targets.columns, *carry_columns]
    needed += [settings.cost[0]] if settings.cost else []
    needed += sampler.columns if sampler else []
    needed += [data.timestamp_field] if data.timestamp_field and training else []
    columns = tuple(dict.fromkeys(needed))
    first_file = _check_columns(rows, data, columns)
    check_types(targets, rows.schema, first_file)
    if settings.cost:
        check_number("sample cost", settings.cost[0], rows.schema, first_file)
    if data.timestamp_field and training:
        check_time(data.timestamp_field, rows.schema, first_file)
    unit_encoder = UnitEncoder(
        encoder=encoder,
        targets=targets,
        columns=columns,
        carry=tuple(carry_columns),
        files=rows.files,
        skip_bad=settings.skip_bad,
        keep_empty=world_size > 1,
        mask_probability=settings.mask_probability,
        cost=settings.cost,
        sampler=sampler,
        pin=settings.pin,
        timestamp=data.timestamp_field if training else "",
    )
    if isinstance(rows, Reader):
        return Loader(rows, unit_encoder, settings)
    waits = Waits(idle=data.stream.idle_secs if training else 0.0, rank=data.stream.rank_wait_secs)
    return StreamLoader(rows, unit_encoder, settings, endless=training, waits=waits)


def _check_columns(rows: Reader | Source, data: DataConfig, columns: Sequence[str]) -> str:
    """Raise a DataError unless all columns are there; returns what the data are called in messages."""
    if isinstance(rows, Reader):
        rows.check_columns(columns)
        check_declared(rows, data, columns)
        return rows.files[rows.first_file]
    rows.check_columns(columns)
    return rows.name
