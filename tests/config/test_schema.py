"""The schema's files: generated code is up to date, every message is described, ours is told apart."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recgrad.config import PipelineConfig

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "recgrad" / "config" / "proto"
SOURCES = sorted(PROTO.glob("*.proto"))


def messages() -> Iterator[Any]:
    """Every message type that a config can hold."""
    seen: set[str] = set()
    stack: list[Any] = [PipelineConfig.DESCRIPTOR]
    while stack:
        message = stack.pop()
        if message.full_name in seen or message.file.package != "recgrad":
            continue
        seen.add(message.full_name)
        yield message
        stack += [field.message_type for field in message.fields if field.message_type is not None]


@pytest.mark.skipif(not (PROTO / "pipeline.proto").exists(), reason="the .proto files are not here")
def test_generated_code_is_what_the_schema_generates(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools generates the code")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--python_out={tmp_path}"]
    command += [str(source) for source in SOURCES]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    for source in SOURCES:
        name = f"{source.stem}_pb2.py"
        generated = (tmp_path / "recgrad" / "config" / "proto" / name).read_text()
        assert _body(generated) == _body((PROTO / name).read_text()), f"regenerate {name}"


def _body(code: str) -> str:
    """Generated code without what names the version of the generator."""
    kept = [line for line in code.splitlines() if not line.startswith("#")]
    text = "\n".join(kept)
    return re.sub(r"ValidateProtobufRuntimeVersion\(.*?\)", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_message_and_every_field_of_ours_is_described(source: Path) -> None:
    lines = source.read_text().splitlines()
    in_oneof = False
    for number, line in enumerate(lines):
        text = line.strip()
        described = lines[number - 1].strip().startswith("//")
        if re.match(r"(message|enum) \w+ \{", text):
            assert described, f"{source.name}:{number + 1} {text}"
        in_oneof = text.startswith("oneof ") or (in_oneof and text != "}")
        field = re.match(r"(?:optional|required|repeated) \S+ (\w+) = (\d+)", text)
        if field and int(field.group(2)) >= 1000 and not in_oneof:
            assert lines[number - 1].strip().startswith(("//", "optional")), text
            block = "\n".join(lines[max(0, number - 4) : number])
            assert "Ours" in block, f"{source.name}:{number + 1} {text}"


def test_field_numbers_of_ours_lie_apart() -> None:
    """A message that TorchEasyRec has keeps numbers below 1000 for its fields."""
    known = {message.name: message for message in messages()}
    optimizer = known["DenseOptimizer"].fields_by_name
    assert optimizer["adamw_optimizer"].number < 1000 <= optimizer["lion_optimizer"].number
    metric = known["MetricConfig"].fields_by_name
    assert metric["grouped_auc"].number < 1000 <= metric["ndcg_at_k"].number
