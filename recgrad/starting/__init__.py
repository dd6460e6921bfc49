"""`recgrad init`: from a table to a config: what its columns are, what to learn from, how to split."""

from __future__ import annotations

from recgrad.starting.begin import Beginning, InitSettings, begin

__all__ = ["Beginning", "InitSettings", "begin"]
