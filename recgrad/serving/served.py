"""A model that is served, with its stored features."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from recgrad.serving.columns import RowReader, plain
from recgrad.serving.joins import FeatureStore
from recgrad.serving.json_rows import BodyReader
from recgrad.serving.quick import QuickScorer
from recgrad.serving.scorer import Scorer


@dataclass(frozen=True)
class Served:
    """What requests are scored with; it never changes, a new model is a new one.

    Attributes:
        scorer: the model.
        version: what answers say it is.
        stores: stored features of users and items.
        types: the columns that the model reads, with the types that they are given it in.
        reader: of rows that are Python objects.
        bodies: of JSON bodies.
        quick: of plain bodies; None where the model has features that are more than plain.
        takes_cells: the scorer takes what `bodies` read as it is.
    """

    scorer: Scorer
    version: str
    stores: tuple[FeatureStore, ...] = ()
    types: dict[str, pa.DataType] = field(init=False)
    reader: RowReader = field(init=False)
    bodies: BodyReader = field(init=False)
    quick: QuickScorer | None = field(init=False)
    takes_cells: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", {f.name: plain(f.type) for f in self.scorer.schema})
        keys = {store.key: store.key_type for store in self.stores}
        object.__setattr__(self, "reader", RowReader(self.scorer.schema, keys))
        object.__setattr__(self, "bodies", BodyReader(self.reader.types))
        object.__setattr__(self, "quick", QuickScorer.of(self.scorer, self.bodies))
        object.__setattr__(self, "takes_cells", hasattr(self.scorer, "score_cells"))
        for store in self.stores:
            store.check(self.types)
