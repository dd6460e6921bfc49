"""Rows that a bundle is tried with, when it is written and whenever it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from recgrad.config import PipelineConfig
from recgrad.data.arrow_columns import one_chunk, without_dictionary
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.readers.build import open_reader
from recgrad.data.readers.reader import Reader
from recgrad.data.samplers.build import build_sampler, provided_features
from recgrad.data.samplers.sampler import SamplerSource
from recgrad.errors import RecgradError

GOLDEN_ROWS = 16


def golden_rows(config: PipelineConfig, features: Sequence[Feature], input_path: str | None) -> pa.Table:
    """The first good rows of a dataset, of all columns that features read.

    Args:
        config: how files are read; its evaluation or training data are taken where no path is given.
        features: of the model.
        input_path: the dataset.
    """
    path = input_path or config.eval_input_path or config.train_input_path
    if not path:
        raise RecgradError(
            "export: no rows to try the bundle with; set eval_input_path, or give --example_input_path"
        )
    encoder = FeatureEncoder(features)
    reader = open_reader(path, config.data_config)
    complete, columns = _completed(config, features, encoder.columns, reader)
    reader.check_columns(columns)
    found: list[pa.Table] = []
    for fragment in reader.fragments:
        for block in reader.read(fragment, columns):
            rows = complete(block.table.slice(0, 4 * GOLDEN_ROWS))
            found.append(_good(encoder, rows, [bad.row for bad in block.bad]))
            if sum(table.num_rows for table in found) >= GOLDEN_ROWS:
                return pa.concat_tables(found).slice(0, GOLDEN_ROWS).combine_chunks()
    if not any(table.num_rows for table in found):
        raise RecgradError(
            f"export: '{path}' has no row that the features can read; give --example_input_path"
        )
    return pa.concat_tables(found).combine_chunks()


def _completed(
    config: PipelineConfig, features: Sequence[Feature], columns: Sequence[str], reader: Reader
) -> tuple[Callable[[pa.Table], pa.Table], list[str]]:
    """What adds the columns that the data have not and the sampler brings, and the columns to read for it."""
    there = [name for name in columns if name in reader.schema.names]
    provided = provided_features(config, features)
    brought = {name for f in features if f.name in provided for name in f.columns}
    if len(there) == len(columns) or not brought:
        return lambda table: table, list(columns)
    sampler = build_sampler(SamplerSource(config.data_config, features, reader, training=False, seed=0))
    assert sampler is not None

    def complete(table: pa.Table) -> pa.Table:
        own = {name: one_chunk(without_dictionary(table.column(name))) for name in sampler.columns}
        for name, column in sampler.own_columns(own).items():
            if name in brought and name not in table.column_names:
                table = table.append_column(name, column)
        return table

    needed = [name for name in columns if name in there or name not in brought]
    return complete, list(dict.fromkeys([*needed, *sampler.columns]))


def _good(encoder: FeatureEncoder, table: pa.Table, bad: Sequence[int]) -> pa.Table:
    """The first rows of a table without those that cannot be encoded."""
    table = pa.table({name: without_dictionary(table.column(name)) for name in encoder.columns})
    faults = Faults()
    encoder.encode_table(table, faults)
    keep = np.ones(table.num_rows, np.bool_)
    keep[faults.rows] = False
    keep[[row for row in bad if row < len(keep)]] = False
    return table.filter(pa.array(keep))
