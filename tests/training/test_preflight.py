"""The checks before a run say where in the file each thing stands, the look at the data too."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from recgrad.config import PipelineConfig, save_config
from recgrad.training.preflight import check_everything, meeting_timeout, prepare_config


@pytest.fixture
def path(config: PipelineConfig, tmp_path: Path) -> Path:
    config.train_config.dense_optimizer.adam_optimizer.weight_decay = 0.5
    config.train_config.dense_optimizer.adam_optimizer.lr = 0.5
    save_config(config, tmp_path / "run.config")
    return tmp_path / "run.config"


def line_of(path: Path, text: str) -> int:
    (line,) = [n for n, line in enumerate(path.read_text().splitlines(), 1) if line.strip().startswith(text)]
    return line


def test_hints_that_need_the_number_of_rows_have_a_line(path: Path) -> None:
    plain = [str(hint) for hint in check_everything(path).hints]
    with_data = [str(hint) for hint in check_everything(path, sample_rows=100).hints]
    assert [hint for hint in with_data if hint in plain] == plain
    (new,) = [hint for hint in with_data if hint not in plain]
    where = f"{path.name}:{line_of(path, 'weight_decay: 0.5')} train_config.dense_optimizer.adam_optimizer"
    assert new == f"{where}.weight_decay: 0.5 is far from the usual 0.0005 for 4000 rows of data in 1 epoch"


def test_problems_of_the_data_have_the_line_of_their_path(
    config: PipelineConfig, path: Path, tmp_path: Path
) -> None:
    table = pq.read_table(config.eval_input_path).drop_columns(["cat_3"])
    pq.write_table(table, tmp_path / "less.parquet")
    config.eval_input_path = str(tmp_path / "less.parquet")
    save_config(config, path)
    report = check_everything(path, sample_rows=100)
    (problem,) = map(str, report.problems)
    where = f"{path.name}:{line_of(path, 'eval_input_path')} eval_input_path"
    assert problem.startswith(f"{where}: column 'cat_3' is not in less.parquet")
    assert report.hints == check_everything(path).hints


def test_a_path_of_the_command_line_has_no_line(path: Path) -> None:
    report = check_everything(path, train_input_path="absent.parquet", sample_rows=100)
    (problem,) = map(str, report.problems)
    where = Path("absent.parquet").absolute()
    assert problem == f"train_input_path: no file 'absent.parquet' ({where}); check the path"


def test_kernels_that_no_machine_has_are_found_with_their_line(config: PipelineConfig, path: Path) -> None:
    config.model_config.deepfm.wide_embedding_dim = 4
    settings = config.train_config
    settings.global_embedding_constraints.compute_kernels.append("fused")
    settings.sparse_optimizer.adam_optimizer.lr = 0.001
    save_config(config, path)
    assert not check_everything(path).problems  # on GPUs it can be had
    settings.sparse_optimizer.lion_optimizer.lr = 0.001
    save_config(config, path)
    (problem,) = map(str, check_everything(path).problems)
    line = line_of(path, "global_embedding_constraints")
    assert problem.startswith(
        f"{path.name}:{line} train_config.global_embedding_constraints.compute_kernels: tables "
    )
    assert problem.endswith(
        "cannot have fused (FBGEMM has no lion_optimizer); add customized_kernel, which has everything"
    )
    for ranks in (1, 2):
        assert list(map(str, prepare_config(path, ranks=ranks)[1].problems)) == [problem]
    alone = prepare_config(path, ranks=0)[1]  # without a launcher tables have our own kernels
    assert not alone.problems
    assert any("has no effect in one process" in str(hint) for hint in alone.hints)


def test_patterns_that_match_no_table_are_found_where_tables_have_constraints(
    config: PipelineConfig, path: Path
) -> None:
    config.train_config.global_embedding_constraints.sharding_types.append("row_wise")
    part = config.train_config.sparse_optimizer.part_optimizers.add()
    part.regex_pattern = "absent"
    part.sgd_optimizer.lr = 0.1
    save_config(config, path)
    (problem,) = map(str, check_everything(path).problems)
    assert (
        "train_config.sparse_optimizer.part_optimizers[0].regex_pattern: 'absent' matches no table" in problem
    )


def test_ranks_meet_within_the_timeout_of_the_config(
    path: Path, config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = {"train_config.process_timeout_secs": 30}
    assert meeting_timeout(path, edits) == 600  # a process alone meets nobody
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert meeting_timeout(path, None) == 600
    assert meeting_timeout(path, edits) == 30
    config.train_config.process_timeout_secs = 45
    assert meeting_timeout(config, None) == 45
    # What is wrong with the config is said later, once for all ranks.
    assert meeting_timeout(path, {"train_config.process_timeout_secs": 0}) == 600
    assert meeting_timeout(path, "{") == 600
    assert meeting_timeout(path.parent / "none.config", None) == 600
