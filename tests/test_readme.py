"""What the front page shows works, and the pages hang together."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from recgrad.check import check_config
from recgrad.check.capabilities import available
from recgrad.check.unsupported import KINDS, UNSUPPORTED
from recgrad.cli.main import main
from recgrad.config import PipelineConfig, load_config
from recgrad.config.proto.data_pb2 import DatasetType

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
BLOCKS = (ROOT / "README.md").read_text().split("```")[1::2]


def config_text() -> str:
    (config,) = [block for block in BLOCKS if block.startswith("\n") and "model_config {" in block]
    return config


def commands() -> list[list[str]]:
    """The commands of the front page that start with `recgrad`, in their order."""
    lines = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("recgrad ")]


def test_the_config_of_the_readme_is_sound(tmp_path: Path) -> None:
    (tmp_path / "small.config").write_text(config_text())
    report = check_config(load_config(tmp_path / "small.config"))
    assert report.problems == ()
    assert report.hints == ()


@pytest.mark.slow
def test_the_commands_of_the_readme_work_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.config").write_text(config_text())
    steps = commands()
    assert [step[0] for step in steps] == [
        "synth", "check", "train", "train", "train", "eval", "predict", "export", "serve", "list", "train",
    ]  # fmt: skip
    for step in steps:
        # Several processes have tests of their own, and so has serving, which does not end by itself.
        if "--nproc" not in step and step[0] != "serve":
            assert main(["20000" if word == "400000" else word for word in step]) == 0, step
    (code,) = [block.removeprefix("python\n") for block in BLOCKS if block.startswith("python\n")]
    exec(compile(code, "README.md", "exec"), {})
    assert main(["train", "small.config"]) == 0


def test_every_page_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES[1:] if f"{page.name})" not in text] == []


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target, heading in re.findall(r"\]\((?!https?:)([\w./-]*)(?:#([^)]*))?\)", page.read_text()):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name}: {target}"
            if heading:
                assert heading in anchors(linked), f"{page.name}: {target}#{heading}"


def anchors(page: Path) -> set[str]:
    """What a page's headings are called in links: lower case, dashes for spaces, no other marks."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        ("loss", "losses.md"),
        ("metric", "metrics.md"),
        ("train_metric", "metrics.md"),
        ("model", "models.md"),
        ("sequence_encoder", "models.md"),
        ("sparse_optimizer", "embedding.md"),
        ("reader", "data.md"),
        ("sampler", "data.md"),
    ],
)
def test_every_component_is_on_its_page(kind: str, page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [name for name in available()[kind] if not re.search(rf"\b{name}\b", text)] == []


def test_the_status_page_names_what_is_not_built() -> None:
    text = (ROOT / "docs" / "status.md").read_text()
    known = available()
    names = [entry.partition(".")[2] for entry in UNSUPPORTED]
    names += [name for name in DatasetType.keys() if name not in known["reader"]]  # noqa: SIM118
    for (message, oneof), kind in KINDS.items():
        members = MESSAGES[message].oneofs_by_name[oneof].fields
        names += [field.name.removeprefix("sequence_") for field in members if field.name not in known[kind]]
    assert names
    assert [name for name in sorted(set(names)) if not re.search(rf"\b{name}\b", text)] == []


def all_messages(descriptor: Descriptor) -> dict[str, Descriptor]:
    """The messages of the schema by name."""
    found: dict[str, Descriptor] = {}
    stack = [descriptor]
    while stack:
        message = stack.pop()
        if message.name not in found:
            found[message.name] = message
            stack += [field.message_type for field in message.fields if field.message_type is not None]
    return found


MESSAGES = all_messages(PipelineConfig.DESCRIPTOR)
