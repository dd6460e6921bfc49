"""Memory of tables: small regions share chunks of huge pages, and never each other's bytes."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.embedding.local.memory import Region, for_a_while


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 3 << 20), min_size=1, max_size=20), st.sampled_from([0.0, 0.3, 0.9999]))
def test_regions_are_zeroed_apart_and_aligned(sizes: list[int], phase: float) -> None:
    regions = [Region(size, "test", phase=phase) for size in sizes]
    arrays = [region.array(np.uint8, (size,)) for region, size in zip(regions, sizes, strict=True)]
    for i, array in enumerate(arrays):
        assert regions[i].address % 64 == 0
        assert not array.any()
        array[:] = i + 1
    assert all((array == i + 1).all() for i, array in enumerate(arrays))


def test_an_array_outlives_its_region_and_its_neighbours() -> None:
    regions = [Region(1 << 20, "test") for _ in range(20)]  # several chunks
    array = regions[3].array(np.int64, (1 << 17,))
    array[:] = 7
    del regions
    gc.collect()
    others = [Region(1 << 20, "test").array(np.int64, (1 << 17,)) for _ in range(20)]
    for other in others:
        other[:] = 1
    assert (array == 7).all()


@pytest.mark.parametrize("rows", [0, 3, 1 << 20])
def test_memory_for_a_while_is_zeroed_where_asked_and_outlives_its_maker(rows: int) -> None:
    zeroed, other = for_a_while((rows, 2), np.int32, zeroed=True), for_a_while((rows, 2), np.int32)
    assert zeroed.shape == other.shape == (rows, 2)
    other[:] = 1
    gc.collect()
    assert not zeroed.any()
    assert other.sum() == 2 * rows
