"""Names of tables as names of TorchRec's modules, which may neither hold a dot nor be a method's."""

from __future__ import annotations

from urllib.parse import unquote

_PREFIX = "table:"


def module_name(table: str) -> str:
    """What TorchRec calls a table."""
    return _PREFIX + table.replace("%", "%25").replace(".", "%2E")


def table_name(module: str) -> str:
    """The table that TorchRec calls so."""
    return unquote(module.removeprefix(_PREFIX))
