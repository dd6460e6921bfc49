"""Which device a process computes on, and what it says when it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import recgrad
from recgrad.cli.main import build_parser, main
from recgrad.cli.train import command_line
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.batch import Batch, JaggedDense, KeyedDense, KeyedJagged
from recgrad.data.loader_settings import resolve_settings
from recgrad.errors import RecgradError
from recgrad.training.processes import Environment, Processes, choose_device, open_processes
from recgrad.training.processes.board import Board
from recgrad.training.processes.device import backend_of
from recgrad.training.processes.group import _Group

CPU = torch.device("cpu")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets torch find so many GPUs."""

    def find(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    find(0)
    return find


def one_of(count: int, local_rank: int = 0) -> Environment:
    return Environment(
        rank=local_rank,
        world_size=count,
        local_rank=local_rank,
        local_world_size=count,
        distributed=count > 1,
    )


@pytest.mark.parametrize("asked", ["auto", "cpu"])
def test_without_gpus_it_is_the_cpu(asked: str, gpus: Callable[[int], None]) -> None:
    assert choose_device(asked) == CPU
    assert choose_device(asked, one_of(4, 3)) == CPU


def test_auto_takes_the_gpu_of_the_local_rank_where_there_are_enough(gpus: Callable[[int], None]) -> None:
    gpus(2)
    assert choose_device() == torch.device("cuda", 0)
    assert choose_device("auto", one_of(2, 1)) == torch.device("cuda", 1)
    assert choose_device("auto", one_of(3, 1)) == CPU
    assert choose_device("cpu", one_of(2, 1)) == CPU
    assert choose_device("cuda", one_of(2, 1)) == torch.device("cuda", 1)


def test_a_device_is_taken_as_it_is(gpus: Callable[[int], None]) -> None:
    with pytest.raises(RecgradError, match="device: cuda is asked for, but"):
        choose_device(torch.device("cuda", 1))
    gpus(2)
    assert choose_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert choose_device(torch.device("cuda")) == torch.device("cuda")
    with pytest.raises(RecgradError, match="device: 'cuda:2' is not there, torch finds 2 GPUs"):
        choose_device(torch.device("cuda", 2))


def test_a_device_without_values_is_refused() -> None:
    with pytest.raises(RecgradError, match="device: tensors of meta have no values"):
        choose_device(torch.device("meta"))


def test_auto_says_why_gpus_are_left_alone(
    gpus: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    gpus(2)
    caplog.set_level("INFO", "recgrad.training")
    for local_rank in range(3):
        choose_device("auto", one_of(3, local_rank))
    assert caplog.messages == ["3 processes but 2 GPUs: all compute on CPUs"]


def test_cuda_without_a_gpu_is_refused(gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(
        RecgradError, match=r"^device: cuda is asked for, but torch \S+ is built for CPUs; use"
    ):
        choose_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(RecgradError, match="finds no GPU; use --device cpu or auto"):
        choose_device("cuda")


def test_fewer_gpus_than_processes_are_refused(gpus: Callable[[int], None]) -> None:
    gpus(2)
    with pytest.raises(
        RecgradError, match="each of the 4 processes of this machine, torch finds 2; start 2, or"
    ):
        choose_device("cuda", one_of(4))


def test_other_names_are_refused() -> None:
    with pytest.raises(RecgradError, match="device: must be one of auto, cpu, cuda, got 'gpu'"):
        choose_device("gpu")
    with pytest.raises(RecgradError, match="got 'cuda:1'; choose a GPU by CUDA_VISIBLE_DEVICES"):
        choose_device("cuda:1")


def test_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert backend_of(CPU) == "gloo"
    assert backend_of(torch.device("cuda", 1)) == "cpu:gloo,cuda:nccl"
    with pytest.raises(RecgradError, match="several processes compute on cpu or cuda, got 'meta'; start one"):
        backend_of(torch.device("meta"))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(RecgradError, match=r"need nccl, which torch .* lacks; start one process, or use"):
        backend_of(torch.device("cuda", 1))


def test_a_process_alone_knows_its_device(gpus: Callable[[int], None]) -> None:
    gpus(1)
    with open_processes(device="cpu") as processes:
        assert processes.device == CPU
    with open_processes() as processes:
        assert processes.device == torch.device("cuda", 0)


@pytest.mark.parametrize("function", [recgrad.train, recgrad.evaluate])
def test_the_api_refuses_before_it_reads_the_config(function: Callable[..., object]) -> None:
    with pytest.raises(RecgradError, match="device: must be one of"):
        function("no_such.config", device="gpu")


@pytest.mark.parametrize(
    "line",
    [
        ["train", "c.config"],
        ["eval", "c.config"],
        ["predict", "c.config", "--predict-input-path=x", "--predict-output-path=y.csv"],
    ],
    ids=lambda line: line[0],
)
def test_commands_say_that_there_is_no_gpu(
    line: list[str], gpus: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*line, "--device", "cuda"]) == 2
    assert capsys.readouterr().err.startswith("device: cuda is asked for, but torch")


def test_the_processes_of_a_run_are_told_the_device() -> None:
    parser = build_parser(["train"])
    asked = parser.parse_args(["train", "c.config", "--nproc", "2", "--device", "cuda"])
    assert command_line(asked) == ["train", "c.config", "--device=cuda"]
    assert command_line(parser.parse_args(["train", "c.config", "--nproc", "2"])) == ["train", "c.config"]


@pytest.fixture
def batch() -> Batch:
    lengths = torch.tensor([1, 2], dtype=torch.int32)
    ids = KeyedJagged(("a",), torch.arange(3), lengths, (2,))
    return Batch(
        2,
        KeyedDense(("x",), (1,), torch.zeros(2, 1)),
        ids,
        {"s": lengths},
        ids,
        {"s": JaggedDense(torch.zeros(3, 1), lengths)},
        {"y": torch.zeros(2)},
        {"w": torch.ones(2)},
        {"k": torch.arange(2)},
    )


def test_what_of_a_batch_goes_to_a_device(batch: Batch) -> None:
    assert batch.with_inputs_on(CPU) is batch
    moved = batch.with_inputs_on(torch.device("meta"))
    gone = (moved.dense.values, moved.sequence_lengths["s"], *vars(moved.sequence_dense["s"]).values())
    assert {tensor.device.type for tensor in gone} == {"meta"}
    for name in ("sparse", "sequence_sparse", "labels", "sample_weights", "keys"):
        assert getattr(moved, name) is getattr(batch, name)


def test_what_may_go_to_a_gpu_is_pinned_and_ids_are_not(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.to("meta"))
    pinned = replace(batch, negatives=batch).pin_memory()
    assert pinned.negatives is not None
    for one in (pinned, pinned.negatives):
        gone = (one.dense.values, one.sequence_lengths["s"], *vars(one.sequence_dense["s"]).values())
        gone += (one.labels["y"], one.sample_weights["w"], one.keys["k"])
        assert {tensor.device.type for tensor in gone} == {"meta"}
        assert one.sparse is batch.sparse
        assert one.sequence_sparse is batch.sequence_sparse


def test_memory_is_pinned_for_a_gpu_where_the_config_does_not_say_otherwise() -> None:
    settings = {"training": True, "seed": 0, "rank": 0, "world_size": 1}
    for pin_memory in (True, False):
        data = DataConfig(batch_size=1, pin_memory=pin_memory)
        assert resolve_settings(data, **settings, pin=True).pin is pin_memory
        assert not resolve_settings(data, **settings).pin


def opened(
    monkeypatch: pytest.MonkeyPatch, asked: str, environment: Environment, kinds: list[str]
) -> list[object]:
    """What a rank does with torch when it meets others that compute on these kinds of devices."""
    done: list[object] = []
    rank = _Group.__new__(_Group)
    Processes.__init__(rank, environment)
    rank._store = torch.distributed.HashStore()
    rank._board = Board(rank._store, rank.world_size, rank.restarts)
    monkeypatch.setattr(rank, "gather", lambda value: [*kinds[: rank.rank], value, *kinds[rank.rank + 1 :]])
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, **_: done.append(backend))
    monkeypatch.setattr(torch.cuda, "set_device", done.append)
    rank.open(asked)
    return [*done, rank.device]


def test_a_rank_takes_its_gpu_before_it_meets_the_others(
    gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(2)
    own = torch.device("cuda", 1)
    assert opened(monkeypatch, "auto", one_of(2, 1), ["cuda"] * 2) == [own, "cpu:gloo,cuda:nccl", own]
    assert opened(monkeypatch, "cpu", one_of(2, 1), ["cpu"] * 2) == ["gloo", CPU]


def test_ranks_that_would_compute_on_different_devices_are_refused(
    gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        RecgradError, match="device: rank 0 computes on cpu, rank 2 on cuda; give all of them"
    ):
        opened(monkeypatch, "auto", one_of(3), ["cpu", "cpu", "cuda"])
