"""The server that a user would write for a trained DeepFM: FastAPI, uvicorn and torch; no line of Recgrad's.

    python benchmarks/peers/fastapi_server.py MODEL.pt --port 8001

MODEL.pt is what `torch.save` wrote: {"state": the state_dict of `DeepFM`, "ids": names, "numbers": names}.
The request is that of `recgrad serve`. Values are checked by pydantic, and ids against their tables. The
route is `async`: on one core that serves more requests than threads that take turns.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from torch import Tensor, nn


class DeepFM(nn.Module):
    """linear(final([Σ wide, Σ_{i<j} v_i∘v_j, deep(numbers, v)])); a table's last row is for missing ids."""

    def __init__(self, sizes: list[int], numbers: int, dim: int, wide_dim: int, deep: list[int], final: int):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)
        self.wide = nn.ModuleList(nn.Embedding(size, wide_dim) for size in sizes)
        widths = [numbers + dim * len(sizes), *deep]
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.deep = nn.Sequential(*layers)
        self.final = nn.Linear(1 + dim + widths[-1], final)
        self.output = nn.Linear(final, 1)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """The probabilities, [rows]."""
        columns = ids.unbind(1)
        wide = torch.cat([table(column) for table, column in zip(self.wide, columns)], 1).sum(1, keepdim=True)
        v = torch.stack([table(column) for table, column in zip(self.tables, columns)], 1)
        fm = (v.sum(1) ** 2 - (v**2).sum(1)) / 2
        deep = self.deep(torch.cat([numbers, v.flatten(1)], 1))
        return self.output(torch.relu(self.final(torch.cat([wide, fm, deep], 1)))).squeeze(1).sigmoid()

    @staticmethod
    def of_state(state: dict[str, Tensor]) -> DeepFM:
        """The model of a state_dict."""
        sizes = [len(state[f"tables.{i}.weight"]) for i in range(sum(k.startswith("tables.") for k in state))]
        dim, wide_dim = (state[f"{name}.0.weight"].shape[1] for name in ("tables", "wide"))
        deep = [len(state[key]) for key in state if key.startswith("deep.") and key.endswith("weight")]
        numbers = state["deep.0.weight"].shape[1] - dim * len(sizes)
        model = DeepFM(sizes, numbers, dim, wide_dim, deep, len(state["final.weight"]))
        model.load_state_dict(state)
        return model.eval()


class ScoreRequest(BaseModel):
    rows: list[dict[str, int | float | None]]


def build_app(path: str) -> FastAPI:
    torch.set_num_threads(1)
    saved = torch.load(path)
    model, id_names, number_names = DeepFM.of_state(saved["state"]), saved["ids"], saved["numbers"]
    missing = [table.num_embeddings - 1 for table in model.tables]
    limits = torch.tensor(missing)
    pairs = list(zip(id_names, missing))
    app = FastAPI()

    @app.get("/readyz")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/v1/score")
    async def score(request: ScoreRequest) -> dict[str, list[float]]:
        try:
            ids = [[last if row[name] is None else row[name] for name, last in pairs] for row in request.rows]
            numbers = [[row[name] or 0.0 for name in number_names] for row in request.rows]
        except KeyError as error:
            raise HTTPException(422, f"column {error} is missing") from None
        id_tensor = torch.tensor(ids, dtype=torch.long)
        if (id_tensor < 0).any() or (id_tensor > limits).any():
            raise HTTPException(422, "an id is out of range")
        with torch.inference_mode():
            probs = model(id_tensor, torch.tensor(numbers))
        return {"probs": probs.tolist()}

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8001)
    args = parser.parse_args()
    uvicorn.run(build_app(args.model), port=args.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
