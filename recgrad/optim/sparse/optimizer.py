"""Sparse optimizers: they update the embedding rows that a batch touched, and no others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.errors import CheckpointError
from recgrad.limits import Positive, Range, Rate, check_limits, number
from recgrad.optim.eager import EagerOptimizer
from recgrad.optim.sparse.history import MISSED, STEP, History, saved_widths
from recgrad.optim.sparse.rule import State
from recgrad.optim.sparse.tables import Moved, SparseEngine, SparseTable, Tables, Update, adopt, advance
from recgrad.registry import Registry

Array = npt.NDArray[Any]

DECAY_MODES = ("NONE", "L2", "DECOUPLE")
LEAST_EPS = 1e-38  # about the least normal float32: a smaller one may count as 0 in a kernel
Eps = Annotated[float, Range(f"[{LEAST_EPS}, ∞)")]
_RESERVED = "t"


class SparseOptimizer(EagerOptimizer):
    """A rule over the tables of an engine, as a torch optimizer.

    Gradients of all backward passes since the last step are summed per row, and each touched
    row is updated once. A subclass gives `rule`, `states` and `scalars`, and names its
    hyperparameters in its constructor.

    Args:
        tables: an engine, its tables (`engine.tables.values()`), or dicts with the tables under
            "params" and hyperparameters of their own. Frozen tables are left out.
        hyperparameters: of the rule, `lr` among them.
        weight_decay: λ.
        weight_decay_mode: "L2" adds λw to the gradient, "DECOUPLE" takes ηλw off the weight, "NONE"
            wants λ = 0; None is the rule's own habit.
        gradient_clipping: clamp each element of the outputs' gradients to ±max_gradient.
        max_gradient: the bound.
    """

    rule: ClassVar[Any] = None
    states: ClassVar[tuple[State, ...]] = ()
    decay_modes: ClassVar[tuple[str, ...]] = DECAY_MODES
    default_decay_mode: ClassVar[str] = "L2"
    decay_inside: ClassVar[bool] = False  # the rule itself applies weight decay, from its scalars
    whole_rows: ClassVar[bool] = True  # elements of a row depend on each other; False allows column shards

    def __init__(
        self,
        tables: Tables,
        hyperparameters: dict[str, Any],
        *,
        weight_decay: Rate = 0.0,
        weight_decay_mode: str | None = None,
        gradient_clipping: bool = False,
        max_gradient: Positive = 1.0,
    ) -> None:
        defaults = {
            **hyperparameters,
            "weight_decay": weight_decay,
            "weight_decay_mode": weight_decay_mode,
            "gradient_clipping": gradient_clipping,
            "max_gradient": max_gradient,
            "name": "main",
        }
        self._kinds: list[type[SparseOptimizer]] = []
        self._by_handle: dict[int, SparseTable] = {}
        self._steps: dict[str, int] = {}
        super().__init__(self._as_groups(tables), defaults)

    # --- what a subclass gives ---

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """The numbers that the rule gets as h at this update of a table (from 1)."""
        raise NotImplementedError

    @classmethod
    def rule_of(cls, group: dict[str, Any]) -> Any:
        """The rule for the tables of a group."""
        return cls.rule

    @classmethod
    def states_of(cls, group: dict[str, Any]) -> tuple[State, ...]:
        """The states that the tables of a group have."""
        return cls.states

    @classmethod
    def needs_whole_rows(cls, group: dict[str, Any]) -> bool:
        """Whether the rows of a group's tables may not be cut into columns."""
        return cls.whole_rows

    @classmethod
    def build_history(cls, group: dict[str, Any]) -> History | None:
        """What keeps count of the updates that untouched rows miss; None if they miss nothing."""
        return None

    @classmethod
    def check(cls, group: dict[str, Any]) -> None:
        """Refuse hyperparameters that do not go together, with ValueError; limits are in the constructor."""

    # --- groups ---

    def _as_groups(self, tables: Tables) -> list[dict[str, Any]]:
        """Tables as param groups of their handles."""
        items = list(tables.tables.values() if isinstance(tables, SparseEngine) else tables)
        groups = [item for item in items if isinstance(item, dict)]
        alone = [item for item in items if not isinstance(item, dict)]
        return [self._by_handles(group) for group in groups or [{"params": alone}]]

    def _by_handles(self, group: dict[str, Any]) -> dict[str, Any]:
        members = [table for table in group["params"] if table.trainable]
        self._by_handle.update({id(table.handle): table for table in members})
        return {**group, "params": [table.handle for table in members]}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add tables, with hyperparameters of their own where given."""
        super().add_param_group(param_group)
        self._kinds.append(type(self))
        self._begin(self.param_groups[-1], type(self))

    def _begin(self, group: dict[str, Any], kind: type[SparseOptimizer]) -> None:
        """Check a new group and make room for its states."""
        _check(group, kind)
        group.setdefault("initial_lr", group["lr"])
        states, history = kind.states_of(group), kind.build_history(group)
        for table in self._tables(group):
            if table.name in self._steps:
                raise ValueError(f"an optimizer's tables must have unique names, got '{table.name}' twice")
            if kind.needs_whole_rows(group) and table.by_columns:
                raise ValueError(
                    f"{kind.__name__} needs whole rows, but table '{table.name}' is spread by columns; "
                    "use sharding_types row_wise or table_wise for it"
                )
            if group["gradient_clipping"] and table.divides_gradients:
                raise ValueError(
                    f"gradient_clipping clamps the gradients of bags, but those of table '{table.name}' are "
                    "means or weighted, and summed far from it, because it also serves sequences; leave "
                    "gradient_clipping out, or give the sequence an embedding_name of its own"
                )
            initials = [0.0 if s.initial is None else float(group[s.initial]) for s in states]
            widths = [1 if s.per_row else table.dim for s in states]
            names = [s.name for s in states]
            table.set_states(list(zip(names, widths, initials, strict=True)))
            if history is not None:
                table.follow(history)
            table.clamped = bool(group["gradient_clipping"])
            self._steps[table.name] = 0

    def _tables(self, group: dict[str, Any]) -> list[SparseTable]:
        return [self._by_handle[id(handle)] for handle in group["params"]]

    @property
    def tables(self) -> dict[str, SparseTable]:
        """The tables that this optimizer updates, by name."""
        return {table.name: table for table in self._by_handle.values()}

    def _engines(self) -> dict[int, tuple[SparseEngine, set[str]]]:
        engines: dict[int, tuple[SparseEngine, set[str]]] = {}
        for table in self._by_handle.values():
            engines.setdefault(id(table.engine), (table.engine, set()))[1].add(table.name)
        return engines

    # --- torch.optim.Optimizer ---

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every row that has gradients, once, and drop the gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        waiting = {id(engine): engine.pending_tables() for engine, _ in self._engines().values()}
        updates: dict[int, tuple[SparseEngine, list[Update]]] = {}
        moved: list[Moved] = []
        for group, kind in zip(self.param_groups, self._kinds, strict=True):
            scalars: dict[int, tuple[float, ...]] = {}
            limit = group["max_gradient"] if group["gradient_clipping"] else math.inf
            l2, decoupled = (0.0, 0.0) if kind.decay_inside else decay(group)
            for table in self._tables(group):
                if table.name not in waiting[id(table.engine)]:
                    continue
                step = self._steps[table.name] = self._steps[table.name] + 1
                if step not in scalars:
                    scalars[step] = kind.scalars(group, step)
                update = Update(
                    table.name, kind.rule_of(group), scalars[step], limit, l2, decoupled, step, group
                )
                updates.setdefault(id(table.engine), (table.engine, []))[1].append(update)
                if table.history is not None:
                    moved.append(Moved(table, group))
        for engine, members in updates.values():
            engine.update(members)
        if moved:
            advance(moved, self._by_handle.values())
        return loss

    def rules(self) -> list[Any]:
        """The rules that its groups are updated by, each once."""
        kinds = zip(self.param_groups, self._kinds, strict=True)
        return list(dict.fromkeys(kind.rule_of(group) for group, kind in kinds))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients that wait for a step."""
        for engine, names in self._engines().values():
            engine.clear_gradients(names)

    def state_dict(self) -> dict[str, Any]:
        """Hyperparameters by group, and by table its rows, their states and its number of updates.

        With tables over several processes it is of the rows that this one holds, and for it to load again.
        """
        packed = super().state_dict()
        packed["state"] = {}
        tables = [table for group in self.param_groups for table in self._tables(group)]
        for index, table in enumerate(tables):
            rows, states = table.row_states()
            values = {**states, **self.table_state(table.name)}
            packed["state"][index] = {
                "table": table.name,
                "row_ids": torch.from_numpy(rows),
                **{name: torch.from_numpy(np.asarray(value)) for name, value in values.items()},
            }
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; rows that a table does not have yet come into being."""
        super().load_state_dict({**state_dict, "state": {}})
        tables: list[SparseTable] = []
        for group in self.param_groups:
            for table in self._tables(group):
                table.clamped = bool(group["gradient_clipping"])
                tables.append(table)
        for index, saved in state_dict["state"].items():
            saved = dict(saved)
            name = saved.pop("table")
            if name != tables[index].name:
                raise CheckpointError(
                    f"optimizer: table {index} is '{tables[index].name}', the checkpoint has '{name}'"
                )
            rows = saved.pop("row_ids").numpy()
            self.import_state(name, rows, {key: value.numpy() for key, value in saved.items()})

    # --- gradients between backward and step ---

    def unscale_(self, factor: float) -> bool:
        """Multiply the waiting gradients; returns whether all of them are finite."""
        finite = True
        for engine, names in self._engines().values():
            finite = engine.finite_gradients(names) and finite
            if factor != 1:
                engine.scale_gradients(names, factor)
        return finite

    def _summed(self, *, own: bool = False) -> list[Tensor]:
        limits = {
            table.name: group["max_gradient"] if group["gradient_clipping"] else math.inf
            for group in self.param_groups
            for table in self._tables(group)
        }
        sums = []
        for engine, names in self._engines().values():
            sums += engine.summed_gradients({name: limits[name] for name in names}, own=own)
        return sums

    def grad_norm(self, norm_type: float = 2.0) -> Tensor:
        """The norm of the gradients of all touched rows, each row's summed over the batch.

        With tables over several processes it is the share of this one, and every process must ask.
        """
        sums = [gradient for gradient in self._summed(own=True) if gradient.numel()]
        norms = [torch.linalg.vector_norm(gradient, norm_type).cpu() for gradient in sums]
        return torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros(())

    def clip_(self, factor: float) -> None:
        """Multiply the gradients of all touched rows."""
        for engine, names in self._engines().values():
            engine.scale_gradients(names, factor)

    def clamp_(self, limit: float) -> None:
        """Clamp each element of the touched rows' gradients to ±limit."""
        for gradient in self._summed():
            gradient.clamp_(-limit, limit)

    # --- checkpoints ---

    def export_state(self, table: str) -> dict[str, Array]:
        """States of a table's touched rows, in `export_table`'s order, and `t`, its number of updates."""
        return {**self.tables[table].row_states()[1], **self.table_state(table)}

    def state_shapes(self, table: str) -> dict[str, tuple[int, ...]]:
        """(width,) of each state of a table's rows, and () of `t`."""
        for group, kind in zip(self.param_groups, self._kinds, strict=True):
            for own in self._tables(group):
                if own.name == table:
                    widths = {s.name: 1 if s.per_row else own.dim for s in kind.states_of(group)}
                    widths |= {} if own.history is None else saved_widths(own.dim)
                    return {**{name: (width,) for name, width in widths.items()}, _RESERVED: ()}
        raise KeyError(f"no table '{table}'")

    def table_state(self, table: str) -> dict[str, Array]:
        """The state that a table has as a whole: `t`, its number of updates."""
        return {_RESERVED: np.array(self._steps[table])}

    def import_state(self, table: str, row_ids: Any, states: Mapping[str, Array]) -> None:
        """Set states of rows, and the number of updates."""
        values = dict(states)
        if _RESERVED not in values:
            raise CheckpointError(
                f"table '{table}': the optimizer's state has no '{_RESERVED}', its number of updates"
            )
        step = int(values.pop(_RESERVED))
        if not 0 <= step < 1 << 53:
            raise CheckpointError(f"table '{table}': its number of updates is {step}")
        own = self.tables[table]
        if own.history is not None and {STEP, MISSED} <= values.keys():
            steps, missed = np.asarray(values[STEP], np.int64).reshape(-1), np.asarray(values[MISSED])
            adopt(own, self._by_handle.values(), step, steps, missed)
        own.import_states(np.asarray(row_ids, np.int64), values)
        self._steps[table] = step


class Combined(SparseOptimizer):
    """Several sparse optimizers as one: each keeps its own groups."""

    def __init__(self, members: Sequence[SparseOptimizer]) -> None:
        self._kinds = []
        self._by_handle = {}
        self._steps = {}
        self._members = [kind for member in members for kind in member._kinds]
        for member in members:
            self._by_handle.update(member._by_handle)
        EagerOptimizer.__init__(self, [g for m in members for g in m.param_groups], {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take over a member's group."""
        if len(self._kinds) >= len(self._members):
            raise ValueError("tables must be given to a combined optimizer through its members")
        EagerOptimizer.add_param_group(self, param_group)
        self._kinds.append(self._members[len(self._kinds)])
        for table in self._tables(self.param_groups[-1]):
            if table.name in self._steps:
                raise ValueError(f"an optimizer's tables must have unique names, got '{table.name}' twice")
            self._steps[table.name] = 0


def decay(group: dict[str, Any]) -> tuple[float, float]:
    """Weight decay as (times the weight to add to the gradient, times the weight to take off the weight)."""
    mode, rate = group["weight_decay_mode"], group["weight_decay"]
    return (rate if mode == "L2" else 0.0, group["lr"] * rate if mode == "DECOUPLE" else 0.0)


def _check(group: dict[str, Any], kind: type[SparseOptimizer]) -> None:
    """Refuse settings that make no sense or would have no effect."""
    check_limits(kind, group)
    if group["weight_decay_mode"] is None:
        group["weight_decay_mode"] = kind.default_decay_mode if group["weight_decay"] else "NONE"
    mode = group["weight_decay_mode"]
    if mode not in kind.decay_modes:
        raise ValueError(
            f"weight_decay_mode of {kind.__name__} must be one of {kind.decay_modes}, got '{mode}'"
        )
    if mode == "NONE" and group["weight_decay"]:
        raise ValueError(
            "weight_decay has no effect with weight_decay_mode NONE; set the mode to L2 or DECOUPLE, "
            f"got {number(group['weight_decay'])}"
        )
    kind.check(group)


SPARSE_OPTIMIZERS: Registry[type[SparseOptimizer]] = Registry("sparse optimizer", "recgrad.optim.sparse")

__all__ = [
    "DECAY_MODES",
    "LEAST_EPS",
    "SPARSE_OPTIMIZERS",
    "Combined",
    "Eps",
    "SparseOptimizer",
    "decay",
]
