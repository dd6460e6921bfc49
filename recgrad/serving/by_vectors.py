"""What indexes of vectors share: users are found items by the vector that the model gives them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from recgrad.retrieval.lists import Found, ItemSets
from recgrad.serving.scorer import Scorer


class ByVectors:
    """An index that is searched by vectors; `view(condition)` is what a filter leaves of it."""

    def view(self, condition: str | None = None) -> Any:
        """What a filter leaves of it, for searching."""
        raise NotImplementedError

    def user_schema(self, scorer: Scorer) -> pa.Schema:
        """The columns of a user."""
        return scorer.tower_schema("user")

    def find(
        self, scorer: Scorer, users: pa.Table, k: int, condition: str | None, banned: ItemSets | None
    ) -> Found:
        """The k best items of each user, by number."""
        found: Found = self.view(condition).search(scorer.embed(users, "user"), k, banned)
        return found
