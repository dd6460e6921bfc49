"""What a bundle says of a table and of its uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableRecord:
    """A table in files.

    Attributes:
        name: as checkpoints know it.
        num_rows: ids are 0 … num_rows − 1.
        dim: width of a row.
        packing: how rows lie, by its name in `PACKINGS`.
        stored_rows: rows of the file; `num_rows` of them where there is no index.
        rows_file: where rows lie, one after another.
        index_file: where the slot of a row is found: 2^index_bits int64, see `recgrad.embedding.local.index`;
            "" where row r is the r-th.
        index_bits: of the index.
        init_kind: distribution of rows that were never trained.
        init_parameters: of the distribution.
        key: of the random numbers of this table.
        entries: where rows belong to ids as they come, entries of 16 bytes of the index from id to row, see
            `recgrad.embedding.local.living.index`; 0 where ids are row numbers.
        stand_ins: rows at the beginning of such a file that ids without a row read.
        capacity: ids that may have a row; deltas may bring as many.
    """

    name: str
    num_rows: int
    dim: int
    packing: str
    stored_rows: int
    rows_file: str
    index_file: str
    index_bits: int
    init_kind: int
    init_parameters: tuple[float, ...]
    key: int
    entries: int = 0
    stand_ins: int = 0
    capacity: int = 0


@dataclass(frozen=True)
class LookupRecord:
    """One use of a table: the bags of feature `key`, pooled ("sum" or "mean"); of positions if `sequence`."""

    name: str
    key: str
    table: str
    pooling: str
    sequence: bool
