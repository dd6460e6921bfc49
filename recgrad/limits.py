"""Limits of settings, said once: in the signature that takes them.

    def __init__(self, *, T_max: Count, gamma: Annotated[float, Range("(0, 1]")] = 0.1) -> None: ...

`keep_limits` has a class or function refuse values outside its limits with a ValueError that names
the setting, rule and value; a registry does that for every component that it files or resolves.
`limits_of` tells the same limits to whoever wants to know before anything is built, as the check does.
A `Literal` is a limit too, and `Sequence[Rate]` limits every element.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from recgrad.errors import nearest

C = TypeVar("C", bound=Callable[..., Any])

_MARK = "__recgrad_limits__"


def _bound(text: str) -> float:
    """A number of an interval; ∞ has no bounds."""
    text = text.strip().replace("∞", "inf")
    return float(text) if not text.lstrip("-").isdigit() else int(text)


class Range:
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
class Words:
    """One of some words; what a `Literal` says."""

    known: tuple[Any, ...]

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        if value in self.known:
            return None
        words = ", ".join(f"'{word}'" for word in self.known)
        return f"must be one of {words}, got {value!r}{nearest(str(value), map(str, self.known))}"


@dataclass(frozen=True)
class Limit:
    """What one setting may be.

    Attributes:
        rule: of the value.
        each: the value is a list, and the rule holds for each element.
    """

    rule: Range | Words
    each: bool = False

    def problems(self, value: Any) -> Iterator[tuple[str, str]]:
        """Every element that breaks the rule, as (its place such as `[2]`, or nothing; what is wrong)."""
        if value is None:
            return
        for place, item in [(f"[{i}]", item) for i, item in enumerate(value)] if self.each else [("", value)]:
            what = self.rule.problem(item)
            if what is not None:
                yield place, what


Count = Annotated[int, Range("[1, ∞)")]
Size = Annotated[int, Range("[0, ∞)")]
Rate = Annotated[float, Range("[0, ∞)")]  # learning rates, weight decays, penalties
Positive = Annotated[float, Range("(0, ∞)")]
Share = Annotated[float, Range("[0, 1)")]  # of an old average that is kept
Fraction = Annotated[float, Range("[0, 1]")]
Inside = Annotated[float, Range("(0, 1)")]


def limits_of(component: Any) -> Mapping[str, Limit]:
    """The limits in the signature of a class or function, by setting.

    A constructor that hands `**` keywords on has the limits of its base's settings too.
    """
    target = inspect.unwrap(component)
    if not isinstance(target, type):
        return _function_limits(target)
    return _class_limits(target)


def keep_limits(component: C) -> C:
    """The same class or function, which from now on refuses values outside its limits.

    Nothing is changed of what has none.
    """
    if isinstance(component, type):
        if _MARK not in vars(component) and limits_of(component):
            setattr(component, _MARK, True)
            component.__init__ = _guarded(component.__init__, component)  # type: ignore[misc]
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
        if limit is not None and name != "return":
            found[name] = limit
    return found


def _limit(hint: Any, each: bool = False) -> Limit | None:
    """The limit that a type says; that of `X | None` is that of X."""
    if get_origin(hint) is Literal:
        return Limit(Words(get_args(hint)), each)
    if get_origin(hint) is Annotated:
        rule = next((item for item in get_args(hint)[1:] if isinstance(item, (Range, Words))), None)
        return None if rule is None else Limit(rule, each)
    inner = [_limit(item, each or _is_list(hint)) for item in get_args(hint)]
    return next((limit for limit in inner if limit is not None), None)


def _is_list(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence)
