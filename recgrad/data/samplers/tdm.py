"""Nodes of each level of an item tree, for TDM."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from recgrad.data.batch import Batch
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.features.base import Feature
from recgrad.data.order import random_bits
from recgrad.data.samplers.edges import EdgeSource, load_edges
from recgrad.data.samplers.item_side import ItemSide, check_items, item_features
from recgrad.data.samplers.items import TableSource, attribute_types, load_items
from recgrad.data.samplers.sampler import SAMPLERS, Place, Sampler, SamplerSource
from recgrad.data.samplers.tables import is_hashed
from recgrad.data.samplers.tree import Tree, build_tree, draw_nodes
from recgrad.data.taking import beside, take_rows
from recgrad.errors import ConfigError, DataError, Problem
from recgrad.limits import FILLED, Range

Ints = npt.NDArray[np.int64]
_NODES, _LEVELS = 13, 14
LEVEL_FIELD = "tree_level"
"""The attribute that holds a node's level."""


def level_weights(kind: str, inner: int) -> npt.NDArray[np.float64]:
    """How likely each of the inner levels 1 … `inner` is kept, the root's side first."""
    numbers = np.arange(1, inner + 1, dtype=np.float64)
    weights = {"UNIFORM": np.ones(inner), "ARITHMETIC": numbers, "RECIPROCAL": 1 / numbers[::-1]}
    return weights[kind]


@SAMPLERS.register("tdm_sampler")
class TDMSampler(Sampler):
    """Makes rows of a tree's nodes of each positive row: its ancestors, and other nodes of each level.

    The rows of a batch become [own leaves | their ancestors below the root | drawn nodes], the ancestors and
    the draws of a row together, levels ascending. User features are repeated; labels are 1 for leaves and
    ancestors, 0 for draws. With `remain_ratio` below 1 a batch keeps some of the inner levels, and
    always the leaves.

    Paper: Zhu et al. 2018, arXiv:1801.02294

    Args:
        tree: the tree.
        items: the nodes' features, and the column of the rows' items.
        counts: nodes to draw in each level, 0 for the root.
        seed: what draws depend on, with the place of the batch.
        remain_ratio: the share of inner levels that a batch keeps.
        probability_type: which levels are likely to be kept: UNIFORM, ARITHMETIC or RECIPROCAL.
    """

    class Settings(TypedDict, total=False):
        """The fields of its message that have limits."""

        attr_fields: Annotated[Sequence[str], FILLED]
        layer_num_sample: Annotated[Sequence[int], FILLED]
        remain_ratio: Annotated[float, Range("(0, 1]")]

    config_name: ClassVar[str] = "tdm_sampler"

    def __init__(
        self,
        tree: Tree,
        items: ItemSide,
        *,
        counts: Sequence[int],
        seed: int = 0,
        remain_ratio: float = 1.0,
        probability_type: str = "UNIFORM",
    ) -> None:
        self.tree, self.items = tree, items
        self.counts = np.asarray(counts, np.int64)
        self.columns = (items.id_field,)
        self._seed = seed
        inner = tree.levels - 2
        self._kept = round(remain_ratio * inner)
        self._weights = level_weights(probability_type, inner)
        self._at = np.zeros(len(tree.nodes.keys), np.int64)
        self._at[tree.order] = np.arange(len(tree.order))
        self._all: Batch | None = None
        self._lock = threading.Lock()

    @classmethod
    def provides(cls, config: Any, features: Sequence[Feature]) -> frozenset[str]:
        """The features of nodes, which rows of the data do not have."""
        return frozenset(feature.name for feature in item_features(features, attributes_of(config)))

    @classmethod
    def check(cls, config: Any, features: Sequence[Feature]) -> None:
        """Refuse settings without meaning, and attributes that no feature reads."""
        where = f"data_config.{cls.config_name}"
        problems = check_items(config, where, features, attributes_of(config))
        if list(config.layer_num_sample[:1]) != [0]:
            got = ", ".join(map(str, config.layer_num_sample)) or "nothing"
            what = f"must begin with 0, for the root, and have a number for each level, got {got}"
            problems.append(Problem(f"{where}.layer_num_sample", what))
        if config.probability_type not in ("UNIFORM", "ARITHMETIC", "RECIPROCAL"):
            what = f"must be UNIFORM, ARITHMETIC or RECIPROCAL, got {config.probability_type!r}"
            problems.append(Problem(f"{where}.probability_type", what))
        if not 0 < config.remain_ratio <= 1:
            problems.append(
                Problem(f"{where}.remain_ratio", f"must be in (0, 1], got {config.remain_ratio:g}")
            )
        if problems:
            raise ConfigError(problems)

    @classmethod
    def build(cls, config: Any, source: SamplerSource) -> TDMSampler:
        """The sampler of its message; num_eval_sample, if set, is drawn of each level in evaluation."""
        cls.check(config, source.features)
        attributes, schema = attributes_of(config), source.reader.schema
        delimiter = config.field_delimiter or "\t"
        hashed = is_hashed(schema.field(config.item_id_field).type)
        types = attribute_types(attributes, schema)
        table = TableSource(
            config.item_input_path, attributes, config.attr_delimiter, delimiter, types, hashed
        )
        nodes = load_items(table, source.data)
        edges = load_edges(EdgeSource(config.edge_input_path, delimiter, hashed, hashed, False), source.data)
        tree = build_tree(nodes, edges)
        counts = list(config.layer_num_sample)
        if not source.training and config.num_eval_sample:
            most = [tree.drawable(i) - 1 for i in range(min(tree.levels, len(counts)))]
            counts = [min(config.num_eval_sample, m) if n else 0 for n, m in zip(counts, most, strict=False)]
        _check_counts(tree, counts)
        mask = source.data.negative_sample_mask_prob if source.training else 0.0
        encoder = FeatureEncoder(item_features(source.features, attributes))
        return cls(
            tree,
            ItemSide(nodes, encoder, config.item_id_field, hashed, "", mask),
            counts=counts,
            seed=source.seed,
            remain_ratio=config.remain_ratio,
            probability_type=config.probability_type,
        )

    def own_columns(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """The attributes of the rows' own leaves."""
        leaves = self._leaves(columns[self.items.id_field])
        return self.tree.nodes.take(self.tree.rows(leaves, self.tree.levels - 1))

    def sample(self, batch: Batch, columns: Mapping[str, pa.Array], place: Place) -> Batch:
        """The rows of leaves, ancestors and draws."""
        key = (self._seed, *place)
        leaves = self._leaves(columns[self.items.id_field])
        levels = self._levels(key)
        own = np.column_stack([self.tree.ancestors[leaves][:, levels - 1], leaves])
        drawn_levels = np.append(levels, self.tree.levels - 1)
        counts = self.counts[drawn_levels]
        seed = random_bits(1, _NODES, *key)[0]
        drawn = draw_nodes(self.tree, own, drawn_levels, counts, seed)
        nodes = [
            self.tree.rows(leaves, self.tree.levels - 1),
            self.tree.rows(own[:, :-1], levels).reshape(-1),
            self.tree.rows(drawn, np.repeat(drawn_levels, counts)).reshape(-1),
        ]
        every = np.arange(batch.size)
        owners = [every, np.repeat(every, len(levels)), np.repeat(every, counts.sum())]
        rows = take_rows(batch, torch.from_numpy(np.concatenate(owners)))
        positive = len(nodes[0]) + len(nodes[1])
        labels = {}
        for name, label in rows.labels.items():
            labels[name] = torch.ones_like(label)
            labels[name][positive:] = 0
        return beside(replace(rows, labels=labels), self._encode(np.concatenate(nodes), key))

    def _leaves(self, column: pa.Array) -> Ints:
        """The place among the leaves of each row's item."""
        own = self.items.own(column)
        keys = np.zeros(len(column), np.int64)
        there = own.stops > own.starts
        keys[there] = own.keys[own.starts[there]]
        leaves = self.tree.leaves(keys)
        wrong = ~there | (leaves < 0)
        if wrong.any():
            value = column[int(np.flatnonzero(wrong)[0])].as_py()
            raise DataError(
                f"data: item {value} of column '{self.items.id_field}' is no leaf of the tree "
                f"'{self.tree.nodes.name}'; build the tree with it, or leave its rows out"
            )
        return leaves

    def _levels(self, key: tuple[int, ...]) -> Ints:
        """The inner levels below the root that a batch keeps, ascending."""
        inner = len(self._weights)
        if self._kept == inner:
            return np.arange(1, inner + 1)
        chances = (random_bits(self._kept, _LEVELS, *key) >> np.uint64(11)) * 2.0**-53
        weights, kept = self._weights.copy(), []
        for chance in chances:
            total = np.cumsum(weights)
            kept.append(int(np.searchsorted(total, chance * total[-1], side="right")))
            weights[kept[-1]] = 0.0
        return np.sort(np.asarray(kept, np.int64)) + 1

    def _encode(self, rows: Ints, key: tuple[int, ...]) -> Batch:
        if self.items.mask_probability:
            return self.items.encode(rows, key)
        with self._lock:
            if self._all is None:
                # Most nodes come many times in an epoch, so that they are encoded once.
                self._all = self.items.encode(self.tree.order, ())
        return take_rows(self._all, torch.from_numpy(self._at[rows]))


def attributes_of(config: Any) -> tuple[str, ...]:
    """The attributes of a node: its level, its id, and those that the config names beside them."""
    named = tuple(config.attr_fields)
    first = tuple(name for name in (LEVEL_FIELD, config.item_id_field) if name not in named)
    return first + named


def _check_counts(tree: Tree, counts: Sequence[int]) -> None:
    where = "data_config.tdm_sampler.layer_num_sample"
    if len(counts) != tree.levels:
        what = f"has {len(counts)} numbers, but the tree '{tree.nodes.name}' has {tree.levels} levels"
        raise ConfigError([Problem(where, f"{what}; give one for each")])
    for level, count in enumerate(counts):
        if count > tree.drawable(level) - 1:
            what = f"asks for {count} other nodes of level {level}, which has {tree.drawable(level)}"
            raise ConfigError([Problem(f"{where}[{level}]", f"{what}; ask for fewer")])
