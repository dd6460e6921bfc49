"""The columns of the integer tables through which Python and the kernel speak."""

from __future__ import annotations

# What a column of rows is.
(
    NONE,  # the kernel cannot read it
    INT64,
    INT32,
    INT16,
    INT8,
    UINT32,
    UINT16,
    UINT8,
    BOOL,  # a bit each
    FLOAT32,
    FLOAT64,
    WIDE_FLOAT32,  # float32 that lie as float64
    TEXT,  # offsets of 32 bits
    LARGE_TEXT,  # offsets of 64 bits
    SPANS,  # where each text begins, and, apart from it, where it ends; 64 bits
) = range(15)

# Where a column is to be found, one line a column: known as soon as the schema is.
(
    SHARED,  # 1: in the one row that all rows share, 0: in the rows
    CHILD,  # its number among the columns there
    COLUMN_KIND,
    PLACE_COLUMNS,
) = range(4)

# A column in memory, one line a column: the kernel fills it in.
(
    VALUES,  # address of the values, or of the offsets of texts
    VALID,  # address of the bits that tell values from nulls; 0 where there are no nulls
    VALID_BYTES,  # 1 where a byte, not a bit, tells
    FIRST,  # number of the first row in both
    DATA,  # address of the bytes of texts
    ENDS,  # address of the ends of SPANS
    COLUMN_COLUMNS,
) = range(7)

# What is made of a value.
DENSE, BOUNDARIES, NUM_BUCKETS, XXH64, MURMUR64, VOCABULARY = range(6)

# A feature, one line each.
(
    MAKES,
    COLUMN,  # line of its column
    AS_INTEGERS,  # 1: texts are read as integers first
    SIZE,  # ids are below it
    DEFAULT,  # the id of a missing value, EMPTY for none; of dense ones whether there is a default
    SINGLE_DEFAULT,  # the same for float32 columns, whose boundaries are float32
    SEPARATOR,  # address of the bytes that separate values of a text
    SEPARATOR_BYTES,  # 0: texts are never cut
    NORMALIZES,
    EDGES,  # address of boundaries in float64
    SINGLE_EDGES,  # in float32
    EDGE_COUNT,
    WORDS,  # of a vocabulary: address of the bytes of its words
    WORD_STARTS,
    WORD_ENDS,
    WORD_IDS,
    SLOTS,  # address of the hash table
    SLOT_COUNT,
    UNKNOWN,  # the id of other words
    PLACE,  # which line of ids, or column of numbers, takes the result
    FEATURE_COLUMNS,
) = range(21)

# Floats of a feature, one line each.
DEFAULT_NUMBER, SHIFT, SCALE, FLOAT_COLUMNS = range(4)

EMPTY = -1
"""Stands for no id: the bag of a missing value that has no default."""

# A struct ArrowArray of the Arrow C data interface, in words of 64 bits.
(
    ARROW_LENGTH,
    ARROW_NULLS,
    ARROW_OFFSET,
    ARROW_BUFFER_COUNT,
    ARROW_CHILD_COUNT,
    ARROW_BUFFERS,
    ARROW_CHILDREN,
    ARROW_DICTIONARY,
    ARROW_RELEASE,
    ARROW_PRIVATE,
    ARROW_WORDS,
) = range(11)
