"""Deltas: what a run has changed since it last said so, in files that a served model takes up.

    training  ──▶ TableChanges (embedding/local/changes.py): rows changed, rows gone
                    │
                  writing.py ──▶  PREFIX_00000007_step_700.arrow    rows, in TorchEasyRec's columns and `op`
                                  (of several ranks a file each, PREFIX_….rank_0_of_2.arrow, and one,
                                  PREFIX_….columns.arrow, of rows of which each rank has some columns)
                                  PREFIX_00000007_step_700.npz      dense weights
                                  PREFIX_00000007_step_700.json     written last: number, parent, checksums
                    │
    serving   ◀── reading.py: the next delta of a stream, whole and undamaged

Values are absolute, so that a delta applied twice changes nothing. `stream` names the run, `number` counts
from 1 without a gap, `parent` is the id of the delta before: what does not continue what was applied last is
refused.
"""
