"""Every ranking model over the same features, in usual sizes, to see what one costs beside another.

A sketch is a start, no recommendation: equal layers for all, so that models are compared, not their sizes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf import text_format

from recgrad.config.proto.model_pb2 import ModelConfig

TASKS = ("ctr", "cvr")
"""The tasks of a multi-task model, in the order of their labels."""

# Words in capitals are written out below; the first column names groups.
_SHAPES: dict[str, tuple[str, str]] = {
    "wide_and_deep": ("WIDE DEEP", "deep { BIG } LINEAR"),
    "deepfm": ("WIDE FM DEEP", "deep { BIG } final { SMALL } LINEAR"),
    "xdeepfm": ("WIDE DEEP", "cin { cin_layer_size: [32, 32] } deep { BIG } final { SMALL } LINEAR"),
    "dlrm": ("SPARSE DENSE", "dense_mlp { TO_DIM } final { BIG }"),
    "wukong": ("SPARSE DENSE", "dense_mlp { TO_DIM } WUKONG WUKONG final { MIDDLE }"),
    "dcn_v1": ("ALL", "cross { cross_num: 3 } deep { BIG } final { SMALL }"),
    "dcn_v2": ("ALL", "cross { cross_num: 3 low_rank: 32 } deep { BIG } final { SMALL }"),
    "mask_net": ("ALL", "mask_net_module { n_mask_blocks: 3 MASK top_mlp { SMALL } }"),
    "multi_tower": ("ALL", "towers { input: 'all' mlp { BIG } } final { SMALL }"),
    "multi_tower_din": (
        "ALL HISTORY",
        "towers { input: 'all' mlp { BIG } } "
        "din_towers { input: 'history' attn_mlp { hidden_units: [32, 16] } } final { SMALL }",
    ),
    "final_mlp": ("DEEP", "mlp1 { BIG } mlp2 { MIDDLE } num_heads: 4"),
    "final_net": ("SPARSE DENSE", "dense_mlp { TO_DIM } block1 { BIG } block2 { MIDDLE }"),
    "gdcn": ("ALL", "cross_num: 3 deep { BIG }"),
    "autoint": (
        "SPARSE DENSE",
        "dense_mlp { TO_DIM } attention_layers: 2 attention_dim: 32 num_heads: 2 deep { BIG }",
    ),
    "fibinet": ("SPARSE DENSE", "dense_mlp { TO_DIM } reduction_ratio: 3 deep { BIG }"),
    "pnn": ("SPARSE DENSE", "dense_mlp { TO_DIM } final { BIG }"),
    "onn": ("SPARSE DENSE", "dense_mlp { TO_DIM } final { BIG }"),
    "rank_mixer": ("ALL", "num_tokens: 8 token_dim: 64 num_layers: 2 ffn_ratio: 2 final { SMALL }"),
    "eulernet": ("SPARSE DENSE", "dense_mlp { TO_DIM } layer_sizes: [16, 8]"),
    "rocket_launching": ("ALL", "share_mlp { MIDDLE } booster_mlp { BIG } light_mlp { SMALL }"),
    "simple_multi_task": ("ALL", "TOWERS"),
    "mmoe": ("ALL", "expert_mlp { MIDDLE } num_expert: 4 TOWERS"),
    "ple": ("ALL", "EXTRACT 'a' EXPERTS } EXTRACT 'b' EXPERTS } TOWERS"),
    "dbmtl": ("ALL", "bottom_mlp { BIG } expert_mlp { MIDDLE } num_expert: 4 RELATED_TOWERS"),
    "dc2vr": ("ALL", "bottom_mlp { BIG } expert_mlp { MIDDLE } num_expert: 4 CORRECTED_TOWERS"),
    "pepnet": ("ALL DOMAIN UIA", "ppnet_hidden_units: [128, 64] TOWERS"),
    "esmm": ("ALL", "TOWERS"),
    "aitm": ("ALL", "TOWERS"),
    "stem": (
        "SHARED TASK",
        "expert_mlp { MIDDLE } num_task_expert: 2 num_shared_expert: 2 gate_mlp { SMALL } TOWERS",
    ),
}
_AFTER = {
    "RELATED_TOWERS": "relation_tower_names: '{before}' relation_mlp {{ SMALL }}",
    "CORRECTED_TOWERS": "intervention_tower_names: '{before}' low_rank_dim: 16 dropout_ratio: 0.1",
    "TOWERS": "",
}
"""What the tower of every task but the first has besides, by the word for the towers."""
_WORDS = {
    # One weight an id, which begins at 0: the schema's 4 or 16 are added up, so their sum begins at random,
    # moves as many times as far under Adagrad, and learns rare ids by heart.
    "LINEAR": "wide_embedding_dim: 1 wide_init_fn: 'nn.init.zeros_'",
    "WUKONG": "wukong_layers { lcb_feature_num: 8 fmb_feature_num: 8 feature_num_mlp { MIDDLE } }",
    "MASK": "mask_block { hidden_dim: 128 reduction_ratio: 0.5 }",
    "EXTRACT": "extraction_networks { network_name:",
    "EXPERTS": "expert_num_per_task: 2 share_num: 2 task_expert_net { MIDDLE } share_expert_net { MIDDLE }",
    "BIG": "hidden_units: [256, 128, 64]",
    "MIDDLE": "hidden_units: [128, 64]",
    "SMALL": "hidden_units: [64]",
}


@dataclass(frozen=True)
class Fields:
    """The features of rows, by name.

    Attributes:
        ids: with embeddings.
        numbers: as they are.
        dim: width of the embeddings.
        labels: columns to learn; a model of several tasks learns the first two.
        history: an id of the row, and a sequence of ids in the same table; none for none.
    """

    ids: Sequence[str]
    numbers: Sequence[str]
    dim: int
    labels: Sequence[str]
    history: tuple[str, str] | None = None


def sketched() -> list[str]:
    """The models that there is a sketch of."""
    return list(_SHAPES)


def sketch(name: str, fields: Fields) -> ModelConfig:
    """The config of a model over all features, with groups, settings and losses.

    Raises:
        ValueError: the model needs a history, and there is none.
    """
    groups, text = _SHAPES[name]
    multi = "TOWERS" in text
    towers = {word: _towers(fields, after) for word, after in _AFTER.items()}
    words = {**towers, "TO_DIM": f"hidden_units: [64, {fields.dim}]", **_WORDS}
    for word, meaning in words.items():
        text = re.sub(rf"\b{word}\b", meaning, text)
    parts = [_groups(group, fields) for group in groups.split()]
    loss = "" if multi else "losses { binary_cross_entropy {} } metrics { auc {} }"
    if not fields.numbers:
        text = re.sub(r"dense_mlp \{[^}]*\}", "", text)
    return text_format.Parse(f"{' '.join(parts)} {name} {{ {text} }} {loss}", ModelConfig())


def _towers(fields: Fields, after: str) -> str:
    before = (None, *TASKS)
    return " ".join(
        f"task_towers {{ tower_name: '{task}' label_name: '{label}' mlp {{ SMALL }} "
        "losses { binary_cross_entropy {} } metrics { auc {} } "
        f"{after.format(before=other) if other else ''} }}"
        for other, task, label in zip(before, TASKS, fields.labels, strict=False)
    )


def _groups(word: str, fields: Fields) -> str:
    both = [*fields.numbers, *fields.ids]
    if word == "TASK":
        tasks = zip(TASKS, fields.labels, strict=False)
        return " ".join(_group(task, both, suffix=task) for task, _ in tasks)
    if word in ("DOMAIN", "UIA"):
        return _group(word.lower(), fields.ids[:1] if word == "DOMAIN" else fields.ids[1:3] or fields.ids)
    if word == "DENSE":
        return _group("dense", fields.numbers) if fields.numbers else ""
    if word == "HISTORY":
        if fields.history is None:
            raise ValueError("needs a sequence of ids, in a table that an id of the row shares")
        return _group("history", fields.history, "SEQUENCE")
    if word == "WIDE":
        return _group("wide", fields.ids, "WIDE")
    return _group(word.lower(), fields.ids if word in ("SPARSE", "FM") else both)


def _group(name: str, features: Sequence[str], kind: str = "DEEP", suffix: str = "") -> str:
    listed = ", ".join(f"'{feature}'" for feature in features)
    own = f"embedding_name_suffix: '{suffix}'" if suffix else ""
    return f"feature_groups {{ group_name: '{name}' feature_names: [{listed}] group_type: {kind} {own} }}"
