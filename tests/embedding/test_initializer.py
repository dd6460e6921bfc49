"""init_fn: torch's initialisers by text, with torch's moments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recgrad.embedding.local.engine import LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import ConfigError

ROWS, DIM = 2000, 16


def values(init_fn: str) -> np.ndarray:
    table = TableSpec("t", ROWS, DIM, init_fn=init_fn)
    engine = LocalEngine([table], [LookupSpec("l", "k", "t")], keys=["k"])
    return engine.tables["t"].initial(np.arange(ROWS))


@pytest.mark.parametrize(
    "text",
    [
        "nn.init.uniform_,a=-0.01,b=0.03",
        "nn.init.normal_,mean=0.5,std=0.01",
        "nn.init.trunc_normal_, mean=0.1, std=1.0, a=-0.5, b=1.0",
        "nn.init.constant_,val=0.25",
        "nn.init.zeros_",
        "torch.nn.init.ones_",
        "nn.init.xavier_uniform_,gain=2.0",
        "nn.init.xavier_normal_",
        "nn.init.kaiming_uniform_,a=1,mode='fan_out'",
        "nn.init.kaiming_normal_,nonlinearity='relu'",
        "nn.init.kaiming_uniform_,nonlinearity='sigmoid'",
    ],
)
def test_moments_are_torchs(text: str) -> None:
    name, *arguments = [part.strip() for part in text.split(",")]
    kwargs = {k: eval(v) for k, v in (argument.split("=") for argument in arguments)}
    torch.manual_seed(0)
    expected = getattr(torch.nn.init, name.rpartition(".")[2])(torch.empty(ROWS, DIM), **kwargs).numpy()
    ours = values(text)
    spread = max(float(expected.std()), 1e-12)
    error = 6 * spread / np.sqrt(ours.size)  # both are samples
    assert ours.mean() == pytest.approx(expected.mean(), abs=error + 1e-7)
    assert ours.std() == pytest.approx(expected.std(), rel=0.02, abs=1e-7)
    for q in (0.001, 0.25, 0.75, 0.999):
        assert np.quantile(ours, q) == pytest.approx(np.quantile(expected, q), abs=0.15 * spread + 1e-7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nn.init.unifrom_,a=1,b=2", "no initialiser 'nn.init.unifrom_'; did you mean 'uniform_'"),
        ("nn.init.orthogonal_", "no initialiser"),
        ("nn.init.uniform_,c=1", "cannot read"),
        ("nn.init.uniform_,a=2,b=1", "a must not exceed b"),
        ("nn.init.normal_,std=-1", "std must not be negative"),
        ("nn.init.normal_,std=__import__('os')", "cannot read"),
        ("nn.init.normal_,std=1e999", "must be finite"),
        ("nn.init.kaiming_uniform_,nonlinearity='rleu'", "Unsupported nonlinearity rleu"),
    ],
)
def test_unreadable_text_is_a_config_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        values(text)
