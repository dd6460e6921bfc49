"""Synthetic data whose best reachable scores are known."""

from recgrad.synth.clicks import SynthReport, write_synth

__all__ = ["SynthReport", "write_synth"]
