"""`recgrad warmup`: compile kernels before the first run of a machine needs them."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.run_flags import add_config_arguments, add_threads_argument, config_path
from recgrad.errors import RecgradError
from recgrad.terminal import say

if TYPE_CHECKING:
    from recgrad.config import PipelineConfig

SYNTHETIC_ROWS = 2_000


@COMMANDS.register("warmup")
class Warmup(Command):
    """Compile the kernels that runs need and keep them, so that the first run does not wait for it.

    With a config, those of its first step, on its own data; nothing is saved or tracked. Without one,
    those of tables, features and metrics that most runs have, and the rules of all sparse optimizers. Where
    TorchRec is installed, those that tables of several processes need are compiled too. All are kept under
    $XDG_CACHE_HOME (~/.cache) by all that they are made of: sources, versions and CPU; what does not fit is
    compiled again. For images and fresh machines.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        add_threads_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        given = args.config is not None or args.pipeline_config_path is not None
        path = config_path(args, "warmup") if given else None
        if path is None and (args.edit_config_json or args.no_custom_code):
            raise RecgradError("recgrad warmup: --edit_config_json and --no_custom_code need a config")
        begin = time.perf_counter()
        with heavy_imports():
            from recgrad.kernels.cache import kept_files
            from recgrad.training.runtime import set_up_process

        set_up_process(args.num_threads)
        before = kept_files()
        if before is None:
            raise RecgradError("recgrad warmup: no folder to keep kernels in; set XDG_CACHE_HOME")
        logging.getLogger("recgrad.training").setLevel(logging.WARNING)
        with tempfile.TemporaryDirectory(prefix="recgrad-warmup-") as folder:
            if path is None:
                warm_common(Path(folder))
            else:
                from recgrad.config.effective import effective_config

                config, _ = effective_config(path, args.edit_config_json, custom_code=not args.no_custom_code)
                warm_config(config, Path(folder))
            if find_spec("torchrec") is not None:
                warm_ranks()
        after = kept_files() or frozenset()
        compiled, seconds = len(after - before), time.perf_counter() - begin
        say(f"compiled {compiled} kernels in {seconds:.1f} s, {len(after)} are kept")
        return 0


def warm_config(config: PipelineConfig, folder: Path) -> None:
    """Do the first step of a config and forget it; `folder` is a folder that will be removed."""
    from recgrad.training.hook import Hook, StepReport
    from recgrad.training.run import train
    from recgrad.training.trainer import Trainer

    class Enough(Exception):  # noqa: N818 (nothing is wrong)
        """The first step is done."""

    class StopThere(Hook):
        def after_step(self, trainer: Trainer, report: StepReport) -> None:
            raise Enough

    config.model_dir = str(folder / "model")
    config.train_config.use_tensorboard = False
    config.train_config.ClearField("trackers")
    config.train_config.ClearField("delta_embedding_dump_config")
    try:
        train(config, hooks=[StopThere()])
    except Enough:
        return


def warm_common(folder: Path) -> None:
    """A small run on synthetic clicks with its evaluation, and the rule of every sparse optimizer."""
    from recgrad.config import load_config
    from recgrad.embedding.local.update import update_function
    from recgrad.kernels.compile import compiled, compiled_with
    from recgrad.nn import (
        distinct_kernels,
        fm_kernels,
        layer_products,
        mix_kernels,
        output_kernels,
        relu_kernels,
    )
    from recgrad.optim.sparse import SPARSE_OPTIMIZERS
    from recgrad.synth import write_synth
    from recgrad.training.run import train

    write_synth(folder, SYNTHETIC_ROWS, eval_rows=SYNTHETIC_ROWS)
    config = load_config(folder / "deepfm.config")
    config.train_config.use_tensorboard = False
    train(config, model_dir=folder / "model")
    for kernels in (layer_products, distinct_kernels, relu_kernels, fm_kernels, mix_kernels, output_kernels):
        for wanted in kernels.kernels():
            compiled(wanted.function)
    for _, optimizer in SPARSE_OPTIMIZERS.items():
        for rule in (optimizer.rule, getattr(optimizer, "dense_rule", None)):
            if rule is not None:
                compiled_with(update_function, rule)


def warm_ranks() -> None:
    """What tables of several processes need, and those of one do not."""
    from recgrad.embedding.local.transfer import offsets_task
    from recgrad.embedding.local.update import reduce_tasks
    from recgrad.embedding.sharded import column_kernels
    from recgrad.kernels import numbering
    from recgrad.kernels.compile import compiled

    functions = [wanted.function for wanted in (*numbering.kernels(), *column_kernels.kernels())]
    for function in (*functions, offsets_task, reduce_tasks):
        compiled(function)
