"""Building all that a run would build, without memory for weights and rows, to see what refuses its settings.

The dense half is built on torch's meta device, where tensors have shapes and no values; tables of the local
engine take memory when rows are first updated; what optimizers are given is reserved and never written.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from recgrad.check.places import problems_of
from recgrad.check.report import Report
from recgrad.check.vocabularies import with_stand_ins
from recgrad.config.messages import chosen
from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.features.base import Feature
from recgrad.data.features.build import features_of
from recgrad.data.loader_settings import resolve_settings
from recgrad.data.readers.build import reader_class
from recgrad.data.samplers.build import checked_class
from recgrad.data.stream_source import stream_problems
from recgrad.embedding.build import build_sparse_optimizer
from recgrad.embedding.engine import EmbeddingEngine
from recgrad.errors import Problem
from recgrad.losses import build_loss
from recgrad.metrics import build_metric, build_train_metric
from recgrad.models.base import Model
from recgrad.models.build import build_model, task_messages
from recgrad.models.table_kernels import has_constraints, kernels_of_tables
from recgrad.models.tasks import loss_names
from recgrad.models.towers import TowerEncoder
from recgrad.optim.from_config import build_clipping, build_ema, build_scaler
from recgrad.optim.groups import build_dense_optimizers
from recgrad.optim.roles import batch_norms, parameter_roles
from recgrad.optim.sparse_half import build_sparse_parts
from recgrad.optim.updater import Updater

_log = logging.getLogger(__name__)
_GB = 2**30


def build_all(config: PipelineConfig, ranks: int | None = None, *, files: bool = False) -> Report:
    """What refuses the settings of a config that the rules have passed, at the paths of its fields.

    Args:
        config: not changed.
        ranks: as for `check_config`; how tables are spread matters unless it is 0.
        files: vocabulary files must be there; else one that is not is a hint, and one word stands for it.
    """
    given, hints, whole = (config, [], True) if files else with_stand_ins(config)
    with _nothing_changed():
        builder = _Builder(given)
        builder.run(ranks, whole)
    return Report(tuple(dict.fromkeys(builder.problems)), tuple(hints))


class _Unwritten(TorchFunctionMode):
    """Leaves normal values out where there is no memory for values.

    On the meta device torch does them in Python, and imports its compiler for it: a second and more.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.normal_ and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


class _Builder:
    """Builds part after part; what others need and could not be built leaves them out."""

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.problems: list[Problem] = []

    def attempt(self, where: str, build: Callable[[], Any]) -> Any:
        """What `build` makes, or None after noting why it cannot."""
        try:
            return build()
        except Exception as error:  # whatever a constructor raises, a user's own too, would end the run
            _log.debug("%s cannot be built", where, exc_info=True)
            self.problems += problems_of(error, where, self.config)
            return None

    def run(self, ranks: int | None, whole: bool) -> None:
        """Build everything, without the model unless the sizes of all tables are known."""
        data = self.config.data_config
        for training in (True, False):
            resolve = partial(resolve_settings, data, training=training, seed=0, rank=0, world_size=1)
            self.attempt("data_config", resolve)
        self.attempt("data_config", lambda: reader_class(data))
        self.problems += stream_problems(data)
        features = self.attempt("feature_configs", lambda: features_of(self.config))
        self.heads()
        if features is None or self.problems:
            return
        self.sampler(features)
        if not whole:
            return
        model = self.model(features)
        if model is None or self.problems:
            return
        self.attempt("model_config", lambda: [loss_names(task) for task in model.tasks])
        self.attempt("eval_config.catalogue", lambda: self.catalogue(model, features))
        self.batch_size(model)
        if self.too_large(model):
            return
        self.optimizers(model)
        if ranks != 0 and has_constraints(self.config):
            plan = model.groups.plan
            self.attempt("train_config", lambda: kernels_of_tables(self.config, plan.tables, plan.lookups))

    def catalogue(self, model: Model, features: list[Feature]) -> None:
        """Towers that an evaluation over a catalogue needs."""
        if self.config.eval_config.HasField("catalogue"):
            for tower in ("user", "item"):
                TowerEncoder(model, features, tower)

    def heads(self) -> None:
        """Losses and metrics."""
        for where, head in _heads(self.config.model_config):
            makers: list[tuple[str, str, Callable[..., Any]]] = [
                ("losses", "loss", build_loss),
                ("metrics", "metric", partial(build_metric, num_class=head.num_class)),
                ("train_metrics", "metric", partial(build_train_metric, num_class=head.num_class)),
            ]
            for field, oneof, build in makers:
                for i, item in enumerate(getattr(head, field)):
                    name = next((field.name for field, _ in item.ListFields()), oneof)
                    self.attempt(f"{where}.{field}[{i}].{name}", partial(build, item))

    def sampler(self, features: list[Feature]) -> None:
        """What the sampler refuses before it sees data."""
        picked = chosen(self.config.data_config, "sampler")
        if picked is not None:
            name, message = picked
            self.attempt(f"data_config.{name}", lambda: checked_class(name, message).check(message, features))

    def model(self, features: list[Feature]) -> Model | None:
        """The model, its dense half without values."""
        settings = ModelConfig()
        settings.CopyFrom(self.config.model_config)
        settings.compile = False  # nothing runs
        name = str(settings.WhichOneof("model"))

        def build(device: str) -> Model:
            with torch.device(device), _Unwritten():
                return build_model(
                    settings,
                    [feature.spec for feature in features],
                    label_fields=list(self.config.data_config.label_fields),
                    engine=_engine,
                )

        def build_anywhere() -> Model:
            try:
                return build("meta")
            except Exception as error:
                if "meta" not in str(error):
                    raise
                return build("cpu")  # a user's own model that looks at its weights

        model: Model | None = self.attempt(f"model_config.{name}", build_anywhere)
        return model

    def batch_size(self, model: Model) -> None:
        """BatchNorm has no variance of one row."""
        size = self.config.data_config.batch_size
        if size == 1 and batch_norms(model):
            what = "BatchNorm (use_bn, Dice) cannot train on batches of one row; use at least 2"
            self.problems.append(Problem("data_config.batch_size", what))

    def too_large(self, model: Model) -> bool:
        """Whether the dense weights are larger than the memory of this machine."""
        size, memory = model.memory()["dense"], _memory()
        if memory is None or size <= memory:
            return False
        choice = self.config.model_config.WhichOneof("model")
        what = (
            f"its dense weights take {size / _GB:,.0f} GB, and this machine has {memory / _GB:,.0f} GB; "
            "make its layers narrower"
        )
        self.problems.append(Problem(f"model_config.{choice}", what))
        return True

    def optimizers(self, model: Model) -> None:
        """The update step, over parameters that are reserved and never written."""
        train = self.config.train_config
        where = "train_config"
        named = [
            (name, nn.Parameter(torch.empty(p.shape, dtype=p.dtype), requires_grad=p.requires_grad))
            for name, p in model.dense_named_parameters()
        ]
        engine = model.engine
        dense = self.attempt(
            f"{where}.dense_optimizer",
            lambda: build_dense_optimizers(named, train.dense_optimizer, roles=parameter_roles(model)),
        )
        sparse = []
        if engine is not None:
            sparse = self.attempt(
                f"{where}.sparse_optimizer",
                lambda: build_sparse_parts(
                    build_sparse_optimizer(engine, train.sparse_optimizer),
                    train.sparse_optimizer,
                    f"{where}.sparse_optimizer",
                ),
            )
        # The average is a copy of the weights, so it is made of those without values.
        self.attempt(where, lambda: build_ema(train, model.dense_named_parameters(), where))
        scaler = self.attempt(where, lambda: build_scaler(train, where))
        clipping = self.attempt(where, lambda: build_clipping(train, where))
        if dense is None or sparse is None:
            return
        self.attempt(
            where,
            lambda: Updater(
                dense,
                sparse,
                accumulation_steps=train.gradient_accumulation_steps or 1,
                mixed_precision=train.mixed_precision or None,
                grad_scaler=scaler,
                grad_clipping=clipping,
            ),
        )


def _heads(model: Any) -> Iterator[tuple[str, Any]]:
    """Path and message of all that has losses and metrics: the model's towers, or itself."""
    name = model.WhichOneof("model")
    tasks = task_messages(getattr(model, name))
    if tasks is None:
        yield "model_config", model
        return
    for place, task in tasks:
        yield f"model_config.{name}.{place}", task


def _engine(*args: Any, **kwargs: Any) -> EmbeddingEngine:
    """The local engine, whose tables have no rows yet."""
    from recgrad.embedding.local.engine import LocalEngine

    with torch.device("cpu"):
        return LocalEngine(*args, **kwargs)


def _memory() -> int | None:
    """The bytes of this machine's memory, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


@contextmanager
def _nothing_changed() -> Iterator[None]:
    """Leave random state as it is, and do not log what a run would log of its parts."""
    python, numbers, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    logger = logging.getLogger("recgrad.optim.groups")
    silent = lambda record: False  # noqa: E731
    logger.addFilter(silent)
    try:
        yield
    finally:
        logger.removeFilter(silent)
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
        torch.set_rng_state(tensors)
