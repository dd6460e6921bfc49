"""`recgrad predict`: predictions of a bundle or a checkpoint for files of rows."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.run_flags import (
    add_config_arguments,
    add_device_argument,
    add_raw_scores_argument,
    add_threads_argument,
    device_of,
)
from recgrad.terminal import say
from recgrad.training.signals import StopRequest


@COMMANDS.register("predict")
class Predict(Command):
    """Write predictions for rows, in their order: a probability a task and the columns asked for.

    CONFIG may be a bundle of `recgrad export`, which is scored without torch, the model_dir of a
    run, which means its pipeline.config, or a checkpoint in it. Without --checkpoint_path predictions are
    made by the best checkpoint of the model dir where the config keeps that (exporter_type best), else by
    the newest. The output is written whole or not at all.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        parser.add_argument(
            "--scripted-model-path", metavar="BUNDLE", help="the same, by TorchEasyRec's name of a bundle"
        )
        parser.add_argument("--predict-input-path", metavar="PATH", required=True, help="rows to predict")
        parser.add_argument(
            "--predict-output-path",
            metavar="PATH",
            required=True,
            help="a .parquet or .csv file to write, or a folder for part-0.parquet …",
        )
        parser.add_argument("--checkpoint-path", metavar="PATH", help="a checkpoint or a model dir")
        parser.add_argument(
            "--reserved-columns",
            metavar="A,B",
            default="",
            help="input columns to carry along; ALL_COLUMNS, or ALL_EFFECTIVE_COLUMNS: those the model reads",
        )
        parser.add_argument("--output-columns", metavar="A,B", default="", help="predictions (default: all)")
        parser.add_argument(
            "--batch-size", type=int, metavar="N", help="rows scored together (default: as for evaluation)"
        )
        parser.add_argument("--predict-steps", type=int, metavar="N", help="stop after N batches")
        parser.add_argument(
            "--nproc", type=int, default=1, metavar="N", help="processes that share the rows (default: 1)"
        )
        parser.add_argument(
            "--dataset-type", default="", metavar="KIND", help="of the input, such as CsvDataset"
        )
        parser.add_argument(
            "--writer-type", default="", metavar="KIND", help="ParquetWriter or CsvWriter, for a folder"
        )
        parser.add_argument(
            "--predict-threads",
            type=int,
            metavar="N",
            help="the same as --num_threads, by TorchEasyRec's name",
        )
        parser.add_argument(
            "--debug-level",
            type=int,
            default=0,
            metavar="N",
            help="1 adds a column __features__: encoded features as text (default: 0)",
        )
        parser.add_argument(
            "--is-profiling",
            action="store_true",
            help="trace batches 8 to 15 with torch.profiler, into OUTPUT.profile (checkpoints)",
        )
        add_raw_scores_argument(parser)
        add_device_argument(parser)
        add_threads_argument(parser, "of each process ")

    def run(self, args: argparse.Namespace) -> int:
        source = _source(args)
        threads = _threads(args)
        with heavy_imports():
            from recgrad.export.predict import predict
            from recgrad.export.prediction import names_bundle

            if args.nproc == 1 and not names_bundle(source):
                from recgrad.training.runtime import set_up_process

                set_up_process(threads)
        with StopRequest() as stop:
            rows = predict(
                source,
                input_path=args.predict_input_path,
                output_path=args.predict_output_path,
                checkpoint_path=args.checkpoint_path,
                carry_columns=_names(args.reserved_columns),
                output_columns=_names(args.output_columns),
                batch_size=args.batch_size,
                predict_steps=args.predict_steps,
                nproc=args.nproc,
                num_threads=threads,
                dataset_type=args.dataset_type,
                writer_type=args.writer_type,
                edit_config_json=args.edit_config_json,
                device=device_of(args),
                custom_code=not args.no_custom_code,
                raw_scores=args.raw_scores,
                is_profiling=args.is_profiling,
                debug_level=args.debug_level,
                stop=stop,
            )
        say(f"wrote {rows:,} predictions to {args.predict_output_path}")
        return 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _source(args: argparse.Namespace) -> str:
    """The bundle, model_dir or config that the line names, by position or by one of the flags."""
    from recgrad.errors import RecgradError

    given = [path for path in (args.config, args.pipeline_config_path, args.scripted_model_path) if path]
    if len(given) != 1:
        raise RecgradError(f"recgrad predict: name one config, model_dir or bundle, got {len(given)}")
    return str(given[0])


def _threads(args: argparse.Namespace) -> int | None:
    from recgrad.errors import RecgradError

    given: list[int] = [n for n in (args.num_threads, args.predict_threads) if n is not None]
    if len(given) > 1:
        raise RecgradError("recgrad predict: --num_threads and --predict_threads are the same; leave one out")
    return given[0] if given else None
