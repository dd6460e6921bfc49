"""What an embedding engine is asked for: tables, and lookups into them."""

from __future__ import annotations

from dataclasses import dataclass

from recgrad.embedding.living import LivingSpec

SHARDING_TYPES = ("table_wise", "row_wise", "column_wise", "data_parallel")
"""How a table may be spread over processes, by TorchRec's names."""
COMPUTE_KERNELS = ("fused", "fused_uvm", "fused_uvm_caching", "customized_kernel")
"""What may look up and update a table, by TorchRec's names: FBGEMM's kernels, and our own last."""


@dataclass(frozen=True)
class Shard:
    """Where a part of a table lies in the whole of it.

    Attributes:
        table: the whole table's name.
        num_rows, dim: the whole table's size.
        first_row, first_column: where the part begins.
        position: the whole table's among those of its width; living tables take turns by it.
    """

    table: str
    num_rows: int
    dim: int
    first_row: int = 0
    first_column: int = 0
    position: int = 0


@dataclass(frozen=True)
class TableSpec:
    """One embedding table.

    Attributes:
        name: unique; checkpoints and part_optimizers know the table by it.
        num_rows: ids are 0 … num_rows − 1.
        dim: width of a row.
        init_fn: torch initialiser as text, such as "nn.init.uniform_,a=-0.01,b=0.01"; None for the default.
        data_type: "FP32", "FP16" or "BF16" storage.
        trainable: a frozen table is looked up but never updated.
        storage: "AUTO", "PLAIN" (an array of all rows) or "COMPACT" (touched rows only).
        sharding_types: how it may be spread over processes, by TorchRec's names; empty for any way.
        compute_kernels: what may look it up and update it in the sharded engine, by TorchRec's names, the
            best first; empty for what is best on the device.
        hash: what ids of texts were made with, "" where they are not hashed here; checkpoints remember it.
        shard: when the table is a part of a larger one, which; initial values are those of the whole.
        living: how rows are given to ids as they come; None where ids are row numbers.
    """

    name: str
    num_rows: int
    dim: int
    init_fn: str | None = None
    data_type: str = "FP32"
    trainable: bool = True
    storage: str = "AUTO"
    sharding_types: tuple[str, ...] = ()
    compute_kernels: tuple[str, ...] = ()
    hash: str = ""
    shard: Shard | None = None
    living: LivingSpec | None = None

    @property
    def capacity(self) -> int:
        """How many rows there may be at the same time."""
        return self.num_rows if self.living is None else self.living.capacity


@dataclass(frozen=True)
class LookupSpec:
    """One use of a table: the bags of input feature `key`, pooled.

    Attributes:
        name: unique; what the output is called.
        key: the input feature whose ids are looked up.
        table: the table's name.
        pooling: "sum" or "mean".
        sequence: the key is a sequence feature; a bag is a position.
    """

    name: str
    key: str
    table: str
    pooling: str = "sum"
    sequence: bool = False
