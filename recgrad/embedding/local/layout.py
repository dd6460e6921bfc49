"""The columns of the integer tables through which Python and kernels speak.

A table in memory. Slots are all reserved at once (memory.py) and paid for by the page when they are written:

    WEIGHTS ─▶ ┌ slot 0 ──────────────┬ slot 1 ──────────────┬ …      STRIDE bytes each
               │ dim weights of KIND  │                      │
               │ (DIRECTION, update)  │                      │        only where rows catch up (HISTORY)
               │ states of dim float32│                      │        a lookup reads READ bytes, not these
               └──────────────────────┴──────────────────────┴
    states ──▶ ┌ slot 0: one float32 ┬ slot 1 ┬ …                     those of one number a row, a region each

States lie behind the weights because an update reads and writes them all: one place in memory instead of
three costs it a third less where tables are larger than caches. One number behind each row would tear rows
of whole cache lines apart, so it has a region of its own.

    plain      slot = row
    compact    INDEX ─▶ 2^BITS entries, row ─▶ slot; slots are handed out in the order of first updates

A slot whose first element is all zero bits was never written: its row reads as the initialiser's value of
(KEY, row), see rows.py. A batch that looks up new rows therefore writes nothing.
"""

from __future__ import annotations

# A table: addresses and sizes. INDEX is 0 for a plain table, whose slots are its rows.
(
    WEIGHTS,  # address of slot 0
    STRIDE,  # bytes from row to row: the weights, and what lies behind them
    KIND,  # simd.F32, F16 or BF16
    ROWS,  # ids are 0 … ROWS − 1
    INIT,  # kind of initialiser
    KEY,  # of the random generator
    INDEX,  # address of the index from row to slot
    BITS,  # the index has 2^BITS entries
    OLD_INDEX,  # the smaller index that is being moved over, or 0
    OLD_BITS,
    MOVED,  # entries of the old index that are moved
    COUNT,  # slots handed out (compact), rows touched (plain)
    FIRST_ROW,  # of a shard: where it begins in the whole table
    FIRST_COLUMN,
    HISTORY,  # address of what its rows miss while no batch touches them; 0 if they stay as they are
    DIRECTION,  # bytes from a row to the direction in which it moves, and to its last update, int32
    KEYS,  # address of 16 bytes a row that begin with the key that its value is drawn by; 0: by the row
    FROZEN,  # rows below this are looked up but never updated
    CHANGED,  # address of a byte a slot that updates set to 1 (changes.py); 0: nobody asks
    READ,  # bytes of a row that a lookup reads
    TABLE_COLUMNS,
) = range(21)

# A lookup in the forward pass, or a source of gradients in the update.
(
    TABLE,  # row of the table matrix
    IDS,  # address of the ids: of the first bag's, or of all values when OFFSETS is set
    OFFSETS,  # address of the first bag's offset; 0 when every bag holds one id
    ID_WEIGHTS,  # address of per-id weights, aligned with IDS; 0 for none
    BAGS,  # the number of bags
    MEAN,  # 1 to divide by the number of ids
    VECTORS,  # address of the first bag's output or gradient
    VECTOR_STRIDE,  # bytes from one bag's vector to the next
    LOOKUP_COLUMNS,
) = range(9)
