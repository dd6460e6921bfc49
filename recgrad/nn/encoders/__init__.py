"""Sequence encoders: a query and a sequence become one vector a row. One file each."""
