"""How the words of a query and a title overlap."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.data.features.base import Feature
from recgrad.data.features.columns import Bags
from recgrad.data.features.config import floats_output, separator_of
from recgrad.data.features.frame import Input, Scope
from recgrad.data.features.keys import same_bytes, texts_of
from recgrad.data.features.outputs import FloatOutput, IdOutput
from recgrad.data.features.registry import FEATURES
from recgrad.data.hashing import Bytes, Ints
from recgrad.errors import nearest
from recgrad.kernels import cached_njit

METHODS = (
    "query_common_ratio",
    "title_common_ratio",
    "is_contain",
    "is_equal",
    "index_of",
    "proximity_min_cover",
    "proximity_min_dist",
    "proximity_max_dist",
    "proximity_avg_dist",
)
# Kernels know a method by its number.
_TITLE_RATIO, _IS_EQUAL, _INDEX_OF = 1, 3, 4
_MIN_COVER, _MIN_DIST, _MAX_DIST = 5, 6, 7


@FEATURES.register("overlap_feature")
@FEATURES.register("sequence_overlap_feature")
class OverlapFeature(Feature):
    """A measure of the words that a query and a title share.

    | method | value |
    | --- | --- |
    | query_common_ratio | share of the query's words that are in the title |
    | title_common_ratio | share of the title's words that are in the query |
    | is_contain | 1 if the query's words stand in the title, in order, side by side |
    | is_equal | 1 if query and title are the same words in the same order |
    | index_of | the first position in the title where the whole query stands, or −1 |
    | proximity_min_cover | words of the shortest stretch of the title with all words of the query, or 0 |
    | proximity_min_dist | least distance of pairs of query words in the title, see below |
    | proximity_max_dist | largest of these distances |
    | proximity_avg_dist | mean of these distances |

    The distance of two different words is that of their nearest occurrences in the title (Tao &
    Zhai 2007). If only one word of the query is there it is the title's length, if none that + 1.

    Without a query or a title: 0, but −1 for index_of and the title's length + 1 for distances.
    """

    def expressions(self) -> list[Input]:
        """The query and the title."""
        separator = separator_of(self.config)
        return [Input(self.config.query, separator=separator), Input(self.config.title, separator=separator)]

    def build_output(self) -> FloatOutput | IdOutput:
        """Floats, or buckets when boundaries are set."""
        method = self.config.method
        if self.setting.generates and method not in METHODS:
            raise ValueError(
                f"method must be one of {', '.join(METHODS)}, got {method!r}{nearest(method, METHODS)}"
            )
        return floats_output(self.config, self.setting, value_dim=1)

    def transform(self, inputs: list[Any], scope: Scope) -> Bags:
        """The measure of each bag; there are no missing ones."""
        query, title = inputs
        q, t = (
            texts_of(bags.values, scope.report(bags, source.name))
            for bags, source in zip(inputs, self.inputs, strict=True)
        )
        method = METHODS.index(self.config.method)
        return Bags(
            _overlap(method, q.data, q.starts, q.ends, query.starts, t.data, t.starts, t.ends, title.starts)
        )


@cached_njit(nogil=True)
def _overlap(
    method: int,
    q: Bytes,
    q_starts: Ints,
    q_ends: Ints,
    q_bags: Ints,
    t: Bytes,
    t_starts: Ints,
    t_ends: Ints,
    t_bags: Ints,
) -> Any:
    """The measure METHODS[method] of each bag, over word numbers that are equal for equal words."""
    out = np.empty(len(q_bags) - 1, np.float64)
    for bag in range(len(out)):
        q0, q1, t0, t1 = q_bags[bag], q_bags[bag + 1], t_bags[bag], t_bags[bag + 1]
        nq, nt = q1 - q0, t1 - t0
        # A word's number is its first place in the query; −1 for title words that are not there.
        query = np.empty(nq, np.int64)
        title = np.empty(nt, np.int64)
        for i in range(nq):
            query[i] = i
            for j in range(i):
                if same_bytes(q, q_starts[q0 + i], q_ends[q0 + i], q, q_starts[q0 + j], q_ends[q0 + j]):
                    query[i] = j
                    break
        for i in range(nt):
            title[i] = -1
            for j in range(nq):
                if same_bytes(t, t_starts[t0 + i], t_ends[t0 + i], q, q_starts[q0 + j], q_ends[q0 + j]):
                    title[i] = j
                    break
        if method <= _TITLE_RATIO:
            out[bag] = _ratio(query, title, method == _TITLE_RATIO)
        elif method <= _INDEX_OF:
            at = _index_of(query, title)
            if method == _INDEX_OF:
                out[bag] = at
            elif method == _IS_EQUAL:
                out[bag] = 1.0 if at == 0 and nq == nt else 0.0
            else:
                out[bag] = 1.0 if at >= 0 else 0.0
        elif method == _MIN_COVER:
            out[bag] = _min_cover(query, title)
        else:
            out[bag] = _distance(query, title, method)
    return out


@cached_njit(nogil=True)
def _ratio(query: Ints, title: Ints, of_title: bool) -> float:
    if len(query) == 0 or len(title) == 0:
        return 0.0
    if of_title:
        return float((title >= 0).sum() / len(title))
    common = 0
    for i in range(len(query)):
        for j in range(len(title)):
            if title[j] == query[i]:
                common += 1
                break
    return common / len(query)


@cached_njit(nogil=True)
def _index_of(query: Ints, title: Ints) -> int:
    if len(query) == 0:
        return -1
    for at in range(len(title) - len(query) + 1):
        same = True
        for k in range(len(query)):
            if title[at + k] != query[k]:
                same = False
                break
        if same:
            return at
    return -1


@cached_njit(nogil=True)
def _min_cover(query: Ints, title: Ints) -> float:
    """A window slides over the title, holding counts of the query's words."""
    wanted = 0
    for i in range(len(query)):
        wanted += query[i] == i
    counts = np.zeros(len(query), np.int64)
    best, have, first = 0, 0, 0
    for last in range(len(title)):
        if title[last] < 0:
            continue
        counts[title[last]] += 1
        have += counts[title[last]] == 1
        while have == wanted and wanted > 0:
            if best == 0 or last - first + 1 < best:
                best = last - first + 1
            if title[first] >= 0:
                counts[title[first]] -= 1
                have -= counts[title[first]] == 0
            first += 1
    return float(best)


@cached_njit(nogil=True)
def _distance(query: Ints, title: Ints, method: int) -> float:
    """Least, largest or mean distance of pairs of different words."""
    size = len(title)
    least, largest, total, pairs, matched = size + 1, 0, 0, 0, 0
    for a in range(len(query)):
        if query[a] != a or not (title == a).any():
            continue
        matched += 1
        for b in range(a + 1, len(query)):
            if query[b] != b:
                continue
            nearest_two = size + 1
            for i in range(size):
                if title[i] != a:
                    continue
                for j in range(size):
                    if title[j] == b and abs(i - j) < nearest_two:
                        nearest_two = abs(i - j)
            if nearest_two <= size:
                least, largest = min(least, nearest_two), max(largest, nearest_two)
                total += nearest_two
                pairs += 1
    if matched == 0:
        return float(size + 1)
    if pairs == 0:
        return float(size)
    if method == _MIN_DIST:
        return float(least)
    return float(largest) if method == _MAX_DIST else total / pairs
