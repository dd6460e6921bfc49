"""Tables whose rows belong to ids as they come: what `zch` and `dynamicemb` of a config ask for.

Such a table has no numbered rows: a key, any integer 0 … KEYS − 1, is given a row when a policy admits it
and loses it when a policy evicts it. To checkpoints its rows are numbered by their keys, so that they fit a
table of any capacity, and tables with num_buckets as far as ids go.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recgrad.errors import nearest

NUM_ROWS = 2**63 - 1
"""The height of such a table, as checkpoints see it: keys, and one more for the row of all others."""
KEYS = NUM_ROWS - 1
"""Keys are 0 … KEYS − 1."""
FALLBACK = KEYS
"""What the row of keys without a row of their own is numbered in checkpoints."""

LAST, COUNT, DISTANCE, NEVER = range(4)
"""What decides who leaves: the oldest, the rarest, the rarest for its age, or nobody ever does."""

MOST_ROWS = 1 << 31


@dataclass(frozen=True)
class Filter:
    """Which keys of a window may be admitted, by how often they were seen in it.

    Attributes:
        kind: "" for all, "above" (count > value), "mean" (count > value · mean of the counts), or "chance"
            (1 − (1 − value)^count > u, with u drawn for each key and round).
        value: its number.
    """

    kind: str = ""
    value: float = 0.0


@dataclass(frozen=True)
class LivingSpec:
    """How a table takes in and gives up keys.

    Attributes:
        capacity: keys that have a row at the same time.
        policy: LAST, COUNT, DISTANCE or NEVER.
        interval: forward passes from one round of admission and eviction to the next.
        decay: exponent of the age for DISTANCE.
        filter: of the keys of a window.
        fallback: keys without a row share one that is trained (zch); else `unknown` (dynamicemb).
        unknown: initialiser of what keys without a row read as in evaluation, as text.
        refused: the same for keys that are not admitted in training; their gradients are dropped.
        init_fn: initialiser of new rows, as text; "" for the table's own.
        threshold: how often a key must have been seen before it is admitted; 0 for at once.
        counters: keys that are counted before they are admitted, at most.
        ttl: forward passes after which a key that was not seen loses its row; 0 for never.
    """

    capacity: int
    policy: int = LAST
    interval: int = 1
    decay: float = 1.0
    filter: Filter = field(default_factory=Filter)
    fallback: bool = False
    unknown: str = "zeros_"
    refused: str = "zeros_"
    init_fn: str = ""
    threshold: int = 0
    counters: int = 0
    ttl: int = 0


def living_of(zch: Any, dynamicemb: Any, dim: int) -> LivingSpec | None:
    """What a feature's messages ask for; None where both are None.

    Raises:
        ValueError: a setting that cannot be; it begins with the setting's name.
    """
    if zch is not None and dynamicemb is not None:
        raise ValueError("zch and dynamicemb are both set; keep one")
    if zch is not None:
        return _of_zch(zch)
    return None if dynamicemb is None else _of_dynamicemb(dynamicemb, dim)


def _whole(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError(f"{name} must be in {low} … {high}, got {value}")
    return value


# --- zch ---

_POLICIES = {"lfu": COUNT, "lru": LAST, "distance_lfu": DISTANCE}


def _of_zch(zch: Any) -> LivingSpec:
    size = _whole("zch_size", zch.zch_size, 2, MOST_ROWS)
    policy = zch.WhichOneof("eviction_policy")
    if policy is None:
        raise ValueError(f"zch needs an eviction policy: one of {', '.join(_POLICIES)}, such as lfu {{}}")
    own = getattr(zch, policy)
    decay = float(getattr(own, "decay_exponent", 1.0))
    if not (math.isfinite(decay) and decay > 0):
        raise ValueError(f"decay_exponent must be above 0, got {decay}")
    text = zch.threshold_filtering_func
    return LivingSpec(
        size - 1,
        _POLICIES[policy],
        _whole("eviction_interval", zch.eviction_interval, 1, 1 << 30),
        decay,
        parse_filter(text) if text else Filter(),
        fallback=True,
        ttl=_whole("ttl_steps", zch.ttl_steps, 0, 1 << 30),
    )


_HELPERS: Mapping[str, tuple[str, str | None, float]] = {
    "average_threshold_filter": ("mean", None, 1.0),
    "dynamic_threshold_filter": ("mean", "threshold_skew_multiplier", 10.0),
    "probabilistic_threshold_filter": ("chance", "per_id_probability", 0.01),
}
_FORMS = (
    "it is read, never run, and may be `lambda x: (x > 10, 10)` (or >=), `lambda x: helper(x)`,"
    " `lambda x: helper(x, number)`, `partial(helper, name=number)` or `helper`, where helper is "
    + ", ".join(_HELPERS)
)
_LONGEST = 500


def parse_filter(text: str) -> Filter:
    """The filter that threshold_filtering_func describes. The text is parsed and never run."""
    problem = ValueError(f"threshold_filtering_func cannot be {text[:80]!r}: {_FORMS}")
    if len(text) > _LONGEST:
        raise problem
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise problem from None
    found = _filter(tree)
    if found is None or not math.isfinite(found.value):
        raise problem
    if found.kind == "chance" and not 0 < found.value <= 1:
        raise ValueError(f"threshold_filtering_func: per_id_probability must be in (0, 1], got {found.value}")
    return found


def _filter(tree: ast.expr) -> Filter | None:
    if isinstance(tree, ast.Name):
        return _helper(tree, [], [])
    if isinstance(tree, ast.Call) and _name(tree.func) == "partial" and len(tree.args) == 1:
        return _helper(tree.args[0], [], tree.keywords)
    if not isinstance(tree, ast.Lambda):
        return None
    a = tree.args
    if len(a.args) != 1 or a.defaults or a.kwonlyargs or a.posonlyargs or a.vararg or a.kwarg:
        return None
    counts, body = a.args[0].arg, tree.body
    if isinstance(body, ast.Call):
        if not body.args or _name(body.args[0]) != counts:
            return None
        return _helper(body.func, body.args[1:], body.keywords)
    if isinstance(body, ast.Tuple) and len(body.elts) == 2 and _number(body.elts[1]) is not None:
        return _comparison(body.elts[0], counts)
    return None


def _name(tree: ast.expr) -> str | None:
    return tree.id if isinstance(tree, ast.Name) else None


def _number(tree: ast.expr) -> float | None:
    sign = 1.0
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        sign, tree = -1.0, tree.operand
    if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
        try:
            return sign * float(tree.value)  # type: ignore[arg-type]
        except OverflowError:
            return None
    return None


def _comparison(tree: ast.expr, counts: str) -> Filter | None:
    if not (isinstance(tree, ast.Compare) and len(tree.ops) == 1 and _name(tree.left) == counts):
        return None
    value = _number(tree.comparators[0])
    if value is None:
        return None
    if isinstance(tree.ops[0], ast.Gt):
        return Filter("above", value)
    # Counts are whole: x >= n is x > n − ½ for whole n, and x > n for others.
    return Filter("above", math.ceil(value) - 0.5) if isinstance(tree.ops[0], ast.GtE) else None


def _helper(tree: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> Filter | None:
    known = _HELPERS.get(_name(tree) or "")
    if known is None or len(args) + len(keywords) > 1:
        return None
    kind, parameter, value = known
    if keywords and keywords[0].arg != parameter:
        return None
    given = [*args, *(keyword.value for keyword in keywords)]
    if given:
        number = _number(given[0])
        if number is None or parameter is None:
            return None
        value = number
    return Filter(kind, value)


# --- dynamicemb ---

_STRATEGIES = {"STEP": LAST, "TIMESTAMP": LAST, "LFU": COUNT, "NO_EVICTION": NEVER}


def _of_dynamicemb(config: Any, dim: int) -> LivingSpec:
    capacity = _whole("max_capacity", config.max_capacity, 1, MOST_ROWS)
    strategy = config.score_strategy.upper()
    if strategy == "CUSTOMIZED":
        raise ValueError(
            "score_strategy CUSTOMIZED is set by a program; use STEP, TIMESTAMP, LFU, NO_EVICTION"
        )
    if strategy not in _STRATEGIES:
        raise ValueError(f"no score_strategy '{config.score_strategy}'{nearest(strategy, _STRATEGIES)}")
    threshold, counters, refused = 0, 0, "zeros_"
    if config.WhichOneof("admission_strategy") is not None:
        own = config.frequency_admission_strategy
        threshold = _whole("threshold", own.threshold, 1, 1 << 30)
        most = own.counter_capacity if own.HasField("counter_capacity") else capacity
        counters = _whole("counter_capacity", most, 1, MOST_ROWS)
        refused = _initializer(own, "initializer_args", "CONSTANT", capacity, dim)
    return LivingSpec(
        capacity,
        _STRATEGIES[strategy],
        unknown=_initializer(config, "eval_initializer_args", "CONSTANT", capacity, dim),
        refused=refused,
        init_fn=_initializer(config, "initializer_args", "UNIFORM", capacity, dim),
        threshold=threshold,
        counters=counters,
        ttl=_whole("ttl_steps", config.ttl_steps, 0, 1 << 30),
    )


def _initializer(config: Any, name: str, default: str, capacity: int, dim: int) -> str:
    """Initialiser arguments as the text of a torch initialiser."""
    own = getattr(config, name)
    mode = own.mode.upper() or default
    bound = 1 / math.sqrt(capacity)
    mean, std = own.mean, own.std_dev if own.HasField("std_dev") else 1 / math.sqrt(dim)
    around = (mean - 2 * std, mean + 2 * std) if mode == "TRUNCATED_NORMAL" else (-bound, bound)
    low = own.lower if own.HasField("lower") else around[0]
    high = own.upper if own.HasField("upper") else around[1]
    kinds = {
        "CONSTANT": f"constant_,val={own.value!r}",
        "UNIFORM": f"uniform_,a={low!r},b={high!r}",
        "NORMAL": f"normal_,mean={mean!r},std={std!r}",
        "TRUNCATED_NORMAL": f"trunc_normal_,mean={mean!r},std={std!r},a={low!r},b={high!r}",
    }
    if mode not in kinds:
        raise ValueError(f"{name}: no mode '{own.mode}'{nearest(mode, kinds)}")
    return kinds[mode]
