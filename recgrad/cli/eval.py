"""`recgrad eval`: the metrics of a checkpoint on some data."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.run_flags import (
    add_config_arguments,
    add_device_argument,
    add_threads_argument,
    config_path,
    device_of,
)
from recgrad.terminal import say
from recgrad.training.signals import StopRequest


@COMMANDS.register("eval")
class Eval(Command):
    """Evaluate a checkpoint of the model dir, or any other, on any data.

    Without --checkpoint_path it is the best one where the config keeps that (exporter_type best),
    else the newest. CONFIG may be the model_dir of a run, which means its pipeline.config.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        parser.add_argument("--checkpoint-path", metavar="PATH", help="a checkpoint or a model dir")
        parser.add_argument("--eval-input-path", metavar="PATH", help="instead of the config's")
        parser.add_argument("--eval-result-filename", metavar="FILE", help="also write the metrics as JSON")
        add_device_argument(parser)
        add_threads_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        path = config_path(args, "eval")
        from pathlib import Path

        with heavy_imports():
            from recgrad.check.catalogue import PREFIX
            from recgrad.training.catalogue import BASELINE, comparison_table
            from recgrad.training.hooks.console import evaluation_bar
            from recgrad.training.hooks.events import as_json
            from recgrad.training.run import evaluate
            from recgrad.training.runtime import set_up_process

        set_up_process(args.num_threads)
        with StopRequest() as stop, evaluation_bar() as progress:
            metrics = evaluate(
                path,
                checkpoint_path=args.checkpoint_path,
                eval_input_path=args.eval_input_path,
                edit_config_json=args.edit_config_json,
                device=device_of(args),
                custom_code=not args.no_custom_code,
                stop=stop,
                progress=progress,
            )
        for name in sorted(metrics):
            if not name.startswith((PREFIX, BASELINE)):
                say(f"{name}: {metrics[name]:.6f}")
        for line in comparison_table(metrics):
            say(line)
        if args.eval_result_filename:
            target = Path(args.eval_result_filename)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(as_json({name: metrics[name] for name in sorted(metrics)}))
        return 0
