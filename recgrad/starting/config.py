"""The config that `recgrad init` writes: readable, a reason beside each decision."""

from __future__ import annotations

from recgrad.config.proto.data_pb2 import DataConfig, DatasetType, FieldType
from recgrad.starting.features import NORMALIZED, WIDTH, feature_lines, quote
from recgrad.starting.labels import LabelKind
from recgrad.starting.profile import Profile
from recgrad.starting.roles import Roles
from recgrad.starting.splits import Split

_HEAD = """\
# Written by `recgrad init` from {rows:,} rows; change what you know better.
#   recgrad train {path}
# {split}
train_input_path: {train}
eval_input_path: {evaluate}
model_dir: {model_dir}
train_config {{
  # Rates that suit most logs; `recgrad lr-find` and `recgrad tune` look for better ones.
  sparse_optimizer {{ adagrad_optimizer {{ lr: {sparse_lr} }} constant_learning_rate {{}} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.001 }} constant_learning_rate {{}} }}
  num_epochs: {epochs}  # {epochs_reason}
}}
eval_config {{}}
data_config {{
  dataset_type: {dataset}
{columns}  fg_mode: FG_DAG
  batch_size: {batch}  # several hundred updates an epoch
  eval_batch_size: 8192
  label_fields: [{labels}]
{positives}  shuffle: true
}}
"""


def batch_size(rows: int) -> int:
    """A power of two that gives an epoch some 350 to 700 updates, from 128 to 4,096."""
    wanted = max(rows // 350, 1) if rows < 350_000 else max(rows // 700, 512)
    return int(min(4096, max(128, 1 << (wanted.bit_length() - 1))))


def write_config(
    profile: Profile, roles: Roles, split: Split, data: DataConfig, path: str, model_dir: str
) -> str:
    """The text of the config; a model of clicks for one label, of several tasks for more."""
    sparse = _sparse_ids(profile, roles)
    epochs = 1 if sparse else 2
    reason = (
        f"{sparse} has few rows for each value, so a second epoch would learn rows by heart"
        if sparse
        else "every value has many rows"
    )
    head = _HEAD.format(
        rows=profile.num_rows,
        path=path,
        split=split.reason,
        train=quote(split.train),
        evaluate=quote(split.evaluate),
        model_dir=quote(model_dir),
        sparse_lr=0.1 if sparse else 0.02,
        epochs=epochs,
        epochs_reason=reason,
        dataset=DatasetType.Name(data.dataset_type),
        columns=_columns(data),
        batch=batch_size(profile.num_rows),
        labels=", ".join(map(quote, roles.labels)),
        positives="".join(_label_values(name, kind) for name, kind in roles.labels.items()),
    )
    out = [c for c in roles.choices if c.role in ("outcome", "ignored", "time")]
    left = "".join(f"# left out: {_plain(c.name)}: {_plain(c.reason)}\n" for c in out)
    lines = list(feature_lines(profile, roles))
    kinds = {line.split()[2] for line in lines} & {"id_feature", "sequence_id_feature"}
    defaults = "".join(
        f"feature_defaults {{ {kind} {{ embedding_dim: {WIDTH} }} }}\n" for kind in sorted(kinds)
    )
    return "".join([head, left, defaults, *lines, _model(roles)])


def _label_values(name: str, kind: LabelKind) -> str:
    """Which value of a label counts as 1, or which is which class."""
    if kind.positive:
        return f"  positive_labels {{ label_field: {quote(name)} values: {quote(kind.positive)} }}\n"
    if not kind.names:
        return ""
    values = ", ".join(map(quote, kind.names))
    return f"  label_classes {{ label_field: {quote(name)} values: [{values}] }}  # class 0, 1, 2 …\n"


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _columns(data: DataConfig) -> str:
    lines = []
    if data.HasField("delimiter"):
        lines.append(f"  delimiter: {quote(data.delimiter)}\n")
    if data.with_header:
        lines.append("  with_header: true\n")
    for field in data.input_fields:
        kind = FieldType.Name(field.input_type)
        lines.append(f"  input_fields {{ input_name: {quote(field.input_name)} input_type: {kind} }}\n")
    return "".join(lines)


def _sparse_ids(profile: Profile, roles: Roles) -> str:
    """An id with few rows for each of its values, if there is one."""
    for choice in roles.inputs():
        distinct = choice.column.distinct
        if choice.role == "id" and distinct > 1000 and profile.num_rows < 200 * distinct:
            return choice.name
    return ""


def _model(roles: Roles) -> str:
    ids = any(choice.role in ("category", "id", "bag") for choice in roles.inputs())
    normalized = any(choice.role == "number" for choice in roles.inputs())
    fields = '["*", "!*' + NORMALIZED + '"]' if normalized else '"*"'
    deep = _deep_group(roles, '"*"')
    if len(roles.labels) > 1:
        towers = "".join(
            f"    task_towers {{\n      tower_name: {quote(label)} label_name: {quote(label)}\n"
            f"      mlp {{ hidden_units: [64] }}\n{_objective(roles, label, '      ')}    }}\n"
            for label in roles.labels
        )
        return (
            f"model_config {{\n{deep}  mmoe {{  # experts that the tasks share, each by weights of its own\n"
            f"    expert_mlp {{ hidden_units: [256, 128] }}\n    num_expert: 4\n{towers}  }}\n}}\n"
        )
    tail = _objective(roles, next(iter(roles.labels)), "  ")
    if not ids:
        return (
            f"model_config {{\n{deep}  multi_tower {{  # numbers alone: a plain network\n"
            '    towers { input: "deep" mlp { hidden_units: [128, 64] } }\n    final { hidden_units: [32] }\n'
            f"  }}\n{tail}}}\n"
        )
    return (
        "model_config {\n"
        '  feature_groups { group_name: "wide" group_type: WIDE feature_names: "*" }\n'
        f'  feature_groups {{ group_name: "fm" group_type: DEEP feature_names: {fields} }}\n'
        f"{deep}"
        "  deepfm {  # a linear part, products of pairs, and a network\n"
        "    deep { hidden_units: [256, 128, 64] }\n    final { hidden_units: [64] }\n"
        "    wide_embedding_dim: 4\n"
        f"  }}\n{tail}}}\n"
    )


def _objective(roles: Roles, label: str, indent: str) -> str:
    """Loss and metrics of a label: of two values, of classes, or a number."""
    kind = roles.labels[label].classes
    if kind == 0:
        lines = [
            "losses { l2_loss {} }",
            "metrics { mean_squared_error {} }",
            "metrics { mean_absolute_error {} }",
        ]
    elif kind > 2:
        lines = [f"num_class: {kind}", "losses { softmax_cross_entropy {} }"]
        lines += ["metrics { accuracy {} }", "metrics { multiclass_auc {} }"]
    else:
        lines = ["losses { binary_cross_entropy {} }", "metrics { auc {} }"]
        if roles.user:
            lines.append(f"metrics {{ grouped_auc {{ grouping_key: {quote(roles.user)} }} }}")
    return "".join(f"{indent}{line}\n" for line in lines)


def _deep_group(roles: Roles, names: str) -> str:
    histories = [choice.name for choice in roles.inputs() if choice.role == "history"]
    lines = [f'  feature_groups {{\n    group_name: "deep" group_type: DEEP feature_names: {names}\n']
    for name in histories:
        pair = f"[{quote(roles.item)}, {quote(name)}]"
        group = quote(f"{name}_attention")
        lines.append(f"    sequence_groups {{ group_name: {group} feature_names: {pair} }}\n")
        encoder = f"din_encoder {{ input: {group} attn_mlp {{ hidden_units: [32] }} }}"
        lines.append(f"    sequence_encoders {{ {encoder} }}\n")
    return "".join([*lines, "  }\n"])
