"""`recgrad lr-find`: a suggestion for each half, and nothing written but the picture."""

from __future__ import annotations

import pytest

from recgrad.cli.main import main


@pytest.mark.slow
def test_lr_find_suggests_rates_and_touches_nothing(tmp_path, capsys):
    assert main(["synth", "--rows", "6000", "--eval-rows", "1000", "--out", str(tmp_path / "data")]) == 0
    before = sorted(p.name for p in (tmp_path / "data").iterdir())
    path = str(tmp_path / "data" / "deepfm.config")
    edits = '{"data_config.batch_size": 256}'
    assert (
        main(
            ["lr-find", path, "--steps", "40", "--edit-config-json", edits, "--out", str(tmp_path / "p.png")]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "dense: try lr: " in shown
    assert "sparse: " in shown
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == before
