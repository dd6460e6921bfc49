"""Ids on their way to the ranks that hold their rows; they may leave long before they are looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recgrad.embedding.local.engine import IdsLike


class Exchange:
    """The ids of one of TorchRec's collections, sent in the background.

    The ranks first tell each other how many ids come, then send them.

    Args:
        module: the sharded collection.
        jagged: this rank's ids for it.
    """

    def __init__(self, module: Any, jagged: KeyedJaggedTensor) -> None:
        self._module = module
        self._context = module.create_context()
        self._counts = module.input_dist(self._context, jagged)
        self._ids: Any = None

    def send(self) -> None:
        """Wait for the counts of all ranks, and begin to send the ids."""
        self._ids = self._counts.wait()

    def arrive(self) -> Any:
        """Wait for the ids of all ranks that are for this one."""
        return self._ids.wait()

    def look_up(self) -> Any:
        """The ids that arrive, looked up: what TorchRec's module gives."""
        return self._module.compute_and_output_dist(self._context, self.arrive())


@dataclass
class Prepared:
    """The checked ids of a batch, at home or under way.

    Attributes:
        ids, sequences: as given to the engine.
        rows: of the batch.
        values: of both, one after another.
        counts: ids of each key of both.
        exchanges: by collection; none while the ids are at home.
    """

    ids: IdsLike | None
    sequences: IdsLike | None
    rows: int
    values: Tensor
    counts: Tensor
    exchanges: Mapping[str, Exchange] = field(default_factory=dict)

    def arrive(self) -> None:
        """Wait for what is under way."""
        for exchange in self.exchanges.values():
            exchange.arrive()
