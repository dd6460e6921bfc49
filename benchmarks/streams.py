"""Training on a topic against training on parquet files with the same rows; and kills at random moments.

    python benchmarks/streams.py [--json FILE] [--rows N] [--kills N] [--only NAME …]

Brokers are those of librdkafka itself, on the loopback, in a process of their own. `loop`: both loops in
turn in fresh folders, medians of the pairs' ratios; the weights must be the same bit for bit, since the
files hold the rows in the order in which the topic gives them. `kills`: a run that is killed by SIGKILL that
often and resumed each time; its weights must be those of a run that was not.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from results.bars import Bar, describe_bar, write_bars

import recgrad
from recgrad.config import PipelineConfig, load_config, save_config
from recgrad.config.proto.data_pb2 import KafkaDataset
from recgrad.synth import write_synth
from recgrad.training.checkpoint import read_checkpoint

PARTITIONS = 4  # of every topic of these brokers
MESSAGE_ROWS = 1024
BROKERS = """
import base64, json, sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": "x:1", "test.mock.num.brokers": 1, "compression.type": "zstd"})
brokers = producer.list_topics(timeout=30).brokers.values()
print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
for line in sys.stdin:
    topic, partition, value = json.loads(line)
    producer.produce(topic, base64.b64decode(value), partition=partition)
    print(producer.flush(30), flush=True)
"""


class Brokers:
    """A process of brokers."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", BROKERS]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.servers = self._process.stdout.readline().strip()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Write a message, and wait until it is there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([topic, partition, base64.b64encode(value).decode()]) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().strip() == "0"

    def close(self) -> None:
        """End the brokers."""
        self._process.kill()
        self._process.wait()


def message(table: pa.Table) -> bytes:
    """An Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def fill(brokers: Brokers, topic: str, table: pa.Table) -> None:
    """Messages of the table's rows, so that taken in turn they give them in order."""
    for number, start in enumerate(range(0, table.num_rows, MESSAGE_ROWS)):
        brokers.send(topic, number % PARTITIONS, message(table.slice(start, MESSAGE_ROWS)))


def base_config(folder: Path) -> PipelineConfig:
    """A DeepFM over the files of a folder, without evaluations."""
    config = load_config(folder / "deepfm.config")
    config.eval_input_path = ""
    config.data_config.batch_size = 1024
    config.data_config.shuffle = False
    settings = config.train_config
    settings.use_tensorboard = False
    settings.log_step_count_steps = 50
    settings.ClearField("save_checkpoints_epochs")
    settings.save_checkpoints_steps = 1_000_000
    settings.ClearField("num_steps")
    settings.num_epochs = 1
    return config


def on_topic(config: PipelineConfig, brokers: Brokers, topic: str) -> PipelineConfig:
    """The same on a topic."""
    other = PipelineConfig()
    other.CopyFrom(config)
    other.train_input_path = f"kafka://{brokers.servers}/{topic}?group.id=bench&fetch.wait.max.ms=20"
    other.data_config.dataset_type = KafkaDataset
    other.data_config.stream.partition_wait_secs = 120
    return other


def weights(folder: Path, step: int) -> dict[str, Any]:
    """All weights of a checkpoint."""
    snapshot = read_checkpoint(folder / f"model.ckpt-{step}")
    tree: Any = snapshot.tree
    found = dict(tree["model"])
    for table in snapshot.tables:
        found[f"ids of {table.name}"] = torch.as_tensor(table.row_ids)
        found[f"rows of {table.name}"] = torch.as_tensor(table.weights)
    return found


def same(one: Path, other: Path, step: int) -> bool:
    """Whether two checkpoints have the same weights, bit for bit."""
    first, second = weights(one, step), weights(other, step)
    return first.keys() == second.keys() and all(torch.equal(v, second[k]) for k, v in first.items())


def measure_loop(folder: Path, brokers: Brokers, repeats: int) -> list[Bar]:
    """Samples/s of the loop on a topic over those of the loop on parquet."""
    table = pq.read_table(folder / "train.parquet")
    fill(brokers, "loop", table)
    config = base_config(folder)
    runs = {"parquet": config, "kafka": on_topic(config, brokers, "loop")}
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):  # the first warms up
        for name, own in runs.items():
            result = recgrad.train(own, model_dir=folder / f"{name}-{repeat}")
            assert result.step == -(-table.num_rows // config.data_config.batch_size), result
            if repeat:
                rates[name].append(result.samples_per_sec)
    assert same(folder / "parquet-1", folder / "kafka-1", result.step), "other weights"
    for name, values in rates.items():
        print(f"{name:8} {median(values):12,.0f} samples/s")
    ratio = median(k / p for k, p in zip(rates["kafka"], rates["parquet"], strict=True))
    return [Bar("Kafka loop over parquet loop, samples/s", ratio, 0.8, at_least=True)]


def measure_kills(folder: Path, brokers: Brokers, kills: int) -> list[Bar]:
    """Whether a run that is killed again and again ends with the weights of one that is not."""
    steps = max(60, 12 * kills)  # more than runs that are killed so soon make
    table = pq.read_table(folder / "train.parquet")
    rows = table.slice(0, steps * 64)
    rng = random.Random(1)
    at = number = 0
    while at < rows.num_rows:  # odd sizes, so that batches cut messages
        size = rng.randint(1, 300)
        brokers.send("kills", number % PARTITIONS, message(rows.slice(at, size)))
        at, number = at + size, number + 1
    config = on_topic(base_config(folder), brokers, "kills")
    config.data_config.batch_size = 64
    settings = config.train_config
    settings.ClearField("num_epochs")
    settings.num_steps, settings.save_checkpoints_steps = steps - 8, 3
    settings.keep_checkpoint_max = 3
    save_config(config, folder / "kills.config")
    # What a run imports takes it seconds: one process imports it, and the runs are copies of that.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["recgrad.training.run", "confluent_kafka"])
    whole = context.Process(
        target=train_once, args=(str(folder / "kills.config"), str(folder / "whole"), False)
    )
    whole.start()
    whole.join()
    assert whole.exitcode == 0
    done, killed = 0, folder / "killed"
    while True:
        run = (str(folder / "kills.config"), str(killed), (killed / "events.jsonl").exists())
        process = context.Process(target=train_once, args=run)
        process.start()
        if done < kills:
            before = begun(killed)
            while process.is_alive() and begun(killed) <= before:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.5))  # before, in and after the first steps
            if process.is_alive():
                process.kill()
                done += 1
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL, process.exitcode
    equal = same(folder / "whole", killed, settings.num_steps)
    print(f"{done} kills in {settings.num_steps} steps; weights equal: {equal}")
    return [
        Bar(
            f"{done} random SIGKILLs: weights equal an uninterrupted run",
            float(equal and done == kills),
            1.0,
            True,
        )
    ]


def train_once(config: str, model_dir: str, resume: bool) -> None:
    """A run of its own process, with one thread."""
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    recgrad.train(config, model_dir=model_dir, continue_train=resume)


def begun(folder: Path) -> int:
    """Starts in the log."""
    events = folder / "events.jsonl"
    return events.read_text().count('"kind": "start"') if events.exists() else 0


def main() -> None:
    """Run the benchmarks and print their bars."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=["loop", "kills"])
    args = parser.parse_args()
    bars: list[Bar] = []
    brokers = Brokers()
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_synth(Path(folder), args.rows, eval_rows=1_000, seed=5)
            if "loop" in args.only:
                bars += measure_loop(Path(folder), brokers, args.repeats)
            if "kills" in args.only:
                bars += measure_kills(Path(folder), brokers, args.kills)
    finally:
        brokers.close()
    for bar in bars:
        print(describe_bar(bar))
    write_bars(args.json, bars)


if __name__ == "__main__":
    main()
