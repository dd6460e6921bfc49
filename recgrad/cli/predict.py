"""`recgrad predict`: predictions of a checkpoint for files of rows."""

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


@COMMANDS.register("predict")
class Predict(Command):
    """Write predictions for rows, in their order: a probability a task and the columns asked for.

    Without --checkpoint_path they are made by the best checkpoint of the model dir where the config
    keeps that (exporter_type best), else by the newest. CONFIG may be the model_dir of a
    run, which means its pipeline.config.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        parser.add_argument("--predict-input-path", metavar="PATH", required=True, help="rows to predict")
        parser.add_argument(
            "--predict-output-path", metavar="FILE", required=True, help="a .parquet or .csv file to write"
        )
        parser.add_argument("--checkpoint-path", metavar="PATH", help="a checkpoint or a model dir")
        parser.add_argument(
            "--reserved-columns", metavar="A,B", default="", help="input columns to carry along"
        )
        add_device_argument(parser)
        add_threads_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        path = config_path(args, "predict")
        with heavy_imports():
            from recgrad.export.predict import predict
            from recgrad.training.runtime import set_up_process

        set_up_process(args.num_threads)
        with StopRequest() as stop:
            rows = predict(
                path,
                input_path=args.predict_input_path,
                output_path=args.predict_output_path,
                checkpoint_path=args.checkpoint_path,
                carry_columns=[name.strip() for name in args.reserved_columns.split(",") if name.strip()],
                edit_config_json=args.edit_config_json,
                device=device_of(args),
                custom_code=not args.no_custom_code,
                stop=stop,
            )
        say(f"wrote {rows:,} predictions to {args.predict_output_path}")
        return 0
