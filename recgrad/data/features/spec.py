"""What an encoded feature looks like to the model: the contract between data and models."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from google.protobuf.message import Message


class Kind(Enum):
    """DENSE features are float vectors; SPARSE ones are ids that index an embedding table."""

    DENSE = "dense"
    SPARSE = "sparse"


@dataclass(frozen=True)
class FeatureSpec:
    """The shape of an encoded feature and the embedding it asks for.

    Attributes:
        name: as feature groups name it; members of a sequence_feature are `sequence__member`.
        kind: float vector or ids.
        sequence: one value (vector or bag of ids) per position instead of per row.
        sequence_name: the sequence_feature it belongs to; its members have equal lengths.
        value_dim: width of a dense feature; for ids the fixed number per row, 0 if it varies.
        num_rows: rows of the embedding table; 0 for dense features.
        hash: what ids of texts are made with, "" where they are not hashed.
        embedding_dim: width of the embedding; 0 when the value itself is the input.
        embedding_name: tables with the same name are shared; `<name>_emb` by default.
        pooling: "sum" or "mean" over the ids of a bag.
        weighted: ids carry weights.
        init_fn: the table's initialiser as text, such as "nn.init.uniform_,a=-0.01,b=0.01"; None for the
            default.
        trainable: whether the table is learned.
        data_type: how the table's numbers are stored: "FP32", "FP16" or "BF16".
        storage: how the table's rows are: "AUTO", "PLAIN" or "COMPACT", see `TableSpec`.
        use_mask: its values are hidden in rows that sample_mask_prob picks.
        dense_embedding: the AutoDisEmbedding or MLPEmbedding message of a dense feature, or None.
        embedding_constraints: the ParameterConstraints message (sharding) of its table, or None.
        zch: the ZeroCollisionHash message of a table whose rows belong to ids as they come, or None.
        dynamicemb: the DynamicEmbedding message of such a table, or None.
    """

    name: str
    kind: Kind
    sequence: bool = False
    sequence_name: str | None = None
    value_dim: int = 1
    num_rows: int = 0
    hash: str = ""
    embedding_dim: int = 0
    embedding_name: str = ""
    pooling: str = "sum"
    weighted: bool = False
    init_fn: str | None = None
    trainable: bool = True
    data_type: str = "FP32"
    storage: str = "AUTO"
    use_mask: bool = False
    dense_embedding: Message | None = None
    embedding_constraints: Message | None = None
    zch: Message | None = None
    dynamicemb: Message | None = None
