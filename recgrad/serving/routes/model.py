"""`GET /v1/model`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from recgrad.serving.answers import Answer, json_answer, plain_content
from recgrad.serving.following import FollowingScorer
from recgrad.serving.routes._route import ROUTES, Route
from recgrad.serving.scorer import Scorer
from recgrad.serving.service import HttpRequest
from recgrad.serving.warming import golden_rows
from recgrad.version import __version__


@ROUTES.register("GET /v1/model")
class ModelCard(Route):
    """What is served: features, tasks, metrics, versions, and a row to try."""

    def answer(self, request: HttpRequest) -> Answer:
        holder = self.service.holder
        served = holder.current
        card = {
            "model": served.version,
            "bundle": holder.path.name,
            "loaded_at": holder.loaded_at,
            "recgrad": __version__,
            **describe(served.scorer),
            "stores": [
                {"role": store.role, "key": store.key, "file": store.path.name, "rows": len(store)}
                for store in served.stores
            ],
            "refused": None if holder.refused is None else asdict(holder.refused),
            **({"delta": served.scorer.describe()} if isinstance(served.scorer, FollowingScorer) else {}),
        }
        return json_answer(card)


def describe(scorer: Scorer) -> dict[str, Any]:
    """The card of a model."""
    golden = golden_rows(scorer.golden.slice(0, 1)) or [{}]
    return {
        "outputs": list(scorer.outputs),
        "tasks": list(scorer.tasks),
        "columns": [{"name": field.name, "type": str(field.type)} for field in scorer.schema],
        "features": [
            {
                "name": spec.name,
                "kind": spec.kind.value,
                "sequence": spec.sequence,
                "rows": spec.num_rows,
                "embedding_dim": spec.embedding_dim,
            }
            for spec in scorer.features
        ],
        "manifest": plain_content(scorer.manifest),
        "golden_row": golden[0],
    }
