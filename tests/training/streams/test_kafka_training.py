"""Training on topics and growing folders: every row once, whatever ends the process in between."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import recgrad
from recgrad.config import PipelineConfig, save_config
from recgrad.config.proto.data_pb2 import KafkaDataset
from recgrad.training.checkpoint import read_checkpoint
from recgrad.training.feed import StreamProgress

BROKER = Path(__file__).with_name("broker_process.py")
STEPS = 24
START = 1_700_000_000


class Brokers:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(BROKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.servers = self.process.stdout.readline().strip()

    def send(self, topic: str, messages: list[tuple[int, bytes, int]]) -> None:
        coded = [(partition, base64.b64encode(value).decode(), ms) for partition, value, ms in messages]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"topic": topic, "messages": coded}) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == "0"

    def path(self, topic: str) -> str:
        return f"kafka://{self.servers}/{topic}?group.id=g&fetch.wait.max.ms=10"


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    pytest.importorskip("confluent_kafka")
    own = Brokers()
    yield own
    own.process.kill()
    own.process.wait()


def message(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


def cut(table: pa.Table, seed: int = 0, partitions: int = 4) -> list[tuple[int, bytes, int]]:
    """Messages of odd sizes, equally many for each partition, a second apart."""
    rng = random.Random(seed)
    messages, at = [], 0
    while at < table.num_rows:
        size = rng.randint(1, 90)
        number = len(messages)
        messages.append((number % partitions, message(table.slice(at, size)), (START + number) * 1000))
        at += size
    return messages


@pytest.fixture(scope="module")
def topic(brokers: Brokers, clicks: Path) -> str:
    brokers.send("clicks", cut(pq.read_table(clicks / "train.parquet")))
    return brokers.path("clicks")


@pytest.fixture
def streaming(config: PipelineConfig, topic: str) -> PipelineConfig:
    config.train_input_path = topic
    config.eval_input_path = ""
    config.data_config.dataset_type = KafkaDataset
    config.data_config.batch_size = 100
    config.data_config.shuffle = False
    config.data_config.stream.partition_wait_secs = 60
    settings = config.train_config
    settings.ClearField("num_epochs")
    settings.ClearField("save_checkpoints_epochs")
    settings.num_steps = STEPS
    settings.save_checkpoints_steps = 4
    settings.log_step_count_steps = 1
    return config


def weights(folder: Path, step: int) -> dict[str, Any]:
    snapshot = read_checkpoint(folder / f"model.ckpt-{step}")
    tree: Any = snapshot.tree
    found = {f"dense/{name}": value for name, value in tree["model"].items()}
    for table in snapshot.tables:
        found[f"ids/{table.name}"] = torch.as_tensor(table.row_ids)
        found[f"rows/{table.name}"] = torch.as_tensor(table.weights)
    return found


def assert_same_weights(one: Path, other: Path, step: int) -> None:
    first, second = weights(one, step), weights(other, step)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def start(config: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "recgrad", "train", str(config), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def steps_logged(folder: Path) -> int:
    events = folder / "events.jsonl"
    return events.read_text().count('"kind": "train"') if events.exists() else 0


def wait_until(process: subprocess.Popen[str], condition: Any) -> None:
    while process.poll() is None and not condition():
        time.sleep(0.02)


@pytest.mark.slow
def test_kills_at_random_moments_leave_the_weights_of_a_whole_run(
    streaming: PipelineConfig, tmp_path: Path, fixed_threads: int
) -> None:
    save_config(streaming, tmp_path / "run.config")
    recgrad.train(streaming, model_dir=tmp_path / "whole")
    folder, rng, kills = tmp_path / "killed", random.Random(7), 0
    for attempt in range(20):
        flags = ["--model_dir", str(folder), "--num_threads", str(fixed_threads)]
        process = start(tmp_path / "run.config", *flags, *(["--continue_train"] if attempt else []))
        if kills < 3:
            before = steps_logged(folder)
            wait_until(process, lambda before=before: steps_logged(folder) > before)
            time.sleep(rng.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert_same_weights(tmp_path / "whole", folder, STEPS)


def test_a_run_to_the_end_takes_what_has_come_since_when_it_is_resumed(
    streaming: PipelineConfig, brokers: Brokers, clicks: Path, tmp_path: Path
) -> None:
    table = pq.read_table(clicks / "train.parquet").slice(0, 900)
    streaming.train_config.ClearField("num_steps")
    streaming.train_config.num_epochs = 1
    for name, parts in (("whole", [900]), ("parts", [500, 400])):
        streaming.train_input_path = brokers.path(f"ends-{name}")
        at = 0
        for number, size in enumerate(parts):
            # One message a batch, so that the end of a part is the end of a batch.
            rows = [table.slice(at + i, 100) for i in range(0, size, 100)]
            brokers.send(f"ends-{name}", [(0, message(part), START * 1000) for part in rows])
            result = recgrad.train(streaming, model_dir=tmp_path / name, continue_train=bool(number))
            at += size
            assert result.step == at // 100
            assert result.stopped == "the stream has ended"
    assert_same_weights(tmp_path / "whole", tmp_path / "parts", 9)


def test_event_time_and_lag_are_logged_and_decide_when_to_save(
    streaming: PipelineConfig, tmp_path: Path
) -> None:
    settings = streaming.train_config
    settings.save_checkpoints_steps = 10_000
    settings.save_checkpoints_timestamp_interval = 20
    settings.save_checkpoints_timestamps.append(START + 33)
    recgrad.train(streaming, model_dir=tmp_path / "model")
    events = [json.loads(line) for line in (tmp_path / "model" / "events.jsonl").read_text().splitlines()]
    records = [event for event in events if event["kind"] == "train"]
    times = {0: None} | {record["step"]: record["event_time"] for record in records}
    assert times[1] >= START
    assert records[-1]["lag"] < records[0]["lag"]
    saved, expected = times[1], [STEPS]
    for step in range(2, STEPS):
        now = times[step]
        if now // 20 > saved // 20 or saved < START + 33 <= now:
            expected.append(step)
            saved = now
    found = sorted(int(path.name.rpartition("-")[2]) for path in (tmp_path / "model").glob("model.ckpt-*"))
    assert found == sorted(expected)
    assert len(found) > 2


@pytest.mark.parametrize(
    ("times", "quorum", "reached"),
    [
        ((), 0.5, -1),
        ((5.0,), 0.5, 5),
        ((5.0, 9.0), 0.5, 9),
        ((5.0, 9.0), 1.0, 5),
        ((5.0, 9.0, 7.0), 2 / 3, 7),
        ((-1.0, 9.0), 1.0, -1),
        ((1.0, 2.0, 3.0, 4.0), 0.75, 2),
        ((1.0, 2.0, 3.0, 4.0), 0.01, 4),
    ],
)
def test_the_time_that_a_share_of_the_ranks_has_reached(times: tuple, quorum: float, reached: float) -> None:
    assert StreamProgress(times).reached(quorum) == reached


@pytest.mark.slow
def test_a_signal_while_nothing_comes_saves_and_ends(streaming: PipelineConfig, tmp_path: Path) -> None:
    streaming.train_config.num_steps = 10_000
    streaming.train_config.save_checkpoints_steps = 10_000
    save_config(streaming, tmp_path / "run.config")
    folder = tmp_path / "model"
    process = start(tmp_path / "run.config", "--model_dir", str(folder))
    whole = 4_000 // streaming.data_config.batch_size
    wait_until(process, lambda: steps_logged(folder) == whole)
    os.kill(process.pid, signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 143, said
    assert (folder / f"model.ckpt-{whole}").is_dir()


@pytest.mark.slow
def test_brokers_that_fail_are_waited_for(streaming: PipelineConfig, clicks: Path, tmp_path: Path) -> None:
    own = Brokers()
    own.send("t", cut(pq.read_table(clicks / "train.parquet").slice(0, 1_000)))
    streaming.train_input_path = own.path("t")
    streaming.train_config.num_steps = 1_000
    streaming.data_config.stream.idle_secs = 2
    save_config(streaming, tmp_path / "run.config")
    folder = tmp_path / "model"
    process = start(tmp_path / "run.config", "--model_dir", str(folder))
    wait_until(process, lambda: steps_logged(folder) >= 1)
    own.process.kill()
    own.process.wait()
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    assert "the stream has ended" in said
