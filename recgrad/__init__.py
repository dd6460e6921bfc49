"""Recgrad trains recommendation models from one config file."""

from __future__ import annotations

__version__ = "0.1.0"
