"""`recgrad example`: a whole way through Recgrad, on data that it makes."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command
from recgrad.cli.run_flags import add_threads_argument
from recgrad.terminal import say


@COMMANDS.register("example")
class Example(Command):
    """Run an example on data that it makes, showing each command; without a name, list them.

    Writes the data and the config, runs the commands that a user would type, and ends with what to do next.
    All files are in one folder; docs/examples.md shows what each prints.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", nargs="?", metavar="NAME", help="such as ctr, din, retrieval, served")
        parser.add_argument("--out", metavar="DIR", help="(default: example-NAME)")
        parser.add_argument("--rows", type=int, help="impressions in the log that it makes")
        add_threads_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        from pathlib import Path

        from recgrad.cli.main import main
        from recgrad.errors import RecgradError
        from recgrad.examples import EXAMPLES

        if args.name is None:
            for name in EXAMPLES:
                say(f"{name:<13} {str(EXAMPLES[name].__doc__).partition(chr(10))[0]}")
            say("\nrun one with: recgrad example NAME")
            return 0
        example = EXAMPLES[args.name]()
        folder = Path(args.out or f"example-{args.name}")
        _check(args.name, folder, example.needs)
        if args.num_threads is not None:
            from recgrad.training.runtime import set_up_process

            set_up_process(args.num_threads)
        try:
            say(f"wrote {example.prepare(folder, args.rows)}")
        except ValueError as error:
            raise RecgradError(f"example: {error}") from error
        for step in example.steps(folder):
            say(f"\n$ {step.line}")
            if code := step.run(main):
                return code
        say("\nnext:\n" + "\n".join(f"  {line}" for line in example.more(folder)))
        return 0


def _check(name: str, folder: object, needs: dict[str, str]) -> None:
    """Raise for what would end the example in the middle."""
    import importlib.util
    from pathlib import Path

    from recgrad.errors import RecgradError

    path = Path(str(folder))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RecgradError(f"example: {path} exists and is not empty; remove it or choose another --out")
    extras = sorted({extra for module, extra in needs.items() if importlib.util.find_spec(module) is None})
    if extras:
        raise RecgradError(f"example {name}: needs more packages; pip install 'recgrad[{','.join(extras)}]'")
