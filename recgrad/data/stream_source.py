"""The source of a config whose rows come while the run lasts."""

from __future__ import annotations

from recgrad.config.proto.data_pb2 import DataConfig, KafkaDataset, ParquetDataset
from recgrad.data.loader_settings import LoaderSettings
from recgrad.data.readers.build import is_topic
from recgrad.data.readers.streams.folder import FolderSource
from recgrad.data.readers.streams.kafka import KafkaSource
from recgrad.data.readers.streams.source import Source
from recgrad.data.readers.where_text import split_where
from recgrad.errors import ConfigError, Problem


def is_stream(input_path: str, data: DataConfig, *, training: bool) -> bool:
    """Whether rows come from a topic, or for training from a folder that grows.

    Beside a topic to train on, files may be evaluated on.
    """
    return is_topic(input_path, data) or (data.follow and training)


def stream_problems(data: DataConfig) -> list[Problem]:
    """What of a config does not go with streams."""
    problems = []
    streams = data.follow or data.dataset_type == KafkaDataset
    if data.follow and data.dataset_type != ParquetDataset:
        problems.append(Problem("data_config.follow", "is for ParquetDataset; leave it out"))
    if streams and data.shuffle:
        what = "rows of a stream are trained on in the order in which they come; leave it out"
        problems.append(Problem("data_config.shuffle", what))
    if streams and data.batch_cost_size:
        problems.append(Problem("data_config.batch_cost_size", "is for files; leave it out"))
    for name in ("idle_secs", "partition_wait_secs", "rank_wait_secs", "poll_secs"):
        value = getattr(data.stream, name)
        if not 0.0 <= value < 1e9:
            problems.append(
                Problem(f"data_config.stream.{name}", f"must be 0 or more seconds, got {value:g}")
            )
    return problems


def open_source(input_path: str, data: DataConfig, settings: LoaderSettings, *, endless: bool) -> Source:
    """The topic or folder at a path, for this rank.

    Raises:
        ConfigError: a setting does not go with streams.
        DataError: the brokers or the folder cannot be read.
    """
    problems = stream_problems(data)
    path, condition = split_where(input_path)
    if condition is not None:
        problems.append(Problem("train_input_path", "where is for files that are all there; leave it out"))
    if problems:
        raise ConfigError(problems)
    kind: type[KafkaSource] | type[FolderSource] = KafkaSource if is_topic(path, data) else FolderSource
    return kind(path, data, rank=settings.rank, ranks=settings.world_size, bounded=not endless)
