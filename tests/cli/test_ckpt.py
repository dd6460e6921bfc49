"""`recgrad ckpt`: what it prints and how it ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recgrad.cli.main import main
from recgrad.training.checkpoint import CheckpointManager, Snapshot, TableRows


def snapshot(step, *, shift=0.0, rows=(1, 5, 9), name="user", **extra):
    weights = np.arange(len(rows) * 2, dtype=np.float32).reshape(-1, 2) + np.float32(shift)
    table = TableRows(name, 1000, 2, np.array(rows), weights, {"sum": np.ones((len(rows), 1), np.float32)})
    tree = {
        "model": {"deep.weight": torch.ones(3, 4), "deep.bias": torch.zeros(3)},
        "state": {"epoch": 1},
        **extra,
    }
    return Snapshot(step, tree, [table])


@pytest.fixture
def save(tmp_path):
    def save(folder, *snapshots):
        manager = CheckpointManager(tmp_path / folder)
        for item in snapshots:
            manager.save(item)
        manager.wait()
        return tmp_path / folder

    return save


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_list_names_every_checkpoint_the_best_and_the_damaged(save, capsys):
    folder = save("run", snapshot(1), snapshot(20), snapshot(300))
    CheckpointManager(folder).mark_best(20)
    (folder / "model.ckpt-300" / "tree.json").unlink()
    assert main(["ckpt", "list", str(folder)]) == 0
    lines = {
        line.split()[0]: line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("model.ckpt")
    }
    assert list(lines) == ["model.ckpt-1", "model.ckpt-20", "model.ckpt-300"]
    assert lines["model.ckpt-20"].split()[-1] == "best"
    assert "best" not in lines["model.ckpt-1"]
    assert "damaged: " in lines["model.ckpt-300"]
    assert "tree.json: cannot be opened" in lines["model.ckpt-300"]


def test_show_prints_step_versions_tables_and_parameters(save, capsys):
    folder = save("run", snapshot(1200))
    assert main(["ckpt", "show", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "step 1,200" in out
    assert f"torch {torch.__version__}" in out
    (user,) = [line.split() for line in out.splitlines() if line.startswith("user")]
    # rows, touched, dim, dtype, state, size: 3 ids of 8 bytes, 6 weights and 3 states of 4; files.
    assert user == ["user", "1,000", "3", "2", "float32", "sum", "[1]", "60", "B", "1"]
    (weight,) = [line.split() for line in out.splitlines() if line.startswith("deep.weight")]
    assert weight == ["deep.weight", "3×4", "float32", "48", "B"]


def in_parts(step, shift=0.0):
    """A table in two ranges of rows, and one in two slices of columns, each range and slice a part."""
    ids = np.array([2, 3, 700])
    weights = np.arange(12, dtype=np.float32).reshape(3, 4) + np.float32(shift)
    rows = TableRows("rows", 1000, 4, ids, weights, {"m": weights, "v": weights[:, :1], "t": np.array(5)})
    parts = [rows.part((0, 500)), rows.part((500, 1000))]
    columns = TableRows("columns", 1000, 4, ids, weights, rows.states)
    return Snapshot(step, {"epoch": 1}, [*parts, columns.part(columns=(0, 2)), columns.part(columns=(2, 4))])


def test_checkpoints_in_parts_are_listed_shown_compared_and_verified(save, capsys):
    folder = save("run", in_parts(1), in_parts(2, shift=0.5))
    assert main(["ckpt", "list", str(folder)]) == 0
    assert [line.split()[-2:] for line in capsys.readouterr().out.splitlines()[-2:]] == [["2", "6"]] * 2
    assert main(["ckpt", "show", str(folder)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    # 3 ids of 8 bytes, 12 weights, 12 and 3 states of 4, the scalar of 8.
    assert " m [4], t 5, v [1] " in lines["rows"]
    assert lines["rows"].split()[-3:] == ["140", "B", "2"]
    assert lines["columns"].rstrip().endswith(" 140 B   2 (columns 0-1, 2-3)")
    assert main(["ckpt", "verify", str(folder)]) == 0
    steps = [str(folder / f"model.ckpt-{step}") for step in (1, 2)]
    assert main(["ckpt", "diff", steps[0], steps[0]]) == 0
    assert "all 9 are equal bit for bit" in capsys.readouterr().out
    assert main(["ckpt", "diff", *steps]) == 1
    assert "6 of 9 differ, 3 are equal bit for bit" in capsys.readouterr().out


def test_equal_checkpoints_end_with_0(save, capsys):
    a, b = save("a", snapshot(5)), save("b", snapshot(5))
    assert main(["ckpt", "diff", str(a), str(b)]) == 0
    assert "all 5 are equal bit for bit" in capsys.readouterr().out


def test_diff_tells_values_rows_and_what_only_one_has(save, capsys):
    a = save("a", snapshot(5, loss=1.0))
    b = save("b", snapshot(6, shift=0.5, rows=(1, 5, 7, 8), more=[1]))
    assert main(["ckpt", "diff", str(a), str(b)]) == 1
    out = capsys.readouterr().out
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    # Weights of the common rows 1 and 5: 0…3 against 0.5…3.5; relative 0.5/0.5 at the first.
    assert lines["table user"].split() == ["table", "user", "0.5", "1", "1", "2"]
    assert "only in the first" in lines["loss"]
    assert "only in the second" in lines["more"]
    assert "deep.weight" not in out
    assert main(["ckpt", "diff", str(a), str(b), "--all"]) == 1
    assert "model/deep.weight" in capsys.readouterr().out


def test_diff_refuses_a_damaged_checkpoint(save, capsys):
    a, b = save("a", snapshot(5)), save("b", snapshot(5))
    damage(b / "model.ckpt-5" / "tree.safetensors")
    assert main(["ckpt", "diff", str(a), str(b / "model.ckpt-5")]) == 2
    assert "tree.safetensors: is damaged" in capsys.readouterr().err


def test_verify_reads_one_or_all(save, capsys):
    folder = save("run", snapshot(1), snapshot(2))
    assert main(["ckpt", "verify", str(folder)]) == 0
    assert capsys.readouterr().out.count("whole ") == 2
    damage(folder / "model.ckpt-1" / "tree.json")
    assert main(["ckpt", "verify", str(folder)]) == 2
    out = capsys.readouterr().out
    assert "model.ckpt-1/tree.json: is damaged" in out
    assert out.count("whole ") == 1
    assert main(["ckpt", "verify", str(folder / "model.ckpt-2")]) == 0
    assert main(["ckpt", "verify", str(folder / "model.ckpt-1")]) == 2


@pytest.mark.parametrize("action", ["list", "show", "verify"])
def test_a_folder_that_is_not_there_or_holds_nothing(tmp_path, capsys, action):
    assert main(["ckpt", action, str(tmp_path / "absent")]) == 2
    assert "absent: there is no such folder" in capsys.readouterr().err
    assert main(["ckpt", action, str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"{tmp_path}: has no checkpoint (a folder named model.ckpt-<step>)\n"


def test_names_cannot_send_codes_to_the_terminal_nor_be_markup(save, capsys):
    folder = save("run", snapshot(1, name="\x1b[2Jred[bold]\ud800"))
    assert main(["ckpt", "show", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"\x1b[2Jred[bold]\ud800" in out


def test_an_action_is_required(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["ckpt"])
    assert ended.value.code == 2


def test_tables_fit_a_narrow_terminal(save, capsys, monkeypatch):
    monkeypatch.setattr("recgrad.cli.console.PIPE_WIDTH", 80)
    ids, states = np.array([1, 2]), ("exp_avg", "exp_avg_sq")
    tables = []
    for name, dim in (("category_of_the_item_emb", 8), ("category_of_the_item_emb_wide", 1)):
        weights = np.ones((2, dim), np.float32)
        tables.append(
            TableRows(name, 100_000, dim, ids, weights, {**dict.fromkeys(states, weights), "t": np.array(20)})
        )
    assert main(["ckpt", "show", str(save("run", Snapshot(20, {}, tables)))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    (wide,) = [line.split() for line in lines if line.startswith("category_of_the_item_emb_wide")]
    assert wide == ["category_of_the_item_emb_wide", "100,000", "2", "1", "48", "B"]
    same = "every table: dtype float32; optimizer states exp_avg [dim], exp_avg_sq [dim], t 20; shards 1"
    assert same in " ".join(" ".join(lines).split())
