"""Optimizers: switches that leave settings without effect, and patterns that compile."""

from __future__ import annotations

from recgrad.check.rule import CHECKS, Context
from recgrad.config.patterns import Pattern
from recgrad.config.values import show

_MAX_PATTERN = 1000


@CHECKS.register("optimizer switches")
def check_switches(context: Context) -> None:
    """Numbers that have no effect because of a switch beside them."""
    for component in context.of_kind("dense_optimizer", "sparse_optimizer"):
        node, message = component.node, component.node.message
        fields = message.DESCRIPTOR.fields_by_name
        if (
            "gradient_clipping" in fields
            and message.HasField("max_gradient")
            and not message.gradient_clipping
        ):
            what = "has no effect without gradient_clipping: true; set that, or remove it"
            context.problem(node.at("max_gradient"), what)


@CHECKS.register("optimizer patterns")
def check_patterns(context: Context) -> None:
    """Patterns of part_optimizers compile, and none stands twice."""
    seen: set[tuple[str, str]] = set()
    for node in context.of("PartOptimizer", "SparsePartOptimizer"):
        pattern = node.message.regex_pattern
        path = node.at("regex_pattern")
        problem = _pattern_problem(pattern)
        if problem:
            context.problem(path, f"{show(pattern)} is not a pattern: {problem}")
        elif (node.kind, pattern) in seen and pattern:
            context.problem(path, f"{show(pattern)} is given twice; the first would take all that it matches")
        seen.add((node.kind, pattern))


def _pattern_problem(pattern: str) -> str | None:
    if len(pattern) > _MAX_PATTERN:
        return f"longer than {_MAX_PATTERN} characters"
    try:
        Pattern(pattern)
    except ValueError as error:
        return str(error)
    return None
