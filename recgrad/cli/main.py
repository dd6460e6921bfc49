"""The `recgrad` command: parses the line, runs the command, turns errors into exit codes."""

from __future__ import annotations

import argparse
import inspect
import logging
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import NoReturn

from recgrad.cli.command import COMMANDS, EXIT_USER_ERROR
from recgrad.errors import ProcessError, RecgradError, system_reason
from recgrad.terminal import printable, say
from recgrad.training.signals import InterruptedBySignal
from recgrad.version import __version__

EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for what the user can fix."""
    arguments = with_dashes(sys.argv[1:] if argv is None else argv)
    known = arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS
    args = build_parser(known).parse_args(arguments)
    speak_plainly()
    try:
        return COMMANDS[args.command]().run(args)
    except RecgradError as error:
        if args.debug:
            raise
        if not (isinstance(error, ProcessError) and error.reported):
            say(error, error=True)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        say("interrupted", error=True)
        return EXIT_INTERRUPTED
    except InterruptedBySignal as signal:
        say("interrupted", error=True)
        return signal.exit_code
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; nobody is left to tell.
        sys.stderr.close()
        return 0
    except OSError as error:
        if args.debug or error.strerror is None:
            raise
        say(f"{error.filename or args.command}: {system_reason(error)}", error=True)
        return EXIT_USER_ERROR


class PlainLine(logging.Handler):
    """A log message as a line on standard error, whatever that is now: a progress bar may stand in."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), error=True)


def speak_plainly() -> None:
    """Show what Recgrad logs and warns of as plain lines on standard error."""
    logger = logging.getLogger("recgrad")
    logger.setLevel(logging.INFO)
    if not logging.root.handlers and not logger.handlers:
        logger.addHandler(PlainLine())
        logger.propagate = False  # TorchRec gives the root logger a handler when it is imported
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}", error=True)


class Parser(argparse.ArgumentParser):
    """A parser that shows the words of the line as they are written, never as a terminal would obey them."""

    def error(self, message: str) -> NoReturn:
        """End with the usage and a message."""
        super().error(printable(message))


def build_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of some commands, of all by default."""
    parser = Parser(
        prog="recgrad",
        description="Train recommendation models from one config file.",
        epilog="recgrad COMMAND --help explains each. The docs begin at docs/index.md of the project; "
        "`make docs` builds them as a site with search, site/index.html.",
    )
    parser.add_argument("--version", action="version", version=f"recgrad {__version__}")
    parser.set_defaults(debug=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in names:
        command = COMMANDS[name]
        text = inspect.cleandoc(command.__doc__ or "")
        sub = commands.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        command().add_arguments(sub)
    return parser


def with_dashes(arguments: Sequence[str]) -> list[str]:
    """`--model_dir=x` as `--model-dir=x`; values are left alone."""
    spelled: list[str] = []
    for position, argument in enumerate(arguments):
        if argument == "--":
            return spelled + list(arguments[position:])
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            argument = name.replace("_", "-") + equals + value
        spelled.append(argument)
    return spelled
