"""Limits of settings, said once: in the signature that takes them.

    def __init__(self, *, T_max: Count, gamma: Annotated[float, Range("(0, 1]")] = 0.1) -> None: ...

`keep_limits` has a class or function refuse values outside its limits with a ValueError that names
the setting, rule and value; a registry does that for every component that it files or resolves.
`limits_of` tells the same limits to whoever wants to know before anything is built, as the check does.
A `Literal` is a limit too, and `Sequence[Rate]` limits every element. Settings that are made of settings
say so: `Annotated[Mapping[str, Any], SettingsOf(MLP)]` has the limits of MLP's own arguments, and a
TypedDict those of its keys.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from recgrad.errors import nearest

C = TypeVar("C", bound=Callable[..., Any])

_MARK = "__recgrad_limits__"


def _bound(text: str) -> float:
    """A number of an interval; ∞ has no bounds."""
    text = text.strip().replace("∞", "inf")
    return float(text) if not text.lstrip("-").isdigit() else int(text)


class Rule:
    """What a value must be."""

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        return None

    def inside(self, value: Any) -> Iterator[tuple[str, Rule, Any]]:
        """Place, rule and value of all that the value is made of."""
        return iter(())


class Range(Rule):
    """Numbers of an interval, written as in mathematics: `[0, 1)`, `(0, ∞)`."""

    def __init__(self, interval: str) -> None:
        low, _, high = interval[1:-1].partition(",")
        self.interval = interval
        self.low, self.high = _bound(low), _bound(high)
        self.above, self.below = interval[0] == "(", interval[-1] == ")"

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, or None; NaN, which compares as false, is outside."""
        try:
            fits = (value > self.low if self.above else value >= self.low) and (
                value < self.high if self.below else value <= self.high
            )
        except TypeError:
            return f"must be a number, got {value!r}"
        return None if fits else f"must be {self}, got {number(value)}"

    def __str__(self) -> str:
        if self.low > -math.inf and self.high < math.inf:
            return f"in {self.interval}"
        if self.low > -math.inf:
            return f"{'greater than' if self.above else 'at least'} {number(self.low)}"
        return f"{'less than' if self.below else 'at most'} {number(self.high)}"


@dataclass(frozen=True)
class Words(Rule):
    """One of some words; what a `Literal` says."""

    known: tuple[Any, ...]

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        if value in self.known:
            return None
        words = ", ".join(f"'{word}'" for word in self.known)
        return f"must be one of {words}, got {value!r}{nearest(str(value), map(str, self.known))}"


@dataclass(frozen=True)
class SettingsOf(Rule):
    """The arguments of a class or function, by name.

    Attributes:
        component: the class or function.
        filled: lists among them that must not be empty, although the class itself would take that.
    """

    component: Any
    filled: tuple[str, ...] = ()

    def inside(self, value: Any) -> Iterator[tuple[str, Rule, Any]]:
        """The limits of the component's own arguments."""
        if not isinstance(value, Mapping):
            return
        for name in self.filled:
            yield f".{name}", FILLED, value.get(name, ())
        for name, limit in limits_of(self.component).items():
            if name in value:
                yield from ((f".{name}{place}", rule, part) for place, rule, part in limit.parts(value[name]))


class Filled(Rule):
    """Lists and texts that are not empty."""

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        return None if len(value) else "is empty"


FILLED = Filled()


@dataclass(frozen=True)
class Limit:
    """What one setting may be.

    Attributes:
        rules: of the value.
        each: the value is a list, and these hold for each element.
    """

    rules: tuple[Rule, ...] = ()
    each: tuple[Rule, ...] = ()

    def parts(self, value: Any) -> Iterator[tuple[str, Rule, Any]]:
        """Every rule with the value it is for, and that value's place, such as `[2].mlp`, or nothing."""
        if value is None:
            return
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        items = [(f"[{i}]", item) for i, item in enumerate(value)] if listed else [("", value)]
        found = [("", rule, value) for rule in self.rules]
        found += [(place, rule, item) for rule in self.each for place, item in items]
        for place, rule, part in found:
            yield place, rule, part
            yield from ((place + below, inner, item) for below, inner, item in rule.inside(part))

    def problems(self, value: Any) -> Iterator[tuple[str, str]]:
        """Every part that breaks its rule, as (its place, what is wrong)."""
        for place, rule, part in self.parts(value):
            what = rule.problem(part)
            if what is not None:
                yield place, what


Count = Annotated[int, Range("[1, ∞)")]
Size = Annotated[int, Range("[0, ∞)")]
Rate = Annotated[float, Range("[0, ∞)")]  # learning rates, weight decays, penalties
Positive = Annotated[float, Range("(0, ∞)")]
Share = Annotated[float, Range("[0, 1)")]  # of an old average that is kept
Fraction = Annotated[float, Range("[0, 1]")]
Inside = Annotated[float, Range("(0, 1)")]
Parts = Annotated[int, Range("[1, 10000]")]  # layers or experts: more take minutes to build


def limits_of(component: Any) -> Mapping[str, Limit]:
    """The limits in the signature of a class or function, by setting.

    A constructor that hands `**` keywords on has the limits of its base's settings too; a class whose
    settings go to another method, or are a TypedDict, names that in `settings_method`.
    """
    target = inspect.unwrap(component)
    if not isinstance(target, type):
        return _function_limits(target)
    return _class_limits(target)


def required_of(component: Any) -> list[str]:
    """The settings by keyword that a class or function cannot do without."""
    target = inspect.unwrap(component)
    if isinstance(target, type) and (method := getattr(target, "settings_method", None)):
        target = inspect.unwrap(getattr(target, method))
    if is_typeddict(target):
        return sorted(target.__required_keys__)
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # written in C
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]


def keep_limits(component: C) -> C:
    """The same class or function, which from now on refuses values outside its limits.

    Nothing is changed of what has none.
    """
    if isinstance(component, type):
        if _MARK not in vars(component) and limits_of(component):
            setattr(component, _MARK, True)
            method = getattr(component, "settings_method", "__init__")
            if not isinstance(getattr(component, method), type):
                setattr(component, method, _guarded(getattr(component, method), component))
        return component
    if getattr(component, _MARK, False) or not limits_of(component):
        return component
    guarded = _guarded(component, component)
    setattr(guarded, _MARK, True)
    return guarded


def check_limits(component: Any, settings: Mapping[str, Any]) -> None:
    """Raises a ValueError for the first of a component's settings that is outside its limits."""
    for name, limit in limits_of(component).items():
        if name in settings:
            for place, what in limit.problems(settings[name]):
                raise ValueError(f"{name}{place} {what}")


def number(value: Any) -> str:
    """A number as a user would write it: floats of the schema have about seven digits."""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _guarded(function: C, component: Any) -> C:
    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            given = inspect.signature(function).bind_partial(*args, **kwargs).arguments
        except TypeError:
            given = {}  # the call itself says what is wrong
        check_limits(component, {**given, **kwargs})
        return function(*args, **kwargs)

    return guarded  # type: ignore[return-value]


@functools.cache
def _class_limits(component: type) -> dict[str, Limit]:
    limits: dict[str, Limit] = {}
    method = getattr(component, "settings_method", None)
    if method is not None:
        return dict(limits_of(getattr(component, method)))
    if is_typeddict(component):
        return _limits(_typed_dict_hints(component), {})
    for base in reversed(component.__mro__[:-1]):
        if "__dataclass_fields__" in vars(base):
            space = vars(sys.modules[base.__module__])
            limits.update(_limits(vars(base).get("__annotations__", {}), space))
        elif "__init__" in vars(base):
            own = inspect.unwrap(vars(base)["__init__"])
            if not _hands_on(own):
                limits.clear()
            limits.update(_function_limits(own))
    return limits


def _hands_on(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return False
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


@functools.cache
def _function_limits(function: Any) -> dict[str, Limit]:
    return _limits(getattr(function, "__annotations__", {}), getattr(function, "__globals__", {}))


def _limits(annotations: Mapping[str, Any], space: dict[str, Any]) -> dict[str, Limit]:
    found = {}
    for name, annotation in annotations.items():
        try:
            hint = get_type_hints(
                SimpleNamespace(__annotations__={name: annotation}), space, include_extras=True
            )[name]
        except (NameError, TypeError, SyntaxError):  # imported for type checkers alone: no limit of ours
            continue
        limit = _limit(hint)
        if (limit.rules or limit.each) and name != "return":
            found[name] = limit
    return found


def _limit(hint: Any) -> Limit:
    """The limit that a type says; that of `X | None` is that of X."""
    origin = get_origin(hint)
    if origin is Literal:
        return Limit((Words(get_args(hint)),))
    if is_typeddict(hint):
        return Limit((SettingsOf(hint),))
    if origin is Annotated:
        inner, *notes = get_args(hint)
        limit = _limit(inner)
        return Limit((*(note for note in notes if isinstance(note, Rule)), *limit.rules), limit.each)
    inside = [_limit(item) for item in get_args(hint)]
    rules = tuple(rule for limit in inside for rule in limit.rules)
    each = tuple(rule for limit in inside for rule in limit.each)
    if _is_list(hint):
        return Limit(each=rules)
    # Of `Sequence[Share] | Share` the rule is for each element, a single one included.
    return Limit(tuple(rule for rule in rules if rule not in each), each)


def _typed_dict_hints(kind: Any) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError, SyntaxError):  # imported for type checkers alone: no limits of ours
        return {}


def _is_list(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence)
