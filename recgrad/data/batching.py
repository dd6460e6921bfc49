"""From a unit of raw rows to finished batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import torch

from recgrad.data.arrow_columns import without_dictionary
from recgrad.data.bad_rows import Skipped, add_unparsed, fail, skip
from recgrad.data.batch import Batch, Origin
from recgrad.data.coded import CodedEncoder
from recgrad.data.encoded import Encoded
from recgrad.data.event_time import latest_event
from recgrad.data.faults import Faults
from recgrad.data.samplers.sampler import Place, Sampler
from recgrad.data.targets import EncodedTargets, Targets, encode_targets
from recgrad.data.units import Unit, are_costs, cost_values


@dataclass(frozen=True)
class LoadedBatch:
    """One batch as the loader hands it over.

    Attributes:
        batch: the batch.
        carried: columns that are passed through, row for row beside the batch.
        start, stop: the rows of the epoch that it covers, bad ones too.
        bad_rows: rows among them that were left out.
        event_time: of its latest event, in seconds since 1970; None where no column says it.
    """

    batch: Batch
    carried: pa.Table
    start: int
    stop: int
    bad_rows: int
    event_time: float | None = None


@dataclass(frozen=True)
class LoadedUnit:
    """The batches of a unit, and the bad rows that were left out."""

    batches: tuple[LoadedBatch, ...]
    skipped: Skipped | None


@dataclass(frozen=True)
class UnitEncoder:
    """Encodes units.

    Attributes:
        encoder: of the features.
        targets: labels, weights and keys.
        columns: all columns to take from the rows.
        carry: columns to pass through.
        files: names of the files.
        skip_bad: leave bad rows out instead of stopping.
        keep_empty: deliver a batch whose rows are all bad, so that ranks stay in step.
        mask_probability: how often a row's maskable features are hidden.
        cost: column of costs and the most that a batch may cost.
        sampler: draws what rows are compared with.
        pin: put batches into page-locked memory.
        timestamp: column of event times.
    """

    encoder: CodedEncoder
    targets: Targets
    columns: tuple[str, ...]
    carry: tuple[str, ...]
    files: Sequence[str]
    skip_bad: bool = False
    keep_empty: bool = False
    mask_probability: float = 0.0
    cost: tuple[str, int] | None = None
    sampler: Sampler | None = None
    pin: bool = False
    timestamp: str = ""

    def __call__(self, unit: Unit) -> LoadedUnit:
        """The batches of a unit.

        Raises:
            DataError: a row is bad and bad rows are not skipped.
        """
        columns = unit.columns(self.columns)
        file_index, rows = unit.files(), unit.rows()
        mask = unit.mask(self.mask_probability) if self.mask_probability else None
        faults = Faults()
        add_unparsed(faults, unit.bad())
        self._check_costs(columns, faults)
        encoded, targets = self._encode(columns, unit.num_rows, mask, faults)
        cuts = np.asarray(unit.bounds, np.int64) - unit.start
        skipped = None
        if faults:
            if not self.skip_bad:
                fail(faults, self.files, file_index, rows)
            skipped = skip(faults, self.files, file_index, rows)
            keep = np.ones(unit.num_rows, np.bool_)
            keep[skipped.rows] = False
            columns = {name: column.filter(pa.array(keep)) for name, column in columns.items()}
            file_index, rows = file_index[keep], rows[keep]
            mask = None if mask is None else mask[keep]
            encoded, targets = self._encode(columns, int(keep.sum()), mask, faults := Faults())
            assert not faults, "rows that were good are bad without their neighbours"
            cuts = cuts - np.searchsorted(skipped.rows, cuts)
        bounds = list(unit.bounds)
        if skipped is not None:
            cuts, bounds = self._join_small(cuts, bounds)
        carried = pa.table({name: without_dictionary(columns[name]) for name in self.carry})
        origin = Origin(self.files, torch.from_numpy(file_index), torch.from_numpy(rows))
        batches = []
        for i, part in enumerate(encoded.cut(cuts.tolist())):
            at = int(cuts[i])
            taken = slice(at, at + part.size)
            batch = Batch.of(part, origin=_cut_origin(origin, taken), **targets.cut(taken))
            batches.append(self._deliver(batch, carried, columns, at, (bounds[i], bounds[i + 1]), unit))
        return LoadedUnit(tuple(batches), skipped)

    def _encode(
        self, columns: Mapping[str, pa.Array], size: int, mask: np.ndarray | None, faults: Faults
    ) -> tuple[Encoded, EncodedTargets]:
        encoded = self.encoder.encode(columns, size, faults, mask)
        return encoded, encode_targets(self.targets, columns, faults)

    def _deliver(
        self,
        batch: Batch,
        carried: pa.Table,
        columns: Mapping[str, pa.Array],
        at: int,
        rows: tuple[int, int],
        unit: Unit,
    ) -> LoadedBatch:
        (start, stop), size = rows, batch.size
        if self.sampler is not None:
            read = {name: columns[name].slice(at, size) for name in self.sampler.columns}
            read = {name: without_dictionary(column) for name, column in read.items()}
            batch = self.sampler.sample(batch, read, Place(unit.epoch, unit.rank, start))
        if self.pin:
            batch = batch.pin_memory()
        latest = latest_event(columns[self.timestamp].slice(at, size)) if self.timestamp else None
        return LoadedBatch(batch, carried.slice(at, size), start, stop, stop - start - size, latest)

    def _join_small(self, cuts: np.ndarray, bounds: Sequence[int]) -> tuple[np.ndarray, list[int]]:
        """Bounds without batches that bad rows left empty or with one row, where a neighbour takes it."""
        if self.keep_empty:
            return cuts, list(bounds)
        keep = [0]
        for i, (start, stop) in enumerate(pairwise(cuts.tolist()), start=1):
            if stop - start <= 1 and len(keep) > 1:
                keep[-1] = i
            else:
                keep.append(i)
        if len(keep) > 2 and cuts[keep[1]] - cuts[keep[0]] <= 1:
            del keep[1]
        return cuts[keep], [bounds[i] for i in keep]

    def _check_costs(self, columns: Mapping[str, pa.Array], faults: Faults) -> None:
        if self.cost is None:
            return
        name, limit = self.cost
        values = cost_values(columns[name])
        bad = ~are_costs(values, limit)
        faults.add(
            np.flatnonzero(bad),
            column=name,
            feature=f"sample cost {name}",
            reason=f"cost {{value}} is not above 0 and at most batch_cost_size {limit}",
            values=values[bad],
            remedy="correct the cost, or raise data_config.batch_cost_size",
        )


def _cut_origin(origin: Origin, taken: slice) -> Origin:
    return Origin(origin.files, origin.file_index[taken], origin.row[taken])
