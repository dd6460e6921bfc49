"""Blocks that models share, each a formula or a small module."""
