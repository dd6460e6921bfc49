"""`recgrad train`: train and evaluate a model from a config."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command
from recgrad.cli.run_flags import add_config_arguments, config_path


@COMMANDS.register("train")
class Train(Command):
    """Train a model from a config, evaluating and saving as it says.

    The same check as `recgrad check` runs first. A run that was killed goes on with
    --continue_train, as if it had not been. Flags may be spelled with dashes or underscores.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        parser.add_argument("--train-input-path", metavar="PATH", help="instead of the config's")
        parser.add_argument("--eval-input-path", metavar="PATH", help="instead of the config's")
        parser.add_argument("--model-dir", metavar="DIR", help="instead of the config's")
        parser.add_argument(
            "--continue-train", action="store_true", help="go on from the newest checkpoint in the model dir"
        )
        parser.add_argument(
            "--fine-tune-checkpoint", metavar="PATH", help="start from the weights of this checkpoint"
        )
        parser.add_argument(
            "--ignore-restore-optimizer",
            action="store_true",
            help="restore weights only, not the optimizers' state",
        )
        parser.add_argument("--num-threads", type=int, metavar="N", help="(default: all cores)")

    def run(self, args: argparse.Namespace) -> int:
        path = config_path(args, "train")
        from recgrad.training.run import train
        from recgrad.training.runtime import keep_freed_memory, use_all_cores

        keep_freed_memory()
        use_all_cores(args.num_threads)
        result = train(
            path,
            train_input_path=args.train_input_path,
            eval_input_path=args.eval_input_path,
            model_dir=args.model_dir,
            continue_train=args.continue_train,
            fine_tune_checkpoint=args.fine_tune_checkpoint,
            edit_config_json=args.edit_config_json,
            ignore_restore_optimizer=args.ignore_restore_optimizer,
        )
        print(result.describe())
        return result.exit_code
