"""Random negatives for two-tower models, and what the samplers that extend them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from recgrad.config.proto.sampler_pb2 import OWN_ITEM
from recgrad.data.batch import Batch, Comparison
from recgrad.data.features.base import Feature
from recgrad.data.samplers.draws import distinct, draw_items, draw_others
from recgrad.data.samplers.exclusion import excluded_pairs
from recgrad.data.samplers.hard_items import HardItems, build_hard_items
from recgrad.data.samplers.item_side import ItemSide, Own, build_items, check_items
from recgrad.data.samplers.sampler import SAMPLERS, Place, Sampler, SamplerSource
from recgrad.data.samplers.user_edges import UserEdges, build_user_edges
from recgrad.errors import ConfigError
from recgrad.limits import FILLED, Count

Ints = npt.NDArray[np.int64]


@SAMPLERS.register("negative_sampler")
class NegativeSampler(Sampler):
    """Draws items by weight, with replacement, for all rows of a batch together.

    In training none of them is an item of the batch, unless `exclude: OWN_ITEM` says that only each
    row leaves out its own. Evaluation always draws so: were the batch's items never drawn, popular
    ones, which are in every batch, would be missing among the negatives and metrics would flatter.

    Args:
        items: the items.
        count: items to draw.
        seed: what draws depend on, with the place of the batch.
        bans_batch: never draw an item of the batch.
        positives: edges whose items a row of their user is not compared with.
        hard: edges whose items a row of their user is compared with in addition.
    """

    class Settings(TypedDict, total=False):
        """The fields of its message that have limits."""

        num_sample: Count
        num_hard_sample: Count
        attr_fields: Annotated[Sequence[str], FILLED]

    item_path: ClassVar[str] = "input_path"
    config_name: ClassVar[str] = "negative_sampler"

    def __init__(
        self,
        items: ItemSide,
        *,
        count: int,
        seed: int = 0,
        bans_batch: bool = True,
        positives: UserEdges | None = None,
        hard: HardItems | None = None,
    ) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        self.items = items
        self.count = count
        self._seed = seed
        self._bans_batch = bans_batch
        self._positives = positives
        self._hard = hard
        users = [positives.id_field] if positives is not None else []
        users += [hard.edges.id_field] if hard is not None else []
        self.columns = tuple(dict.fromkeys([items.id_field, *users]))

    @classmethod
    def check(cls, config: Any, features: Sequence[Feature]) -> None:
        """Refuse settings without meaning, and attributes that no feature reads."""
        where = f"data_config.{cls.config_name}"
        problems = []
        problems += check_items(config, where, features)
        if problems:
            raise ConfigError(problems)

    @classmethod
    def build(cls, config: Any, source: SamplerSource) -> NegativeSampler:
        """The sampler of its message; num_eval_sample counts in evaluation when it is set."""
        cls.check(config, source.features)
        items = build_items(config, getattr(config, cls.item_path), source)
        fields = config.DESCRIPTOR.fields_by_name
        positives = hard = None
        if "pos_edge_input_path" in fields:
            positives = build_user_edges(config, config.pos_edge_input_path, source)
        if "hard_neg_edge_input_path" in fields:
            edges = build_user_edges(config, config.hard_neg_edge_input_path, source, by_weight=True)
            hard = build_hard_items(edges, items.table, config.num_hard_sample)
        by_row = positives is not None or config.exclude == OWN_ITEM or not source.training
        return cls(
            items,
            count=config.num_sample if source.training else config.num_eval_sample or config.num_sample,
            seed=source.seed,
            bans_batch=not by_row,
            positives=positives,
            hard=hard,
        )

    def sample(self, batch: Batch, columns: Mapping[str, pa.Array], place: Place) -> Batch:
        """The batch with encoded items: the `count` that all rows share, then the hard ones of each row."""
        key = (self._seed, *place)
        own = self.items.own(columns[self.items.id_field])
        rows, excluded, log_counts = self._draw(own, columns, key)
        hard_rows = None
        if self._hard is not None:
            owners, taken = self._hard.of(columns[self._hard.edges.id_field], own)
            rows = np.concatenate([rows, taken])
            hard_rows = torch.from_numpy(owners)
        comparison = Comparison(
            excluded=torch.from_numpy(excluded), log_counts=torch.from_numpy(log_counts), hard_rows=hard_rows
        )
        return replace(batch, negatives=self.items.encode(rows, key), comparison=comparison)

    def _draw(
        self, own: Own, columns: Mapping[str, pa.Array], key: tuple[int, ...]
    ) -> tuple[Ints, Ints, npt.NDArray[np.float32]]:
        """Rows of the table, (row, draw) pairs that are not compared, log of expected draws of each."""
        table = self.items.table
        if self._bans_batch:
            banned = distinct(own.keys)
            rows = draw_others(table, banned, self.count, key)
            known = table.rows_of(banned)
            mass = table.total - float(table.weights[known[known >= 0]].sum())
            return rows, np.zeros((0, 2), np.int64), self._log_counts(rows, mass)
        rows = draw_items(table, self.count, key)
        sets = [own]
        if self._positives is not None:
            sets.append(self._positives.of(columns[self._positives.id_field]))
        excluded = excluded_pairs(table.keys[rows], *sets)
        return rows, excluded, self._log_counts(rows, table.total)

    def _log_counts(self, rows: Ints, mass: float) -> npt.NDArray[np.float32]:
        expected = self.items.table.weights[rows] * (self.count / max(mass, np.finfo(np.float64).tiny))
        return np.log(expected).astype(np.float32)
