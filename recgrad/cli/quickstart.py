"""`recgrad quickstart`: from nothing to a trained model in two minutes."""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from recgrad.cli.command import COMMANDS, Command
from recgrad.cli.run_flags import add_threads_argument
from recgrad.terminal import say


@COMMANDS.register("quickstart")
class Quickstart(Command):
    """Write synthetic click data, train DeepFM on it, and compare its AUC with the best reachable.

    Ends with the commands to go on with.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--out", metavar="DIR", default="quickstart", help="(default: %(default)s)")
        parser.add_argument("--rows", type=int, default=800_000, help="training rows (default: %(default)s)")
        add_threads_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        from pathlib import Path

        from recgrad.errors import RecgradError
        from recgrad.synth import write_synth
        from recgrad.training.run import train
        from recgrad.training.runtime import set_up_process

        folder = Path(args.out)
        model_dir = folder / "model"
        if model_dir.exists():
            raise RecgradError(f"quickstart: {model_dir} exists; remove it or choose another --out")
        set_up_process(args.num_threads)
        say(f"writing {args.rows:,} synthetic clicks to {folder} …")
        try:
            data = write_synth(folder, args.rows)
        except ValueError as error:
            raise RecgradError(f"quickstart: {error}") from error
        say(f"training {folder / 'deepfm.config'} …")
        result = train(folder / "deepfm.config")
        if result.exit_code:
            return result.exit_code
        best = data.best_auc["label"]
        say(f"""
AUC            {result.metrics["auc"]:.4f} (best reachable: {best:.4f}, by the model that drew the clicks)
throughput     {result.samples_per_sec:,.0f} samples/s over {result.step:,} steps
data           {folder}/train.parquet, {folder}/eval.parquet
config         {folder}/deepfm.config
model          {model_dir} (checkpoints, pipeline.config, events, TensorBoard)

next: {_to_find_commands()}recgrad eval {folder}/deepfm.config
      recgrad predict {folder}/deepfm.config --predict_input_path {folder}/eval.parquet \\
          --predict_output_path {folder}/predictions.parquet --reserved_columns user_id,label
      recgrad report {model_dir}
      tensorboard --logdir {model_dir}""")
        return 0


def _to_find_commands() -> str:
    """The line that puts this environment's commands on the path, where the shell does not find them."""
    if shutil.which("recgrad") or sys.prefix == sys.base_prefix:
        return ""
    return f"source {os.path.relpath(sys.prefix)}/bin/activate\n      "
