"""Hooks: what a run does around the loop. Each does one thing and may be left out."""
