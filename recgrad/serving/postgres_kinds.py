"""Approximate search by pgvector: what an index of a kind is made with, and how far a query looks.

hnsw   a graph of neighbours; a query follows `hnsw.ef_search` candidates, and finds no more than these
ivf    ivfflat: lists of near items; a query looks into `ivfflat.probes` of them
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from recgrad.errors import RecgradError
from recgrad.retrieval.approximate import Settings

KINDS = ("exact", "hnsw", "ivf")
MOST_DIMS = 2000
_LIMITS = {"m": (2, 100), "ef_construction": (4, 1000), "ef_search": (1, 1000), "lists": (1, 32768)}
_FLAGS = {
    "m": "--hnsw-M",
    "ef_construction": "--hnsw-efConstruction",
    "ef_search": "--hnsw-efSearch",
    "lists": "--ivf-nlist",
}
_OPERATORS = {"INNER_PRODUCT": "vector_ip_ops", "COSINE": "vector_ip_ops", "EUCLID": "vector_l2_ops"}
_SPARE = 1.5  # candidates over what a filter is expected to leave of them
_MOST_LISTS = 0.5  # the share of lists from which on reading the whole table is no slower


@dataclass(frozen=True)
class Kind:
    """How a table is searched.

    Attributes:
        name: exact, hnsw or ivf.
        settings: what its index was made with, and how far a query looks.
    """

    name: str
    settings: dict[str, int]

    def index_sql(self, similarity: str) -> str | None:
        """What makes the index of the table `{}`; None where there is none."""
        if self.name == "exact":
            return None
        method, names = ("hnsw", ("m", "ef_construction")) if self.name == "hnsw" else ("ivfflat", ("lists",))
        given = ", ".join(f"{name} = {self.settings[name]}" for name in names)
        return f"CREATE INDEX ON {{}} USING {method} (embedding {_OPERATORS[similarity]}) WITH ({given})"

    def reach(self, k: int, banned: int, share: float) -> tuple[str, int] | None:
        """The setting of the database that lets a query find k items, and its value; None for exact search.

        Args:
            k: items wanted.
            banned: items that it must not find.
            share: of the items that a filter leaves.
        """
        if self.name == "exact" or not share:
            return None
        if self.name == "hnsw":
            needed = k + banned if share == 1 else math.ceil(_SPARE * (k + banned) / share)
            candidates = max(self.settings["ef_search"], needed)
            return ("hnsw.ef_search", candidates) if candidates <= _LIMITS["ef_search"][1] else None
        probes = math.ceil(self.settings["probes"] / share)
        near = share == 1 or probes <= _MOST_LISTS * self.settings["lists"]
        return ("ivfflat.probes", probes) if near else None


def choose_kind(name: str, settings: Settings, items: int, dim: int) -> Kind:
    """A kind with its settings, those that are not given chosen by the number of items.

    Raises:
        RecgradError: pgvector has no such index.
    """
    if name not in KINDS:
        raise RecgradError(
            f"index: PostgreSQL has no kind {name} (has: {', '.join(KINDS)}); choose one, or a folder"
        )
    if name != "exact" and dim > MOST_DIMS:
        raise RecgradError(
            f"index: {name} in PostgreSQL takes vectors of at most {MOST_DIMS:,} dims, got {dim:,}; leave "
            "--kind out"
        )
    if name == "exact":
        return Kind(name, {})
    if name == "hnsw":
        chosen = {
            "m": settings.hnsw_m,
            "ef_construction": settings.ef_construction,
            "ef_search": settings.ef_search,
        }
    else:
        # As pgvector advises: what it needs to build grows with the square of the lists.
        lists = settings.nlist or max(1, items // 1000 if items <= 1_000_000 else int(items**0.5))
        chosen = {"lists": lists, "probes": min(settings.nprobe or math.ceil(lists**0.5), lists)}
    for setting, value in chosen.items():
        least, most = _LIMITS.get(setting, (1, value))
        if not least <= value <= most:
            raise RecgradError(
                f"index: {_FLAGS[setting]} in PostgreSQL is from {least} to {most:,}, got {value:,}"
            )
    if name == "hnsw" and chosen["ef_construction"] < 2 * chosen["m"]:
        raise RecgradError(
            f"index: --hnsw-efConstruction in PostgreSQL is at least twice --hnsw-M {chosen['m']}, got "
            f"{chosen['ef_construction']}; raise it"
        )
    return Kind(name, chosen)
