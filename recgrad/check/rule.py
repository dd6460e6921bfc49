"""What a rule of the check is, and what it sees of the config."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from recgrad.check.component import ONEOFS, Component, build_component
from recgrad.check.node import Node
from recgrad.check.report import Report
from recgrad.check.unsupported import KINDS, unsupported, without_effect
from recgrad.config.class_paths import class_paths
from recgrad.config.locations import Locations
from recgrad.config.names import joiner_of
from recgrad.config.proto.data_pb2 import FG_DAG, FG_NORMAL
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.config.values import show
from recgrad.errors import Problem, nearest
from recgrad.registry import Registry

Rule = Callable[["Context"], None]

CHECKS: Registry[Rule] = Registry("check", "recgrad.check")

MAX_PROBLEMS = 500
MAX_SUGGESTIONS = 50
_TOKENS = "tokens_as_sequence"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature as groups name it.

    Attributes:
        name: members of a sequence_feature are `sequence__member` (one `_` by rtp_names).
        prefix: what their names begin with, `sequence__`; "" for others.
        choice: the member of the oneof, such as `id_feature`.
        node: its message.
        sequence: one value a position instead of one a row.
    """

    name: str
    choice: str
    node: Node
    sequence: bool
    prefix: str = ""


class Context:
    """The config under check, and what has been found so far.

    Attributes:
        nodes: every message that the config sets, outermost first, without those that are refused.
        refusals: paths of fields that ask for what is not built, and what to say of them.
        idle: paths of fields that have no effect, and why.
        built: components that take no memory, by the paths of their messages.
        custom_code: classes that the config names by import path may be imported.
    """

    def __init__(
        self,
        config: PipelineConfig,
        locations: Locations,
        available: Mapping[str, Collection[str]] | None,
        rows: int | None,
        ranks: int | None,
        cpu_flags: Collection[str] | None,
        custom_code: bool = True,
    ) -> None:
        self.config = config
        self.locations = locations
        self.available = available
        self.rows = rows
        self.ranks = ranks
        self.cpu_flags = cpu_flags
        self.custom_code = custom_code
        self.refusals: list[tuple[str, str]] = []
        self.idle: list[tuple[str, str]] = []
        self._problems: list[tuple[int, Problem]] = []
        self._hints: list[tuple[int, Problem]] = []
        self._suggestions = 0
        self._broken: list[str] = []
        self.built: dict[str, Any] = {}
        self.nodes = self._walk()

    def problem(self, path: str, what: str) -> None:
        """Report something that stops a run."""
        self._broken.append(path)
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append((self.locations.line(path) or 0, Problem(self.locations.where(path), what)))

    def is_broken(self, path: str) -> bool:
        """Whether a problem was reported at a path or inside it."""
        return any(broken == path or broken.startswith((f"{path}.", f"{path}[")) for broken in self._broken)

    def hint(self, path: str, what: str) -> None:
        """Report something unusual."""
        if len(self._hints) < MAX_PROBLEMS:
            self._hints.append((self.locations.line(path) or 0, Problem(self.locations.where(path), what)))

    def report(self) -> Report:
        """All that was found, in the order of the file, each thing once."""
        problems, hints = (_in_order(found) for found in (self._problems, self._hints))
        return Report(problems, hints, class_paths(self.config))

    def suggest(self, name: str, known: Iterable[str]) -> str:
        """`; did you mean 'x'?`, for the first unknown names; comparing many would take long."""
        self._suggestions += 1
        return nearest(name, known) if self._suggestions <= MAX_SUGGESTIONS else ""

    def unknown(self, path: str, what: str, name: str, known: Collection[str]) -> None:
        """Report a name that is not among the known ones."""
        if len(self._problems) >= MAX_PROBLEMS:
            return
        hint = self.suggest(name, known)
        if not hint and known:
            names = sorted(known) if len(known) <= 1000 else list(known)
            hint = f" (has: {', '.join(names[:12])}{' …' if len(names) > 12 else ''})"
        self.problem(path, f"no {what} {show(name)}{hint}")

    def _walk(self) -> tuple[Node, ...]:
        """Every message that is set, outermost first, without those that are refused anyway."""
        found: list[Node] = []
        stack = [Node("", self.config)]
        while stack:
            node = stack.pop()
            found.append(node)
            stack.extend(reversed(list(self._children(node))))
        return tuple(found)

    def _children(self, node: Node) -> Iterator[Node]:
        for field, value in node.message.ListFields():
            path = node.at(field.name)
            refusal = self._refusal(node, field, value)
            if refusal is not None:
                self.refusals.append((path, refusal))
            elif (reason := without_effect(node.kind, field, value)) is not None:
                self.idle.append((path, reason))
            elif field.message_type is None or not _walked(field.message_type):
                continue
            elif field.is_repeated:
                for i, item in enumerate(value):
                    yield Node(f"{path}[{i}]", item)
            else:
                yield Node(path, value)

    def _refusal(self, node: Node, field: Any, value: Any) -> str | None:
        oneof = field.containing_oneof
        kind = None if oneof is None else KINDS.get((node.kind, oneof.name))
        if kind is not None and self.available is not None and kind in self.available:
            known = self.available[kind]
            if field.name not in known:
                return not_supported(field.name, known)
        return unsupported(node.kind, field, value)

    def of(self, *kinds: str) -> Iterator[Node]:
        """The set messages of some types."""
        for kind in kinds:
            yield from self._by_kind.get(kind, ())

    @cached_property
    def _by_kind(self) -> dict[str, list[Node]]:
        by_kind: dict[str, list[Node]] = {}
        for node in self.nodes:
            by_kind.setdefault(node.kind, []).append(node)
        return by_kind

    def chosen(self, node: Node, oneof: str) -> Node | None:
        """The chosen member of a oneof, or None when there is none or it is refused."""
        name = node.message.WhichOneof(oneof)
        if name is None:
            return None
        return self._by_path.get(node.at(name))

    def node(self, path: str) -> Node:
        """The message at a path, which must be set."""
        return self._by_path[path]

    @cached_property
    def _by_path(self) -> dict[str, Node]:
        return {node.path: node for node in self.nodes}

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """All components that the config chooses, without those that are refused."""
        return tuple(
            build_component(holder, oneof, kind, node, self.custom_code)
            for holder in self.nodes
            for oneof, kind in ONEOFS.get(holder.kind, ())
            if (node := self.chosen(holder, oneof)) is not None
        )

    @cached_property
    def _component_by_path(self) -> dict[str, Component]:
        return {component.node.path: component for component in self.components}

    def trait(self, node: Node, name: str, default: Any = None) -> Any:
        """What the class of a component's message says of itself."""
        component = self._component_by_path.get(node.path)
        return default if component is None else component.trait(name, default)

    def of_kind(self, *kinds: str, within: str = "") -> Iterator[Component]:
        """The components of some kinds, all of them or those inside a path."""
        inside = (f"{within}.", f"{within}[")
        for component in self.components:
            if component.kind in kinds and (not within or component.node.path.startswith(inside)):
                yield component

    @property
    def encodes(self) -> bool:
        """Whether features are encoded while reading, so that their expressions are needed."""
        return self.config.data_config.fg_mode in (FG_NORMAL, FG_DAG)

    @property
    def joiner(self) -> str:
        """What stands between the names of a sequence_feature and of its member."""
        return joiner_of(self.config)

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """All features that are not refused; the members of sequences one by one."""
        found: list[Feature] = []
        for node in self.of("FeatureConfig"):
            feature = self.chosen(node, "feature")
            choice = node.message.WhichOneof("feature")
            if feature is None:
                continue
            if choice != "sequence_feature":
                sequence = choice.startswith("sequence_") or getattr(feature.message, _TOKENS, False)
                found.append(Feature(feature.message.feature_name, choice, feature, sequence))
                continue
            for i, member in enumerate(feature.message.features):
                inner = self.chosen(Node(f"{feature.path}.features[{i}]", member), "feature")
                if inner is not None:
                    prefix = feature.message.sequence_name + self.joiner
                    kind = str(member.WhichOneof("feature"))
                    found.append(Feature(prefix + inner.message.feature_name, kind, inner, True, prefix))
        return tuple(found)

    @cached_property
    def feature_names(self) -> dict[str, Feature]:
        """Features by name."""
        return {feature.name: feature for feature in self.features}

    @cached_property
    def refused_features(self) -> frozenset[str]:
        """Names of features that exist but are refused, so that naming them is no second mistake."""
        named: set[str] = set()
        for node in self.of("FeatureConfig"):
            choice = node.message.WhichOneof("feature")
            if choice is None:
                continue
            feature = getattr(node.message, choice)
            if choice != "sequence_feature":
                named.add(feature.feature_name)
                continue
            for member in feature.features:
                inner = member.WhichOneof("feature")
                if inner is not None:
                    named.add(feature.sequence_name + self.joiner + getattr(member, inner).feature_name)
        return frozenset(named) - frozenset(self.feature_names)

    def ranged(
        self,
        node: Node,
        field: str,
        low: float = -math.inf,
        high: float = math.inf,
        *,
        above: bool = False,
        below: bool = False,
    ) -> None:
        """Report a number outside low … high; `above` and `below` leave the bounds out.

        Values that are not finite are left to the rule on those.
        """
        value = getattr(node.message, field)
        if not math.isfinite(value):
            return
        fits = (value > low if above else value >= low) and (value < high if below else value <= high)
        if not fits:
            self.problem(node.at(field), f"must be {_range(low, high, above, below)}, got {number(value)}")

    def one_of(self, node: Node, field: str, known: Collection[str]) -> None:
        """Report text that is none of the known words."""
        value = getattr(node.message, field)
        if value not in known:
            words = ", ".join(f"'{word}'" for word in known)
            hint = self.suggest(value, [word for word in known if word])
            self.problem(node.at(field), f"must be one of {words}, got {show(value)}{hint}")


def number(value: int | float) -> str:
    """A number as the user wrote it: floats of the schema have about seven digits."""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def not_supported(name: str, known: Collection[str]) -> str:
    """The error for a choice that is not built."""
    return f"'{name}' is not supported yet; available: {', '.join(sorted(known)) or 'none'}"


def _walked(message: Any) -> bool:
    """Whether fields of a message are the schema's, not those of a map or of free-form JSON."""
    return not message.GetOptions().map_entry and message.full_name != "google.protobuf.Struct"


def _range(low: float, high: float, above: bool, below: bool) -> str:
    if low > -math.inf and high < math.inf:
        return f"in {'(' if above else '['}{number(low)}, {number(high)}{')' if below else ']'}"
    if low > -math.inf:
        return f"greater than {number(low)}" if above else f"at least {number(low)}"
    return f"less than {number(high)}" if below else f"at most {number(high)}"


def _in_order(found: list[tuple[int, Problem]]) -> tuple[Problem, ...]:
    """Problems by line, each once; those without a line first."""
    ordered = dict.fromkeys(problem for _, problem in sorted(found, key=lambda item: item[0]))
    problems = tuple(ordered)
    if len(found) >= MAX_PROBLEMS:
        problems += (Problem("", f"more than {MAX_PROBLEMS} of these; the rest is not shown"),)
    return problems
