"""What a model learns from the attributes of items: a table with one row of each item."""

from __future__ import annotations

from dataclasses import dataclass

from recgrad.starting.features import WIDTH, named_lines
from recgrad.starting.profile import look
from recgrad.starting.roles import Choice, choose_attributes
from recgrad.starting.source import open_source


@dataclass(frozen=True)
class Attributes:
    """What was chosen.

    Attributes:
        choices: for every column.
        columns: that features read.
        names: of the features.
        lines: of the config that make them.
    """

    choices: tuple[Choice, ...]
    columns: tuple[str, ...]
    names: tuple[str, ...]
    lines: str


def find_attributes(path: str, others: set[str]) -> Attributes:
    """Look at a table of items, and choose features of its columns but `others`."""
    profile = look(open_source(path)[0])
    choices = choose_attributes(profile, others)
    made = list(named_lines(profile, choices))
    read = {choice.name for choice, _, _ in made}
    defaults = f"feature_defaults {{ id_feature {{ embedding_dim: {WIDTH} }} }}\n"
    ids = any(line.split()[2] == "id_feature" for _, _, line in made)
    return Attributes(
        tuple(choices),
        tuple(choice.name for choice in choices if choice.name in read),
        tuple(name for _, name, _ in made),
        "".join([defaults if ids else "", *(line for _, _, line in made)]),
    )
