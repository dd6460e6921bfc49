"""The sharded engine: tables over several processes, by TorchRec.

    ids of a rank ─▶ ids: check, lay out, send ═▶ all ranks ═▶ kernel or fused: look up ═▶ features: Embedded
                          TorchRec's collections, planned by `plan` from what `choice` allows
    gradients ═▶ kernel or fused keep them ─▶ optimizer ─▶ engine.update ─▶ shards of table

Whoever imports the rest of this room does so in `quiet()`: TorchRec talks while it is imported, too.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_TALKERS = ("torchrec", "torch.fx._symbolic_trace")


@contextmanager
def quiet() -> Iterator[None]:
    """While TorchRec builds its modules, hear of errors alone; afterwards also not of what it repeats.

    It logs through the root logger, which would print everything that Recgrad logs a second time.
    """
    handlers = list(logging.root.handlers)
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        logging.root.handlers[:] = handlers
    for name in _TALKERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch(rec)?\.")
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated")
