"""Draws the pictures of docs/gallery.md by running the commands that draw them: `make pictures`.

All of it on data that the commands make, in a folder that is removed again. Pages of HTML are photographed by
Chromium; without it those pictures are left as they are.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "assets" / "gallery"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

BEFORE = (
    "recgrad example ctr --rows 20000 --out shop",
    "recgrad synth --rows 20000 --out clicks",
)
"""What the pictures are drawn of."""


@dataclass(frozen=True)
class Picture:
    """A picture of the gallery.

    Attributes:
        name: of the file in docs/assets/gallery, without its ending.
        commands: that draw it, as the page shows them.
        made: the picture, or the page to photograph, that the last of them writes.
        height: of a photograph; its width is 1,100.
    """

    name: str
    commands: tuple[str, ...]
    made: str
    height: int = 0


PICTURES = (
    Picture("report", ("recgrad report shop/run/model",), "shop/run/model/report.html", 1500),
    Picture("schedule", ("recgrad schedule clicks/deepfm.config --out schedule.png",), "schedule.png"),
    Picture(
        "lr_find",
        ("recgrad lr-find clicks/deepfm.config --start 1e-5 --steps 100 --out lr_find.png",),
        "lr_find.png",
    ),
    Picture(
        "compare",
        (
            "recgrad init shop/log.parquet --label click --ignore recent --out shop/plain",
            "recgrad train shop/plain/pipeline.config",
            "recgrad predict shop/plain/model --predict_input_path shop/log.parquet "
            "--predict_output_path plain.parquet --reserved_columns click,user_id",
            "recgrad predict shop/run/model --predict_input_path shop/log.parquet "
            "--predict_output_path history.parquet --reserved_columns click,user_id",
            "recgrad compare plain.parquet history.parquet --label click --group user_id --plot compare.png",
        ),
        "compare.png",
    ),
    Picture(
        "calibration",
        ("recgrad calibrate shop/run/model --data shop/log.parquet --plot calibration.png",),
        "calibration.png",
    ),
    Picture(
        "importance",
        ("recgrad importance shop/run/model --data shop/log.parquet --rows 5000 --out importance",),
        "importance/importance.png",
    ),
    Picture(
        "tune",
        ("recgrad tune shop/run/pipeline.config --trials 5 --out search",),
        "search/report.html",
        820,
    ),
    Picture(
        "serve",
        ("recgrad export shop/run/model --export_dir bundle", "recgrad serve bundle --port 8000"),
        "http://127.0.0.1:8000/",
        1000,
    ),
)


def main(names: list[str]) -> None:
    """Draw the pictures of some names, of all by default."""
    wanted = [picture for picture in PICTURES if not names or picture.name in names]
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for line in BEFORE:
            run(line, folder)
        for picture in wanted:
            draw(picture, folder)


def draw(picture: Picture, folder: Path) -> None:
    """Run a picture's commands and keep what the last one shows."""
    target = OUT / f"{picture.name}.png"
    *first, last = picture.commands
    for line in first:
        run(line, folder)
    if picture.made.startswith("http:"):
        with served(last, folder) as address:
            photograph(address, target, picture.height)
    else:
        run(last, folder)
        made = folder / picture.made
        if made.suffix == ".html":
            photograph(made.as_uri(), target, picture.height)
        else:
            shutil.copy(made, target)
    if target.exists():
        shrink(target)
        print(f"{target.relative_to(ROOT)}: {target.stat().st_size // 1024} kB", flush=True)


def run(line: str, folder: Path) -> None:
    """Run a command as the page shows it."""
    print(f"$ {line}", flush=True)
    words = [sys.executable, "-m", *shlex.split(line)]
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def served(line: str, folder: Path) -> Iterator[str]:
    """The address of a server, which ends when it has been looked at."""
    words = [sys.executable, "-m", *shlex.split(re.sub(r"--port \d+", "--port 0", line))]
    server = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        announced = re.search(r"http://\S+", server.stdout.readline())
        assert announced is not None, f"{line}: did not start"
        yield announced[0]
    finally:
        server.terminate()
        server.wait()


def photograph(address: str, target: Path, height: int) -> None:
    """A page as Chromium shows it."""
    if BROWSER is None:
        print(f"no Chromium: {target.name} stays as it is")
        return
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000"]
    words += [f"--window-size=1100,{height}", f"--screenshot={target}", address]
    subprocess.run([BROWSER, *words], check=True, stderr=subprocess.DEVNULL)


def shrink(path: Path) -> None:
    """At most 1,100 pixels wide and 256 colours: enough to read, and small."""
    with Image.open(path) as image:
        picture = image.convert("RGB")
    if picture.width > 1100:
        picture = picture.resize(
            (1100, round(picture.height * 1100 / picture.width)), Image.Resampling.LANCZOS
        )
    picture.quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
