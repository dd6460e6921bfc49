"""What rows miss while no batch touches them: dense Adam moves them on by their momentum.

Without a gradient, m and v of a row only shrink, so its next updates are known in advance. After updates
s + 1 … t a row that update s touched last has moved by

    Σ_j η_j/(1 − β1^j) · β1^k m / (√(β2^k v/(1 − β2^j)) + ε),  k = j − s
    = m Σ_j a_j/(√v + ε e_j)
    a_j = η_j √(1 − β2^j)/(1 − β1^j) · (β1/√β2)^k,  e_j = √(1 − β2^j) β2^(−k/2)

m and v are the row's own, a and e are the same for all rows of one s. So the row moves along one direction,
and a lookup needs no more than that:

    w − move · u,  move = Σ a,  u = m/q(v)

For ε → 0, q = √v, and this is exact for any rates and from the first update on; for a constant rate and
settled bias corrections move is η r(1 − rⁿ)/(1 − r), r = β1/√β2. With ε, 1/q is the mean of 1/(√v + ε e) over
the updates to come, taken as for a constant rate. Where e hardly changes, q = √v + ε√(1 − β2^s), the divisor
of update s itself; else, with the mean ē and the harmonic mean h of e,

    q = √v + ε ē − ε² Var(e)/(√v + ε α),  α = Var(e)/(ē − h)

which is right to second order in ε/√v and exact for ε → ∞. The errors, as shares of the movement, with
x = ε ē/√v:

- The mean of e so far is not the one that q is made of: at most x/(1 + x) · |e/ē − 1|. For β = (0.9, 0.999)
  that is about half of x/(1 + x) for rows of the first few updates, as long as m has not died out; 1.5 % ·
  x/(1 + x) from update 500 or so on, where Var(e)/ē² < 10⁻⁴ and e counts as even; 0.5 % · x/(1 + x) when the
  bias corrections are settled. Changing rates do the same.
- The sums are float32: a few of its last bits.

x is small unless gradients are as small as ε: a row's one gradient g leaves √v = √(1 − β2)|g|. None of this
adds up: each time a row is read, its whole way since its last update is taken again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

HEADING, SQUARE, STEP = "direction", "exp_avg_sq", "step"  # the states of a row that catches up
STORED, MISSED = (
    "weight_at_step",
    "missed",
)  # in checkpoints: the row as its last update left it, and its entry
MOVE, KEPT, FLOOR, SPREAD, SHIFT = range(5)  # of an entry: Σ a, what is left of m, ε ē, ε² Var(e), ε α
_SAVED, _COLUMNS = 5, 8
_SETTLED = 2.0**-30  # a sum whose next term is this share of the rate is at its end
_POWERS = 256
_LEAST = 1e-38  # about the least normal float32
_EVEN = 1e-4  # Var(e)/ē² below which the mean of e will do
_MOST_CHANGE = 0.5
_LONGEST = 1 << 14  # updates that a divisor looks ahead


class Divisor(NamedTuple):
    """q(v) = √v + floor − spread/(√v + shift)."""

    floor: float
    spread: float
    shift: float

    def __call__(self, square: Array) -> Array:
        """q(v), float32."""
        root = np.sqrt(square)
        below = root + np.float32(self.floor)
        if self.spread:
            below = below - np.float32(self.spread) / (root + np.float32(self.shift))
        return np.asarray(below, np.float32)


@lru_cache(maxsize=64)
def divisor(beta1: float, beta2: float, eps: float, step: int) -> Divisor:
    """What a row's m is divided by for its way after this update."""
    ratio = beta1 / math.sqrt(beta2)
    length = math.log(_SETTLED) / math.log(ratio) if ratio > 0 else 1
    k = np.arange(1, min(math.ceil(length), _LONGEST) + 1)
    unbias = 1 - beta2 ** (step + k)
    weights = np.sqrt(unbias) / (1 - beta1 ** (step + k)) * ratio**k
    e = np.sqrt(unbias) * beta2 ** (-0.5 * k)
    if beta1 == 0:
        weights = np.ones_like(e)
    weights /= weights.sum()
    mean, harmonic = float(weights @ e), 1 / float(weights @ (1 / e))
    variance = float(weights @ (e - mean) ** 2)
    if variance <= _EVEN * mean**2:
        return Divisor(max(eps * math.sqrt(1 - beta2**step), _LEAST), 0.0, 0.0)
    return Divisor(max(eps * mean, _LEAST), eps**2 * variance, eps * variance / (mean - harmonic))


def saved_widths(dim: int) -> dict[str, int]:
    """Widths of what checkpoints keep for each row besides an optimizer's states."""
    return {STORED: dim, MISSED: _SAVED}


def check_lazy(group: dict[str, Any]) -> None:
    """Refuse what rows could not catch up with: weight decay, and betas whose sum does not settle."""
    if group.get("lazy", True):
        return
    if group["weight_decay"]:
        raise ValueError(
            f"weight_decay moves every row in every update, which lazy: false does not follow, "
            f"got {group['weight_decay']}; leave weight_decay out, or set lazy: true"
        )
    beta1, beta2 = group["beta1"], group["beta2"]
    ratio = beta1 / math.sqrt(beta2) if beta2 > 0 else math.inf
    if ratio >= 1 or -math.log(beta2) / 2 > _MOST_CHANGE * (1 - ratio):
        raise ValueError(
            f"lazy: false needs a beta2 near 1, such as 0.999 for beta1 0.9: while momentum dies out, √v may "
            f"change by half at most; got beta1 {beta1:g} and beta2 {beta2:g}"
        )


def moved(weights: Array, headings: Array, missed: Array) -> Array:
    """Rows as they are by now, float32: the arithmetic of lookups, bit for bit."""
    return np.asarray(weights - missed[:, MOVE, None] * headings)


class History:
    """By update, how far the rows that it touched last have moved since.

    Attributes:
        count: finished updates; entries 0 … count are in use.
        line: int64, what kernels read: the addresses of entries and of powers of β2.
    """

    def __init__(self, beta2: float, eps: float, count: int = 0) -> None:
        self.beta2, self.eps, self.count = beta2, eps, count
        self._first = count  # entries before it are settled
        powers = np.arange(_POWERS, dtype=np.float64)
        self._powers = np.concatenate([[beta2], beta2**powers, beta2 ** (_POWERS * powers)])
        self._roots = beta2 ** (-0.5 * np.arange(_POWERS))
        self.line = np.zeros(2, np.int64)
        self.line[1] = self._powers.__array_interface__["data"][0]
        self._take_room(np.zeros((0, _COLUMNS), np.float32), count + 1)
        self._entries[count, KEPT] = 1

    def _take_room(self, old: Array, size: int) -> None:
        self._entries = np.zeros((max(2 * size, 1024), _COLUMNS), np.float32)
        self._entries[: len(old)] = old
        self.line[0] = self._entries.__array_interface__["data"][0]

    def copy(self) -> History:
        """The same, for tables that part from the others."""
        other = History(self.beta2, self.eps, self.count)
        other._entries[: self.count + 1] = self._entries[: self.count + 1]
        other._first = self._first
        return other

    def advance(self, lr: float, beta1: float) -> None:
        """Add an update to what all rows miss but those that it touched; call it when they are updated."""
        first, step = self._first, self.count + 1
        if step >= len(self._entries):
            self._take_room(self._entries, step + 1)
        if step - first >= len(self._roots):
            self._roots = self.beta2 ** (-0.5 * np.arange(2 * (step - first + 1)))
        window = self._entries[first:step]
        window[:, KEPT] *= np.float32(beta1)
        shares = window[:, KEPT] * self._roots[step - first : 0 : -1]
        window[:, MOVE] += lr * math.sqrt(1 - self.beta2**step) / (1 - beta1**step) * shares
        self._entries[step, :_SAVED] = (0, 1, *divisor(beta1, self.beta2, self.eps, step))
        self.count = step
        self._first = first + int(np.argmax(np.append(shares, 1.0) >= _SETTLED))

    # --- checkpoints ---

    def missed(self, steps: Array) -> Array:
        """The entries of rows that these updates touched last, float32 [rows, 5]."""
        return self._entries[steps, :_SAVED]

    def missed_now(self) -> Callable[[Array], Array]:
        """`missed` of this moment, to be asked later: entries that are settled stay as they are."""
        entries, first = self._entries, self._first
        recent = entries[first : self.count + 1, :_SAVED].copy()

        def missed(steps: Array) -> Array:
            found = entries[steps, :_SAVED]
            late = steps >= first
            found[late] = recent[steps[late] - first]
            return found

        return missed

    def bring_up_to_date(self, steps: Array, headings: Array, squares: Array) -> tuple[Array, Array]:
        """Directions and second moments of rows that these updates touched last, as of the last update."""
        entries = self._entries[steps]
        floor, spread, shift = (entries[:, column, None] for column in (FLOOR, SPREAD, SHIFT))
        root = np.sqrt(squares)
        below = root + floor - spread / np.where(spread > 0, root + shift, 1)
        left = self.beta2 ** (self.count - steps.astype(np.float64))
        squares = squares * left.astype(np.float32)[:, None]
        moments = headings * below * entries[:, KEPT, None]
        now = Divisor(*self._entries[self.count, [FLOOR, SPREAD, SHIFT]].tolist())
        below = now(squares) if now.floor else np.ones_like(squares)
        return (moments / below).astype(np.float32), squares

    def agrees(self, steps: Array, missed: Array) -> bool:
        """Whether no entry is known to be another."""
        known = self._entries[steps, KEPT] > 0
        return bool((self._entries[steps[known], :_SAVED] == missed[known]).all())

    def take(self, steps: Array, missed: Array) -> None:
        """Set the entries of these updates."""
        self._entries[steps, :_SAVED] = missed
        recent = np.arange(max(self.count - len(self._roots) + 1, 0), self.count + 1)
        while recent[0] > 0 and self._grows(recent[:1])[0]:
            recent = np.arange(max(self.count - 2 * len(recent), 0), self.count + 1)
        self._first = int(recent[np.argmax(self._grows(recent))])

    def _grows(self, steps: Array) -> Array:
        """Which of these entries are not settled."""
        roots = self.beta2 ** (-0.5 * (self.count - steps))
        return np.asarray(self._entries[steps, KEPT] * roots >= _SETTLED)
