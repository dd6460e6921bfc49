"""The server that a user would write for a trained model: FastAPI, uvicorn and torch.

    python benchmarks/peers/fastapi_server.py MODEL_DIR --port 8001

It scores with the same features and the same model as `recgrad serve`, loaded from the checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from recgrad.data.batch import Batch
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.training.run import load_trained


class ScoreRequest(BaseModel):
    rows: list[dict[str, int | float | str | list[str] | list[int] | None]]


def build_app(model_dir: Path) -> FastAPI:
    torch.set_num_threads(1)
    trained = load_trained(
        model_dir / "pipeline.config", model_dir, exporting=True, device=torch.device("cpu")
    )
    task, features = trained.task, trained.features
    task.eval()
    encoder = FeatureEncoder(features)
    app = FastAPI()

    @app.get("/readyz")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/v1/score")
    def score(request: ScoreRequest) -> dict[str, list[float]]:
        faults = Faults()
        encoded = encoder.encode_table(pa.Table.from_pylist(request.rows), faults)
        if faults:
            raise HTTPException(422, str(faults.first()))
        with torch.inference_mode():
            predictions = task.predictions(task(Batch.of(encoded)))
        return {name: values.tolist() for name, values in predictions.items()}

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--port", type=int, default=8001)
    args = parser.parse_args()
    uvicorn.run(build_app(args.model_dir), port=args.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
