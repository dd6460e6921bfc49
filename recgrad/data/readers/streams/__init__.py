"""Rows that come while a run lasts: messages of a topic, files of a growing folder."""
