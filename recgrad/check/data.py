"""The data section: batches, labels, columns and the reader."""

from __future__ import annotations

from recgrad.check.node import Node
from recgrad.check.rule import CHECKS, Context
from recgrad.check.tasks import Task, tasks
from recgrad.config.proto.data_pb2 import CsvDataset, DataConfig, KafkaDataset, OdpsDataset, OdpsDatasetV1
from recgrad.config.values import show
from recgrad.data.readers.where_text import parse_where, split_where
from recgrad.errors import DataError

MAX_THREADS = 1024
"""Threads that may read data: beyond the cores of any machine they only cost memory."""
_RANGES = {
    "sample_mask_prob": (0, 1),
    "negative_sample_mask_prob": (0, 1),
    "max_bad_row_ratio": (0, 1),
}


@CHECKS.register("data")
def check_data_config(context: Context) -> None:
    """Sizes, separators and declared columns."""
    for node in context.of("DataConfig"):
        data = node.message
        context.ranged(node, "batch_size", 1)
        if data.HasField("eval_batch_size"):
            context.ranged(node, "eval_batch_size", 1)
        if data.shuffle:
            context.ranged(node, "shuffle_buffer_size", 1)
        for field, (low, high) in _RANGES.items():
            context.ranged(node, field, low, high)
        threads = data.num_workers * max(1, data.fg_threads)
        if threads > MAX_THREADS:
            each = f" of {data.fg_threads} threads each (fg_threads)" if data.fg_threads > 1 else ""
            what = (
                f"{data.num_workers} workers{each} are more than {MAX_THREADS} threads; "
                "use about one for each core"
            )
            context.problem(node.at("num_workers"), what)
        if not data.fg_encoded_multival_sep:
            context.problem(node.at("fg_encoded_multival_sep"), "is empty; give the separator of values")
        if data.batch_cost_size and not data.sample_cost_field:
            context.problem(node.at("batch_cost_size"), "needs a sample_cost_field, the column of costs")
        if data.sample_cost_field and not data.batch_cost_size:
            what = "needs a batch_cost_size, the most that a batch may cost"
            context.problem(node.at("sample_cost_field"), what)
        _check_columns(context, node)
        if data.dataset_type == CsvDataset:
            _check_csv(context, node)


@CHECKS.register("labels")
def check_labels(context: Context) -> None:
    """A model learns at least one label, unless rows are what it learns; fields are named once."""
    found = tasks(context)
    unlabelled = bool(found) and all(task.retrieval or task.codes for task in found)
    for node in context.of("DataConfig"):
        if not node.message.label_fields and not unlabelled:
            context.problem(node.path, "label_fields is empty; name the column to learn")
        for field in ("label_fields", "sample_weight_fields"):
            seen: set[str] = set()
            for i, name in enumerate(getattr(node.message, field)):
                if not name:
                    context.problem(f"{node.at(field)}[{i}]", "is empty")
                elif name in seen:
                    context.problem(f"{node.at(field)}[{i}]", f"{show(name)} is named twice; keep one")
                seen.add(name)


@CHECKS.register("positive labels")
def check_positive_labels(context: Context) -> None:
    """Values that count as 1 belong to a label, and there are some."""
    data = context.config.data_config
    seen: set[str] = set()
    for i, item in enumerate(data.positive_labels):
        path = f"data_config.positive_labels[{i}]"
        if item.label_field not in data.label_fields:
            context.unknown(f"{path}.label_field", "label", item.label_field, list(data.label_fields))
        elif item.label_field in seen:
            context.problem(f"{path}.label_field", f"{show(item.label_field)} is named twice; keep one")
        if not item.values:
            context.problem(path, "values is empty; name the texts or numbers that count as 1")
        seen.add(item.label_field)


@CHECKS.register("label classes")
def check_label_classes(context: Context) -> None:
    """Classes belong to a label, differ, and are as many as its task has."""
    data = context.config.data_config
    positive = {item.label_field for item in data.positive_labels}
    seen: set[str] = set()
    for i, item in enumerate(data.label_classes):
        path, label = f"data_config.label_classes[{i}]", item.label_field
        values = [value.strip() for value in item.values]
        if label not in data.label_fields:
            context.unknown(f"{path}.label_field", "label", label, list(data.label_fields))
        elif label in seen:
            context.problem(f"{path}.label_field", f"{show(label)} is named twice; keep one")
        elif label in positive:
            context.problem(path, f"{show(label)} has positive_labels, too; keep one")
        seen.add(label)
        if len(values) < 2:
            context.problem(path, f"needs two or more values, one for each class; got {len(values)}")
        for place, value in enumerate(values):
            if value in values[:place]:
                context.problem(f"{path}.values[{place}]", f"{show(value)} is named twice; keep one")
        for task in tasks(context):
            _check_class_count(context, task, label, len(values))


def _check_class_count(context: Context, task: Task, label: str, count: int) -> None:
    """A task of a label has as many classes as are named; of two, one logit is enough."""
    first = context.config.data_config.label_fields[:1]
    own = getattr(task.node.message, "label_name", "") or "".join(first)
    if task.retrieval or task.codes or own != label or count < 2:
        return
    if task.num_class != count and not (count == 2 and task.num_class == 1):
        what = f"num_class is {task.num_class}, but data_config.label_classes names {count} of {show(label)}"
        context.problem(task.node.path, f"{what}; set num_class: {count}")


@CHECKS.register("conditions of input paths")
def check_conditions(context: Context) -> None:
    """What follows `where` in an input path can be understood."""
    for field in ("train_input_path", "eval_input_path"):
        _, condition = split_where(getattr(context.config, field))
        try:
            if condition is not None:
                parse_where(condition)
        except DataError as error:
            context.problem(field, str(error).removeprefix("data: "))


@CHECKS.register("event times")
def check_event_times(context: Context) -> None:
    """Checkpoints by event time need times, and a share of the ranks."""
    data, train = context.config.data_config, context.config.train_config
    for field in ("save_checkpoints_timestamp_interval", "save_checkpoints_timestamps"):
        if getattr(train, field) and data.dataset_type != KafkaDataset and not data.timestamp_field:
            what = "rows have no times; name their column in data_config.timestamp_field"
            context.problem(f"train_config.{field}", what)
    quorum = train.save_checkpoints_timestamp_quorum
    if not 0 < quorum <= 1:
        where = "train_config.save_checkpoints_timestamp_quorum"
        context.problem(where, f"must be above 0 and at most 1, got {quorum:g}")


@CHECKS.register("hint: idle data settings")
def hint_idle(context: Context) -> None:
    """Settings that the rest of the config leaves without anything to act on."""
    data = context.config.data_config
    masked = any(getattr(feature.node.message, "use_mask", False) for feature in context.features)
    if data.sample_mask_prob and not masked:
        context.hint("data_config.sample_mask_prob", "has no effect: no feature has use_mask: true")
    if data.negative_sample_mask_prob and (data.WhichOneof("sampler") is None or not masked):
        what = "has no effect: it needs a sampler and a feature with use_mask: true"
        context.hint("data_config.negative_sample_mask_prob", what)
    for field in ("delimiter", "with_header"):
        if data.HasField(field) and data.dataset_type != CsvDataset:
            context.hint(f"data_config.{field}", "has no effect: it is for CsvDataset")
    for field in ("odps_data_quota_name", "odps_data_compression"):
        default = data.DESCRIPTOR.fields_by_name[field].default_value
        if getattr(data, field) != default and not _reads_tables(data):
            context.hint(f"data_config.{field}", "has no effect: it is for OdpsDataset")
    towers = [task.node.message for task in tasks(context) if hasattr(task.node.message, "tower_name")]
    used = {getattr(tower, "sample_weight_name", "") for tower in towers}
    for i, name in enumerate(data.sample_weight_fields):
        if (towers and name not in used) or (not towers and i > 0):
            why = "no task tower names it" if towers else "a model of one task takes the first field"
            context.hint(f"data_config.sample_weight_fields[{i}]", f"has no effect: {why}")


@CHECKS.register("named columns")
def check_named_columns(context: Context) -> None:
    """Columns that the config names are those it declares; near misses get a hint."""
    data = context.config.data_config
    declared = [column.input_name for column in data.input_fields]
    complete = data.dataset_type == CsvDataset and not data.with_header and bool(declared)
    named = [(f"data_config.label_fields[{i}]", name) for i, name in enumerate(data.label_fields)]
    keys: list[tuple[str, str]] = []
    for node in context.nodes:
        for field in ("grouping_key", "session_name"):
            if field in node.message.DESCRIPTOR.fields_by_name:
                keys.append((node.at(field), getattr(node.message, field)))
    known = {*declared, *context.feature_names, *data.label_fields}
    for path, name in named + keys:
        if complete and name and name not in declared:
            context.unknown(path, "column in data_config.input_fields", name, declared)
    for path, name in keys:
        near = context.suggest(name, known) if name and name not in known and not complete else ""
        if near:
            context.hint(path, f"{show(name)} is no feature, so it is read as a column of its own{near}")


def _reads_tables(data: DataConfig) -> bool:
    """Whether rows, or the items of a sampler, come from MaxCompute."""
    sampler = data.WhichOneof("sampler")
    fields = [] if sampler is None else getattr(data, sampler).ListFields()
    tables = [value for field, value in fields if field.name.endswith("input_path")]
    return data.dataset_type in (OdpsDataset, OdpsDatasetV1) or any(t.startswith("odps://") for t in tables)


def _check_columns(context: Context, node: Node) -> None:
    data = node.message
    if data.input_fields and data.input_fields_str:
        context.problem(node.path, "input_fields and input_fields_str are both set; keep one")
    seen: set[str] = set()
    for i, column in enumerate(data.input_fields):
        if column.input_name in seen:
            what = f"column {show(column.input_name)} is declared twice; keep one"
            context.problem(f"{node.at('input_fields')}[{i}]", what)
        seen.add(column.input_name)


def _check_csv(context: Context, node: Node) -> None:
    data = node.message
    if len(data.delimiter.encode()) != 1 or data.delimiter in '\r\n"':
        what = f"must be one ASCII character other than a quote, got {show(data.delimiter)}"
        context.problem(node.at("delimiter"), what)
    if not data.with_header and not data.input_fields and not data.input_fields_str:
        context.problem(
            node.path,
            "a CSV file without a header needs input_fields, one for each column in order; "
            "or set with_header: true",
        )
