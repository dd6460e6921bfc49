"""Synthetic data whose best reachable scores are known."""

from recgrad.synth.clicks import SynthReport, write_synth
from recgrad.synth.shop import Shop, shop_log, write_days

__all__ = ["Shop", "SynthReport", "shop_log", "write_days", "write_synth"]
