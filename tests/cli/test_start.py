"""What a command imports: a user waits for it every time."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from recgrad.cli.command import heavy_imports
from recgrad.config import load_config, save_config
from recgrad.synth import write_synth

EXAMPLES = Path(__file__).parents[2] / "examples"

# Slow to import, the first two about as slow as torch.
NOT_FOR_A_RUN = [
    "torchmetrics",
    "torch._dynamo",
    "torch._inductor",
    "matplotlib",
    "scipy.signal",
    "sklearn",
    "sympy",
    "torchrec",
    "fbgemm_gpu",
    "schedulefree",
    "rich",
    "pyarrow.csv",
    "pyarrow.dataset",
    "recgrad.models.dssm",
    "recgrad.data.readers.csv",
    "recgrad.data.samplers.negative",
]

SCRIPT = """
import json, sys
from recgrad.cli.main import main
try:
    code = main(sys.argv[2:])
except SystemExit as stopped:
    code = stopped.code
print(json.dumps([code, [name for name in json.loads(sys.argv[1]) if name in sys.modules]]))
"""


def imported(names: list[str], *arguments: str, ends: int = 0) -> list[str]:
    """Those of the names that a command has imported when it is done, with the exit code `ends`."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(names), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    code, found = json.loads(done.stdout.splitlines()[-1])
    assert code == ends, done.stderr
    return found


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    write_synth(folder, 2_000)
    made = load_config(folder / "deepfm.config")
    made.train_config.ClearField("num_epochs")
    made.train_config.num_steps = 1
    save_config(made, folder / "one_step.config")
    return folder / "one_step.config"


def test_help_imports_nothing_heavy():
    assert imported(["torch", "numpy", "numba", "pyarrow", "google.protobuf", "rich"], "--help") == []


def test_a_run_imports_nothing_that_it_does_not_need(config, tmp_path):
    assert imported(NOT_FOR_A_RUN, "train", str(config), "--model_dir", str(tmp_path / "model")) == []


def test_tensorboard_is_imported_only_by_runs_that_write_for_it(config, tmp_path):
    quiet = ["--edit_config_json", json.dumps({"train_config.use_tensorboard": False})]
    arguments = ["train", str(config), "--model_dir", str(tmp_path / "model"), *quiet]
    assert imported(["tensorboard"], *arguments) == []


def test_a_check_imports_nothing_that_it_does_not_need(config):
    assert imported([*NOT_FOR_A_RUN, "tensorboard"], "check", str(config)) == []


@pytest.mark.parametrize("name", ["beauty_sasrec", "gowalla_mind", "gowalla_tdm", "music_dlrm_hstu"])
def test_a_check_of_a_sequence_model_does_not_import_the_compiler(name):
    assert imported(["torch._dynamo", "torch._inductor"], "check", str(EXAMPLES / f"{name}.config")) == []


WITHOUT_TORCH = ["torch", "numpy", "numba", "pyarrow"]


@pytest.mark.parametrize("words", [[], ["models"], ["optimizers", "adam_optimizer"]], ids=" ".join)
def test_lists_import_no_classes(words):
    assert imported(WITHOUT_TORCH, "list", *words) == []


def test_a_config_that_cannot_be_read_is_told_of_without_torch(config, tmp_path):
    broken = tmp_path / "broken.config"
    broken.write_text(config.read_text().replace("num_steps", "num_stepz"))
    assert imported(WITHOUT_TORCH, "check", str(broken), ends=2) == []


def test_importing_every_model_does_not_import_the_compiler():
    code = (
        "import sys; from recgrad.models.base import MODELS; [MODELS[name] for name in MODELS]; "
        "print([name for name in ('torch._dynamo', 'torch._inductor') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("collecting", [True, False])
def test_garbage_collection_is_afterwards_as_it_was(collecting):
    was = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        with heavy_imports():
            assert not gc.isenabled()
        assert gc.isenabled() == collecting
        assert gc.get_freeze_count() > 1_000, "what was imported is still looked at"
    finally:
        gc.unfreeze()
        (gc.enable if was else gc.disable)()
