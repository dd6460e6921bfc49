"""`recgrad config`: what a config says, in full."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command
from recgrad.cli.run_flags import add_config_arguments, loaded_config
from recgrad.terminal import say


@COMMANDS.register("config")
class Config(Command):
    """Show a config in full: `recgrad config expand CONFIG`.

    Defaults of feature kinds (feature_defaults) are written into the features, and patterns in feature groups
    (feature_names: "*") are replaced by the names that they match. Edits are made before. The outcome
    is what a run keeps as pipeline.config in its model_dir.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the one action."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        expand = actions.add_parser("expand", help="write out defaults and patterns")
        add_config_arguments(expand)
        expand.add_argument("--out", metavar="FILE", help="write it there instead of printing it")

    def run(self, args: argparse.Namespace) -> int:
        """Expand and print."""
        from google.protobuf import text_format

        from recgrad.config import save_config

        config = loaded_config(args, "config expand")
        if args.out:
            save_config(config, args.out)
            say(f"wrote {args.out}")
        else:
            say(text_format.MessageToString(config, as_utf8=True).rstrip("\n"))
        return 0
