"""One process against several, with uneven rows and a rank that has none: the same values, no hang."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("process_worker.py")


def run(world: int, folder: Path) -> list[dict[str, dict[str, list[float]]]]:
    """What each of `world` processes computed."""
    outputs = [folder / f"{world}-{rank}.json" for rank in range(world)]
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(world), str(folder / f"store-{world}"), str(output)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, output in enumerate(outputs)
    ]
    try:
        errors = [worker.communicate(timeout=180)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * world, "\n".join(errors)
    return [json.loads(output.read_text()) for output in outputs]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(1, tmp_path_factory.mktemp("alone"))[0]


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_rank_has_the_value_of_one_process(world, alone, tmp_path):
    ranks = run(world, tmp_path)
    for rank in ranks:
        for scenario, values in alone.items():
            assert rank[scenario].keys() == values.keys()
            for name, expected in values.items():
                found = rank[scenario][name]
                assert found == pytest.approx(expected, rel=1e-9), f"{name} with {scenario} shares"
    assert all(rank == ranks[0] for rank in ranks), "ranks must agree to the last bit"


def test_the_sampled_values_are_of_samples(alone):
    """Otherwise the test above would say nothing of sampling."""
    values = alone["uneven"]
    assert values["xauc { max_pairs: 3000 } of 1, plain"] != values["xauc { exact: true } of 1, plain"]
