"""Checkpoints: folders of raw arrays and JSON that appear whole or not at all."""

from recgrad.training.checkpoint.content import content_of
from recgrad.training.checkpoint.diff import Difference, diff_snapshots
from recgrad.training.checkpoint.manager import CheckpointManager, resolve_checkpoint
from recgrad.training.checkpoint.manifest import Manifest, load_manifest
from recgrad.training.checkpoint.reader import read_checkpoint, read_table, verify_checkpoint
from recgrad.training.checkpoint.report import Anew, RestoredTable, RestoreReport
from recgrad.training.checkpoint.restore import restore
from recgrad.training.checkpoint.snapshot import Snapshot, TableRows
from recgrad.training.checkpoint.stores import StateStore, TableStore, own_pieces
from recgrad.training.checkpoint.writer import write_checkpoint

__all__ = [
    "Anew",
    "CheckpointManager",
    "Difference",
    "Manifest",
    "RestoreReport",
    "RestoredTable",
    "Snapshot",
    "StateStore",
    "TableRows",
    "TableStore",
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
