"""The two jobs of docs/online.md, run as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from recgrad.cli.main import main
from recgrad.synth import write_synth

DOCS = Path(__file__).resolve().parents[1] / "docs" / "online.md"


def jobs() -> list[list[str]]:
    """The commands of the blocks of the last section."""
    section = DOCS.read_text().partition("## Two jobs")[2]
    blocks = re.findall(r"```sh\n(.*?)```", section, flags=re.S)
    return [block.strip().splitlines() for block in blocks]


class Shell:
    """Runs commands; servers in the background, until the end."""

    def __init__(self) -> None:
        self.servers: list[subprocess.Popen[str]] = []

    def run(self, line: str) -> None:
        words = shlex.split(line)
        assert words[0] == "recgrad"
        if words[-1] != "&":
            assert main(words[1:]) == 0, line
            return
        command = [sys.executable, "-m", "recgrad", *words[1:-1]]
        self.servers.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )

    def model(self) -> dict[str, Any]:
        """What the last server says of its model."""
        server = self.servers[-1]
        assert server.stdout is not None
        while True:
            line = server.stdout.readline()
            assert line, "the server ended"
            found = re.search(r"http://[\w.]+:\d+", line)
            if found:
                self.address = found.group(0)
                return self.ask()

    def ask(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.address}/v1/model", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    write_synth(tmp_path, 1_500, eval_rows=300, seed=5)
    (tmp_path / "log").mkdir()
    own = Shell()
    yield own
    for server in own.servers:
        server.kill()
        server.wait()


def put(name: str, start: int, rows: int) -> None:
    """A file of the log, renamed into place."""
    table = pq.read_table("train.parquet").slice(start, rows)
    pq.write_table(table, f"log/.{name}")
    os.rename(f"log/.{name}", f"log/{name}")


@pytest.mark.slow
def test_the_daily_job(shell: Shell) -> None:
    put("20261101.parquet", 0, 700)
    put("20261102.parquet", 700, 700)
    for line in jobs()[0]:
        shell.run(line)
    assert shell.model()["model"]


@pytest.mark.slow
def test_the_job_by_the_minute(shell: Shell) -> None:
    put("0001.parquet", 0, 700)
    train, export, serve, resume = jobs()[1]
    for line in (train, export, serve):
        shell.run(line)
    before = shell.model()
    put("0002.parquet", 700, 800)
    shell.run(resume)
    until = time.monotonic() + 120
    while shell.ask() == before:
        assert time.monotonic() < until, "no delta was applied"
        time.sleep(0.1)
