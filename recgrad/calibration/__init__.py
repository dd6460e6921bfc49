"""Calibration: maps from a model's probabilities to rates that are observed, fitted on rows of a file.

A map rises, so the order of rows stays. NumPy and one kernel, no torch: served models apply it too.
"""
