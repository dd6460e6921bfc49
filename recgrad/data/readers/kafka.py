"""A topic as far as it can be looked at: columns and the first rows, for checks and exports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.readers.reader import READERS, Block, FileIdentity, Fragment, Reader
from recgrad.data.readers.streams.kafka import KafkaSource
from recgrad.data.readers.streams.kafka_path import PREFIX
from recgrad.errors import DataError

SAMPLE_ROWS = 4096
WAIT_SECS = 5.0


@READERS.register("KafkaDataset")
class KafkaReader(Reader):
    """Reads topics of Kafka, `kafka://host:port/topic?group.id=…`, messages as Arrow or JSON.

    Training, evaluation and prediction read the whole topic as a stream (`recgrad.data.stream_loader`); this
    gives its columns and the first rows.
    """

    def __init__(self, input_path: str, config: DataConfig) -> None:
        source = KafkaSource(input_path, config, rank=0, ranks=1, bounded=True)
        self._block = _sample(source)
        self.files = tuple(source.files)
        self.schemas = (source.schema,) * len(self.files)
        self.identities = tuple(FileIdentity(name, 0, "") for name in self.files)
        rows = self._block.table.num_rows
        self.fragments = (Fragment(0, 0, 0, rows),) if rows else ()

    def read(self, fragment: Fragment, columns: Sequence[str]) -> Iterator[Block]:
        """The first rows."""
        block = self._block
        yield Block(
            block.table.select(list(columns)), block.bad, numbers=block.numbers, sources=block.sources
        )


def _sample(source: KafkaSource) -> Block:
    flow = source.open(source.start(), source.schema.names)
    try:
        run = flow.poll(WAIT_SECS)
    finally:
        flow.close()
    if run is None:
        return Block(source.schema.empty_table())
    return run.block.slice(0, min(run.block.table.num_rows, SAMPLE_ROWS))


def refuse_topics(input_path: str, remedy: str) -> None:
    """Raise a DataError for what needs all rows of a dataset and is given a topic."""
    if input_path.startswith(PREFIX):
        raise DataError(
            f"data: '{input_path.partition('?')[0]}' is a topic, of which there is no last row; {remedy}"
        )
