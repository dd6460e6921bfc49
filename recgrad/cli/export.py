"""`recgrad export`: a checkpoint as a folder that scores anywhere."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.run_flags import (
    add_config_arguments,
    add_raw_scores_argument,
    add_threads_argument,
    config_path,
)
from recgrad.errors import RecgradError
from recgrad.terminal import say


@COMMANDS.register("export")
class Export(Command):
    """Write a trained model as a bundle: features, tables and an ONNX program that score without torch.

    Without --checkpoint_path it is the best checkpoint of the model dir where the config keeps that
    (exporter_type best), else the newest. CONFIG may be the model_dir of a run. The bundle is
    written whole or not at all, and only if it scores its golden rows as the checkpoint does.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        parser.add_argument(
            "--export-dir", metavar="DIR", required=True, help="a folder that is not there yet"
        )
        parser.add_argument("--checkpoint-path", metavar="PATH", help="a checkpoint or a model dir")
        parser.add_argument(
            "--precision",
            choices=("FP32", "FP16", "INT8"),
            default="FP32",
            help="of tables: as trained, half, or 8 bits with a scale for each row (default: FP32)",
        )
        parser.add_argument(
            "--asset-files", metavar="A,B", default="", help="more files to carry along, under files/"
        )
        parser.add_argument(
            "--example-input-path",
            metavar="PATH",
            help="where golden rows come from (default: eval_input_path)",
        )
        # TorchEasyRec's, for models that are not exported here in another way.
        parser.add_argument("--additional-export-config", metavar="JSON", default="", help=argparse.SUPPRESS)
        add_raw_scores_argument(parser)
        add_threads_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        path = config_path(args, "export")
        if args.additional_export_config:
            raise RecgradError("export: --additional_export_config is not needed here; leave it out")
        with heavy_imports():
            from recgrad.export.bundle import export_model
            from recgrad.training.runtime import set_up_process

        set_up_process(args.num_threads)
        manifest = export_model(
            path,
            args.export_dir,
            checkpoint_path=args.checkpoint_path,
            precision=args.precision,
            asset_files=[name.strip() for name in args.asset_files.split(",") if name.strip()],
            example_input_path=args.example_input_path,
            edit_config_json=args.edit_config_json,
            custom_code=not args.no_custom_code,
            raw_scores=args.raw_scores,
        )
        size = sum(file.num_bytes for file in manifest.files.values())
        say(
            f"wrote {manifest.model} of step {manifest.step:,} to {args.export_dir}: {size / 1e6:,.1f} MB, "
            f"scores within {manifest.golden_difference:.1g} of the checkpoint's"
        )
        return 0
