"""Edges by the column of the data that holds their users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from recgrad.data.samplers.edges import Edges, EdgeSource, load_edges
from recgrad.data.samplers.item_side import Own, own_items
from recgrad.data.samplers.sampler import SamplerSource
from recgrad.data.samplers.tables import is_hashed


@dataclass(frozen=True)
class UserEdges:
    """Edges of users.

    Attributes:
        edges: the items of each user.
        id_field: the column of the rows' users.
        hashed: users are compared by hash.
    """

    edges: Edges
    id_field: str
    hashed: bool = False

    def of(self, column: pa.Array) -> Own:
        """Where the items of each row's user begin and end; nowhere for users that have none."""
        users = own_items(column, self.hashed, "", self.id_field)
        if (users.stops - users.starts == 1).all():
            return Own(self.edges.items, *self.edges.ranges(users.keys))
        there = users.stops > users.starts
        keys = np.zeros(len(column), np.int64)
        keys[there] = users.keys[users.starts[there]]
        starts, stops = self.edges.ranges(keys)
        return Own(self.edges.items, starts, np.where(there, stops, starts))


def build_user_edges(config: Any, path: str, source: SamplerSource, *, by_weight: bool = False) -> UserEdges:
    """The edges at `path` of a sampler's message."""
    schema = source.reader.schema
    hashed = is_hashed(schema.field(config.user_id_field).type)
    edges = EdgeSource(
        path=path,
        field_delimiter=config.field_delimiter or "\t",
        user_hashed=hashed,
        item_hashed=is_hashed(schema.field(config.item_id_field).type),
        by_weight=by_weight,
    )
    return UserEdges(load_edges(edges, source.data), config.user_id_field, hashed)
