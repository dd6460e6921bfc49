"""What an example is: files that it writes, and the commands that it runs on them."""

from __future__ import annotations

import json
import re
import shlex
import signal
import string
import subprocess
import sys
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet

from recgrad.errors import RecgradError
from recgrad.registry import Registry
from recgrad.synth import Shop, shop_log
from recgrad.terminal import say

RunCommand = Callable[[Sequence[str]], int]
"""Runs a line of `recgrad` and gives its exit code."""


class Step(ABC):
    """A thing that an example does: it is shown as a user would type it, then done."""

    @property
    @abstractmethod
    def line(self) -> str:
        """What a user would type."""

    @abstractmethod
    def run(self, run_command: RunCommand) -> int:
        """Do it; returns the exit code."""


@dataclass(frozen=True)
class Command(Step):
    """A command of `recgrad`, such as `train DIR/run/pipeline.config`."""

    words: tuple[str, ...]

    @property
    def line(self) -> str:
        """The command as it is typed."""
        return f"recgrad {shlex.join(self.words)}"

    def run(self, run_command: RunCommand) -> int:
        return run_command(self.words)


@dataclass(frozen=True)
class Request(Step):
    """A server of a bundle that answers one request and ends."""

    bundle: Path
    body: dict[str, Any] = field(default_factory=dict)
    seconds: float = 120.0

    @property
    def line(self) -> str:
        """The server, and a request as curl sends it."""
        body = json.dumps(self.body)
        return (
            f"recgrad serve {self.bundle} --port 8000 &\n"
            f"$ curl -s http://127.0.0.1:8000/v1/score -H 'content-type: application/json' -d '{body}'"
        )

    def run(self, run_command: RunCommand) -> int:
        words = [sys.executable, "-m", "recgrad", "serve", str(self.bundle), "--port", "0"]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            announced = re.search(r"(http://\S+)", server.stdout.readline())
            if announced is None:
                raise RecgradError(f"example: {shlex.join(words[2:])} did not start; try it by itself")
            request = urllib.request.Request(
                f"{announced[1]}/v1/score",
                data=json.dumps(self.body).encode(),
                headers={"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=self.seconds) as answer:
                say(answer.read().decode())
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
        return 0


class Example(ABC):
    """One way through Recgrad; the first line of its docstring is what `recgrad example` lists.

    Attributes:
        rows: of the log that it makes, unless the user says otherwise.
        needs: modules beside Recgrad's own, with the extra that brings each.
    """

    rows: int = 40_000
    needs: dict[str, str] = {}  # noqa: RUF012

    @abstractmethod
    def write(self, folder: Path, shop: Shop) -> str:
        """Write the files that the steps need into a folder; returns what they are, in a line or two."""

    @abstractmethod
    def steps(self, folder: Path) -> list[Step]:
        """What is done with them, in order; asked for after `write`."""

    @abstractmethod
    def more(self, folder: Path) -> list[str]:
        """Lines to go on with."""

    def prepare(self, folder: Path, rows: int | None) -> str:
        """Make the data and write them; returns what was written."""
        shop = shop_log(self.rows if rows is None else rows)
        folder.mkdir(parents=True, exist_ok=True)
        return self.write(folder, shop)


EXAMPLES: Registry[type[Example]] = Registry("example", "recgrad.examples")


def command(line: str) -> Command:
    """A command of `recgrad` from its line."""
    return Command(tuple(shlex.split(line)))


def write_log(folder: Path, shop: Shop, name: str = "log.parquet") -> Path:
    """Write the whole log, by time."""
    path = folder / name
    pyarrow.parquet.write_table(shop.log, path, row_group_size=10_000)
    return path


def write_config(folder: Path, name: str, **values: object) -> Path:
    """Write one of the configs beside this file, with the folder and other values in their places."""
    template = string.Template((Path(__file__).parent / name).read_text(encoding="utf-8"))
    path = folder / name
    path.write_text(template.substitute(folder=folder.as_posix(), **values), encoding="utf-8")
    return path
