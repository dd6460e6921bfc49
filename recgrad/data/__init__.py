"""From files to batches.

    file ─▶ Fragment ─▶ Segment ─▶ Block ─▶ Window ─▶ Unit ─▶ Encoded ─▶ Batch
            smallest    what a     rows as  what is   what is   NumPy     torch
            run to read rank reads they are shuffled  encoded   arrays    tensors
            (row group) of one     read     at once   at once
    ╰── readers/ ──╯ ╰─ order ─╯ ╰readers/╯ ╰─── units ───╯ ╰ encoder ╯ ╰ batching ╯

What happens in which file:

    order      which rows a rank reads in an epoch, in which order: arithmetic over row counts and a seed
    readers/   files of a format as fragments, and the rows of a fragment in blocks
    pipeline   the threads: they read segments and encode units, ahead of who asks for batches
    units      blocks are collected into windows, whose rows are shuffled, and these are cut into units
    encoder    columns of a unit become ids and floats (features/, one file a kind); coded: texts that a file
               keeps in a dictionary are encoded once each; targets: labels, weights and keys
    faults     what is wrong with a row, found while it is encoded; bad_rows: stop there, or skip and count
    batching   all of this for a unit: its batches, with negatives (samplers/)
    position   where a rank stands, as checkpoints keep it; what is left of an epoch, for other ranks
    file_loader    the whole, epoch after epoch
    stream_loader  batches of a topic or of a growing folder (readers/streams/), without an end
    loader         which of the two a config asks for
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.lazy import lazy_names

__all__ = [
    "Batch",
    "FeatureSpec",
    "JaggedDense",
    "KeyedDense",
    "KeyedJagged",
    "Kind",
    "Loader",
    "Origin",
    "Position",
    "build_features",
    "build_loader",
    "join_positions",
]

if TYPE_CHECKING:
    from recgrad.data.batch import Batch, JaggedDense, KeyedDense, KeyedJagged, Origin
    from recgrad.data.features.build import build_features
    from recgrad.data.features.spec import FeatureSpec, Kind
    from recgrad.data.loader import Loader, build_loader
    from recgrad.data.position import Position, join_positions
else:
    # A served model encodes rows without torch, which batches and the loader are made of.
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            **dict.fromkeys(
                ("Batch", "JaggedDense", "KeyedDense", "KeyedJagged", "Origin"), "recgrad.data.batch"
            ),
            **dict.fromkeys(("FeatureSpec", "Kind"), "recgrad.data.features.spec"),
            **dict.fromkeys(("Loader", "build_loader"), "recgrad.data.loader"),
            **dict.fromkeys(("Position", "join_positions"), "recgrad.data.position"),
            "build_features": "recgrad.data.features.build",
        },
    )
