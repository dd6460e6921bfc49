"""Checkpoints: folders of raw arrays and JSON that appear whole or not at all.

What a folder holds, and the file here that knows its format:

    model_dir/
      best_checkpoint.json                     the step that is kept whatever comes        manager.py
      model.ckpt-7/
        manifest.json                          step, versions, tables, and the size and    manifest.py
                                               checksum of every file, its own included
        tree.json                              dense weights, optimizers, state of the     tree.py
                                               loop: nested values, arrays left by name
        tree.safetensors                       those arrays, raw                           arrays.py
        tables/user_id/00000-of-00002.safetensors   touched rows of a table: row_ids,      shards.py
        tables/user_id/00001-of-00002.safetensors   weights, state.<name>, one file a shard

How it is written. The trainer goes on while a thread of the manager writes a copy of its state:

    live objects ─▶ Snapshot ─▶ CheckpointManager.save ─┬─ one process: folder.py: write_checkpoint
    (capture.py)   (snapshot.py)      (manager.py)      └─ several:     ranks.py:  write_together
                                                                │
    .model.ckpt-7.writing-<token>/   hidden and locked (staging.py): shards and tree are written; of
                                     several ranks each leaves a record of its shards when they are on
                                     the disk, and rank 0 checks that they make whole tables (shards.py)
            │  manifest last, then fsync of all
            ▼
    model.ckpt-7/                    one rename: whole, or not there; the oldest ones are removed

How it is read back. Files may come from anyone (files.py): sizes, checksums and structure are checked,
nothing is executed, and arrays are mapped into memory, not read:

    resolve_checkpoint ─▶ verify_checkpoint ─▶ read_checkpoint ─▶ Snapshot ─┬─ capture.py: resume, all of it
       (manager.py)          (folder.py)         (folder.py)                ├─ capture.py: load_weights
                                        stored.py joins the shards of       └─ restore.py: what fits (fit.py),
                                        a table, a range at a time             with a report of it (report.py)

Rows go into tables by row number, so any number of ranks reads what any other number wrote: a table takes
what it holds and leaves the rest (recgrad/embedding/engine.py).
diff.py compares two snapshots value by value.
"""

from recgrad.training.checkpoint.diff import Difference, diff_snapshots
from recgrad.training.checkpoint.fit import content_of
from recgrad.training.checkpoint.folder import (
    read_checkpoint,
    read_table,
    verify_checkpoint,
    write_checkpoint,
)
from recgrad.training.checkpoint.manager import CheckpointManager, resolve_checkpoint
from recgrad.training.checkpoint.manifest import Manifest, load_manifest
from recgrad.training.checkpoint.report import Afresh, RestoredTable, RestoreReport
from recgrad.training.checkpoint.restore import own_pieces, restore
from recgrad.training.checkpoint.snapshot import Snapshot, TableRows

__all__ = [
    "Afresh",
    "CheckpointManager",
    "Difference",
    "Manifest",
    "RestoreReport",
    "RestoredTable",
    "Snapshot",
    "TableRows",
    "content_of",
    "diff_snapshots",
    "load_manifest",
    "own_pieces",
    "read_checkpoint",
    "read_table",
    "resolve_checkpoint",
    "restore",
    "verify_checkpoint",
    "write_checkpoint",
]
