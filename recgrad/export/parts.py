"""Predictions by several processes: each writes a part of the rows; parts are put together in order.

A part is a process `python -m recgrad.export.parts` with its task on standard input; it writes one line of
JSON, {"rows": …} or {"error": …}, and ends when standard input does: whoever started it is gone then.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from recgrad.config import load_config, save_config
from recgrad.errors import RecgradError
from recgrad.export.prediction import Prediction, names_bundle
from recgrad.export.prediction_files import Target, join_files, publish, staging, write_file
from recgrad.export.prediction_rows import check_not_input, open_rows
from recgrad.openmp import choose_threads
from recgrad.terminal import say
from recgrad.training.signals import StopRequest

LOOK_SECS = 0.1
EXIT_FAILED = 2


def predict_parts(asked: Prediction, target: Target, stop: StopRequest, *, writer_type: str = "") -> int:
    """Write predictions with `asked.world_size` processes; returns the number of rows.

    Raises:
        RecgradError: a process failed; nothing is written then.
    """
    with staging(target) as folder:
        parts = [_Part(asked, rank, folder, target, bool(writer_type)) for rank in range(asked.world_size)]
        try:
            while any(part.runs() for part in parts):
                stop.check()
                with suppress(subprocess.TimeoutExpired):
                    next(part for part in parts if part.runs()).process.wait(LOOK_SECS)
        finally:
            for part in parts:
                part.end()
        results = [part.result() for part in parts]
        files = [Path(result["file"]) for result in results if result["rows"]]
        if not files:
            raise RecgradError("predict: the input has no rows")
        if not target.folder:
            whole = folder / f"whole{target.suffix}"
            join_files(whole, files)
            files = [whole]
        publish(target, folder, files)
    return sum(int(result["rows"]) for result in results)


class _Part:
    """A process that predicts a run of the rows."""

    def __init__(self, asked: Prediction, rank: int, folder: Path, target: Target, chosen: bool) -> None:
        self._number = rank + 1
        threads = choose_threads(asked.num_threads, asked.world_size)
        task = {
            **{field.name: getattr(asked, field.name) for field in dataclasses.fields(asked)},
            "source": _stored(asked.source, folder),
            "checkpoint_path": None if asked.checkpoint_path is None else str(asked.checkpoint_path),
            "edits": asked.all_edits(),
            "device": str(asked.device),
            "rank": rank,
            "num_threads": threads,
        }
        place = {
            "file": str(folder / f"part-{rank}"),
            "target": str(target.path),
            # Parts of one file are put together from parquet; those of a folder stay as they are.
            "suffix": target.suffix if target.folder else ".parquet",
            "as_input": target.folder and not chosen,
            "flat": target.flat,
        }
        paths = [path for path in sys.path if path]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "recgrad.export.parts"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for the process that started them
        )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"asked": task, "place": place}).encode() + b"\n")
            self.process.stdin.flush()

    def runs(self) -> bool:
        """Whether it has not ended; raises if it failed."""
        code = self.process.poll()
        if code not in (None, 0):
            self.result()
        return code is None

    def end(self) -> None:
        """Kill it, if it still runs: what it wrote is not wanted."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def result(self) -> dict[str, Any]:
        """What it says of its rows."""
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            text = stream.read()
        with suppress(ValueError, IndexError):
            said: dict[str, Any] = json.loads(text.splitlines()[-1])
            if "error" in said:
                raise RecgradError(said["error"])
            return said
        raise RecgradError(
            f"predict: process {self._number} ended with exit code {self.process.returncode}, and nothing is "
            "written; start again, with fewer processes if memory was short"
        )


def _stored(source: Any, folder: Path) -> str:
    """The path of a config; one that is not a file is written to one."""
    if isinstance(source, (str, Path)):
        return str(source)
    path = folder / "pipeline.config"
    if not path.exists():
        save_config(load_config(source), path)
    return str(path)


def run_part(task: Mapping[str, Any]) -> dict[str, Any]:
    """Predict the rows of one part."""
    values, place = dict(task["asked"]), task["place"]
    for name in ("carry_columns", "output_columns"):
        values[name] = tuple(values[name])
    asked = Prediction(**values)
    if not names_bundle(asked.source):
        from recgrad.training.runtime import set_up_process

        set_up_process(asked.num_threads)
    rows = open_rows(asked)
    suffix = ".csv" if place["as_input"] and rows.text else place["suffix"]
    check_not_input(Target(Path(place["target"]), suffix, folder=False), rows.local_paths)
    path = Path(place["file"] + suffix)
    tables = rows.tables(lambda: None, flat=place["flat"] or suffix == ".csv")
    return {"rows": write_file(path, tables), "file": str(path)}


def main() -> int:
    """Do the task of standard input; returns the exit code."""
    task = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_starter, daemon=True).start()
    if task["asked"]["rank"]:
        logging.getLogger("recgrad").setLevel(logging.WARNING)
    logging.getLogger("recgrad").addHandler(_Lines())
    try:
        answer, code = run_part(task), 0
    except RecgradError as error:
        answer, code = {"error": str(error)}, EXIT_FAILED
    except OSError as error:
        answer, code = {"error": f"predict: {error}"}, EXIT_FAILED
    sys.stdout.write(f"{json.dumps(answer)}\n")  # JSON for the process that started this one
    sys.stdout.flush()
    return code


def _end_with_starter() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), error=True)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the thread that reads standard input would hold it up
