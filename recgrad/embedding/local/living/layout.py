"""The columns of the line of integers through which Python and kernels speak of a living table.

ENTRIES ─▶ SIZE entries of 16 bytes: key, row + 1        0 is empty; open addressing, linear probing
META ────▶ of each row 16 bytes: key (−1: free), count int32, last pass int32
PENDING ─▶ of each row, in this window: count int32, last pass int32; only where a filter asks for it
WINDOW ──▶ keys without a row that were seen, in the order of appearance: key, count, last pass
COUNTERS ─▶ buckets of WAYS entries: key + 1, count; keys that are not admitted yet
"""

from __future__ import annotations

(
    TABLE_LINE,  # address of the table's line for the lookup kernels
    ENTRIES,
    SIZE,
    OLD_ENTRIES,  # the smaller index that is being moved over, or 0
    OLD_SIZE,
    MOVED,  # entries of the old index that are moved
    META,
    PENDING,  # 0 where keys are counted at once
    RESERVED,  # rows in front that belong to no key
    CAPACITY,
    LIVE,  # keys that have a row
    HIGH,  # one past the highest row that was ever given out
    FREE,  # address of int32, rows that were given back
    FREE_COUNT,
    STEP,  # forward passes in training
    SAFE,  # rows seen in this pass or later may have gradients waiting: they stay
    POLICY,
    DECAY,  # address of a float64
    FILTER,  # 0 none, 1 above, 2 mean, 3 chance
    FILTER_VALUE,  # address of a float64
    KEY,  # of the random numbers of the table
    ZCH,  # 1: rounds by window; 0: keys are admitted as they come
    THRESHOLD,
    COUNTERS,
    BUCKETS,
    TTL,
    WINDOW,
    WINDOW_COUNT,
    WINDOW_INDEX,  # address of int32, number of the entry + 1
    WINDOW_BITS,
    UNKNOWN,  # first of the rows for keys without a row in evaluation
    UNKNOWN_ROWS,
    REFUSED,  # first of the rows for keys without a row in training
    REFUSED_ROWS,
    COUNTS,  # 1 where occurrences are counted
    ROUND,  # 1 where a round is due in this pass
    MISSES,  # result of `find_tasks`: ids without a row
    ADMITTED,  # since the run began
    EVICTED,
    EXPIRED,
    TURNED_AWAY,  # keys that a round or a count left without a row, once for each time
    OVERFLOW,  # result: keys of one batch that found no room; 0 for all did
    SLACK,  # rows that are evicted beyond need, so that not every batch evicts
    GONE,  # address of keys that lost their rows since somebody asked (changes.py); 0: nobody asks
    GONE_COUNT,
    LINE_COLUMNS,
) = range(46)

ENTRY = 16
WINDOW_ENTRY = 24
WAYS = 16
