"""Features: names, ids, embeddings and sequences."""

from __future__ import annotations

from itertools import pairwise

from recgrad.check.node import Node
from recgrad.check.rule import CHECKS, Context, Feature, number
from recgrad.config.class_paths import names_class
from recgrad.config.id_sources import ID_SOURCES, id_sources
from recgrad.config.proto.model_pb2 import WIDE
from recgrad.config.values import show
from recgrad.data.features.registry import own_kind

_VOCABULARIES = ("vocab_list", "vocab_dict", "vocab_file")
_DATA_TYPES = ("FP32", "FP16", "BF16")


@CHECKS.register("feature names")
def check_names(context: Context) -> None:
    """Every feature has a name of its own."""
    seen: dict[str, Feature] = {}
    for feature in context.features:
        if feature.name in seen and feature.node.message.feature_name:
            line = context.locations.line(seen[feature.name].node.path)
            first = f", first on line {line}" if line else ""
            context.problem(
                feature.node.at("feature_name"), f"{show(feature.name)} is defined twice{first}; rename one"
            )
        seen.setdefault(feature.name, feature)


@CHECKS.register("feature ids")
def check_ids(context: Context) -> None:
    """One way to make ids, with a size; boundaries that rise."""
    for feature in context.features:
        node = feature.node
        sources = id_sources(node.message)
        if len(sources) > 1:
            context.problem(node.path, f"{' and '.join(sources)} are both set; keep one")
        elif not sources and context.trait(node, "makes_ids", False):
            known = [name for name in ID_SOURCES if name in node.message.DESCRIPTOR.fields_by_name]
            context.problem(node.path, f"one of {', '.join(known)} is needed")
        for field in ("num_buckets", "hash_bucket_size"):
            if field in sources:
                context.ranged(node, field, 1, 2**63 - 1)
        _check_boundaries(context, node)
        _check_vocabulary(context, node, sources)


@CHECKS.register("feature embeddings")
def check_embeddings(context: Context) -> None:
    """An embedding_dim where a group uses ids or a dense embedding; elsewhere it has no effect."""
    used = _with_own_width(context)
    for feature in context.features:
        node, message = feature.node, feature.node.message
        fields = message.DESCRIPTOR.fields_by_name
        dense = message.WhichOneof("dense_emb") if "dense_emb" in message.DESCRIPTOR.oneofs_by_name else None
        ids = makes_ids(context, node)
        if dense and ids:
            context.problem(node.at(dense), "is for float values, but this feature makes ids; keep one")
        needed = ids or dense is not None
        if needed and not message.embedding_dim and feature.name in used:
            what = "ids need an embedding_dim" if ids else f"{dense} needs an embedding_dim"
            path = node.at("embedding_dim") if message.HasField("embedding_dim") else node.path
            context.problem(path, f"{what} of at least 1")
        elif message.embedding_dim and not needed and not message.stub_type:
            context.hint(
                node.at("embedding_dim"),
                "has no effect: without boundaries, mlp or autodis the numbers are used as they are",
            )
        if message.pooling.lower() not in ("sum", "mean"):
            context.one_of(node, "pooling", ("sum", "mean"))
        combiners = context.trait(node, "combiners", ())
        if combiners and message.combiner.lower() not in combiners:
            context.one_of(node, "combiner", combiners)
        of_floats = context.trait(node, "takes_float64", False) and not message.boundaries
        context.one_of(node, "data_type", ("FP32", "FP64") if of_floats else _DATA_TYPES)
        if "value_dim" in fields and fields["value_dim"].default_value:  # where 0 has no meaning
            context.ranged(node, "value_dim", 1)


@CHECKS.register("sequence features")
def check_sequences(context: Context) -> None:
    """Sequences have a length, a delimiter and members; fields of theirs stand where they work."""
    for node in context.of("SequenceFeature"):
        sequence = node.message
        if sequence.HasField("sequence_length"):
            context.ranged(node, "sequence_length", 1)
        if not sequence.features:
            context.problem(node.path, "has no features")
    for feature in context.features:
        node, message = feature.node, feature.node.message
        grouped = ".sequence_feature." in node.path
        if feature.sequence and not grouped:
            if not message.sequence_delim:
                context.problem(node.at("sequence_delim"), "is empty; give what separates positions")
            continue
        for field in ("sequence_length", "sequence_delim"):
            if message.HasField(field):
                owner = "the sequence_feature around it" if grouped else f"a sequence_{feature.choice}"
                context.problem(node.at(field), f"belongs to {owner}; remove it here")
        if not feature.sequence and message.sequence_fields:
            context.problem(node.at("sequence_fields"), "is for sequence features; remove it")


@CHECKS.register("feature kinds of one's own")
def check_own_kinds(context: Context) -> None:
    """Classes that features name are feature kinds, before other rules ask them what they make."""
    for feature in context.features if context.custom_code else ():
        node = feature.node
        if names_class(node.message.DESCRIPTOR) and node.message.class_path:
            try:
                own_kind(node.message.class_path)
            except ValueError as error:
                context.problem(node.at("class_path"), str(error).removeprefix("class_path: "))


def makes_ids(context: Context, node: Node) -> bool:
    """Whether a feature has ids, not floats; one of a kind that is not built passes for having them."""
    unknown = not names_class(node.message.DESCRIPTOR)
    return bool(context.trait(node, "makes_ids", unknown)) or bool(id_sources(node.message))


def _with_own_width(context: Context) -> set[str]:
    """Features that a group uses with their own embedding_dim: WIDE groups have a width of their own."""
    groups = [node for node in context.of("FeatureGroupConfig") if node.message.group_type != WIDE]
    return {name for node in (*groups, *context.of("SeqGroupConfig")) for name in node.message.feature_names}


def _check_boundaries(context: Context, node: Node) -> None:
    boundaries = getattr(node.message, "boundaries", ())
    for i, (left, right) in enumerate(pairwise(boundaries)):
        if left >= right:
            what = f"must rise, got {number(left)} before {number(right)}"
            context.problem(f"{node.at('boundaries')}[{i + 1}]", what)
            break


def _check_vocabulary(context: Context, node: Node, sources: list[str]) -> None:
    message = node.message
    if "vocab_list" in sources:
        seen: set[str] = set()
        for i, word in enumerate(message.vocab_list):
            if word in seen:
                context.problem(
                    f"{node.at('vocab_list')}[{i}]", f"word {show(word)} is given twice; keep one"
                )
                break
            seen.add(word)
    if "default_bucketize_value" not in message.DESCRIPTOR.fields_by_name:
        return
    given = message.HasField("default_bucketize_value")
    if given and not any(name in sources for name in _VOCABULARIES):
        context.problem(
            node.at("default_bucketize_value"),
            "needs vocab_list, vocab_dict or vocab_file; it is for their words",
        )
    if "vocab_file" in sources and not given:
        context.problem(
            node.path, "vocab_file needs default_bucketize_value, the id of words not in the file"
        )
