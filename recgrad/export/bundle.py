"""`recgrad export`: a trained model as one folder that scores without the trainer."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from recgrad.calibration.stored import CALIBRATION, Calibration
from recgrad.config import PipelineConfig, save_config
from recgrad.config.files import named_files
from recgrad.config.messages import chosen
from recgrad.data.batch import Batch
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.list_column import Column, ListColumn, in_lists, values_of, with_values
from recgrad.embedding.engine import LivingRows
from recgrad.embedding.mapped.packing import PRECISIONS
from recgrad.embedding.mapped.record import LookupRecord, TableRecord
from recgrad.embedding.mapped.writing import write_living, write_table
from recgrad.errors import RecgradError, system_reason, whole_path
from recgrad.export.calibrated import calibration_of
from recgrad.export.folding import fold_program
from recgrad.export.golden import golden_rows
from recgrad.export.program import halves_of, write_program
from recgrad.models.base import Model
from recgrad.serving.golden import RAW
from recgrad.serving.manifest import (
    CONFIG,
    FILES,
    FORMAT,
    GOLDEN,
    GOLDEN_SCORES,
    MANIFEST,
    SCORE,
    TABLES,
    FileRecord,
    Manifest,
    ProgramRecord,
    TaskRecord,
)
from recgrad.serving.scorer import Scorer
from recgrad.serving.verify import checksum_of
from recgrad.training.checkpoint.staging import staged_folder
from recgrad.training.preflight import ConfigSource
from recgrad.training.run import Trained, load_trained
from recgrad.training.runtime import computing
from recgrad.training.task import Task
from recgrad.version import __version__

_log = logging.getLogger("recgrad.export")
_PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "numpy", "pyarrow")
_MOST = 1e-5
"""How far scores of an FP32 bundle may be from the checkpoint's."""


@computing()
def export_model(
    config: ConfigSource,
    export_dir: str | Path,
    *,
    checkpoint_path: str | Path | None = None,
    precision: str = "FP32",
    asset_files: Sequence[str] = (),
    example_input_path: str | None = None,
    edit_config_json: str | Mapping[str, Any] | None = None,
    custom_code: bool = True,
    raw_scores: bool = False,
) -> Manifest:
    """Write a checkpoint as a bundle, whole or not at all; returns its manifest.

    Args:
        config: a config, or the model_dir of a run.
        export_dir: the folder to write; it must not be there yet.
        checkpoint_path: the checkpoint; by default as `predict` chooses it.
        precision: of tables: FP32 (as trained), FP16, or INT8 with a scale for each row.
        asset_files: more files to carry along, under files/.
        example_input_path: where golden rows come from; the config's evaluation data by default.
        edit_config_json: changes to the config.
        custom_code: as for `train`.
        raw_scores: leave out the calibration that `recgrad calibrate` stored with the model.

    Raises:
        RecgradError: it cannot be written, or what was written does not score as the checkpoint does.
    """
    if precision not in PRECISIONS:
        raise RecgradError(f"export: --precision must be one of {', '.join(PRECISIONS)}, got {precision}")
    target = Path(export_dir)
    if target.exists() or target.is_symlink():
        raise RecgradError(
            f"export: '{target}'{whole_path(target)} is there already; remove it, or choose another folder"
        )
    _check_assets(asset_files)
    trained = load_trained(
        config,
        checkpoint_path,
        edit_config_json=edit_config_json,
        exporting=True,
        device=torch.device("cpu"),
        custom_code=custom_code,
    )
    calibration = calibration_of(trained, raw_scores=raw_scores)
    golden = golden_rows(trained.config, trained.features, example_input_path)
    return write_bundle(
        target, trained, golden, precision=precision, asset_files=asset_files, calibration=calibration
    )


def write_bundle(
    target: Path,
    trained: Trained,
    golden: pa.Table,
    *,
    precision: str,
    asset_files: Sequence[str] = (),
    calibration: Calibration | None = None,
) -> Manifest:
    """Write a trained model as a bundle, whole or not at all; `golden` are rows to try it with."""
    if trained.task.predicts_in is not None:
        raise RecgradError(
            "export: export_config.mixed_precision is for `recgrad predict`, bundles compute in float32; "
            'leave it out, or clear it: --edit_config_json \'{"export_config.mixed_precision": ""}\''
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with staged_folder(target) as folder:
            writer = _Writer(folder, trained, golden, precision, calibration)
            return writer.write(asset_files)
    except OSError as error:
        raise RecgradError(
            f"export: '{target}'{whole_path(target)} cannot be written: {system_reason(error)}"
        ) from error


class _Writer:
    """Fills the folder of a bundle."""

    def __init__(
        self,
        folder: Path,
        trained: Trained,
        golden: pa.Table,
        precision: str,
        calibration: Calibration | None,
    ) -> None:
        self.folder = folder
        self.trained = trained
        self.golden = golden
        self.precision = precision
        self.calibration = calibration
        self.model: Model = trained.task.model

    def write(self, asset_files: Sequence[str]) -> Manifest:
        """Everything; the manifest last, and again when the bundle has scored its golden rows."""
        (self.folder / FILES).mkdir()
        (self.folder / TABLES).mkdir()
        self._write_config()
        for source in asset_files:
            shutil.copyfile(source, self.folder / FILES / Path(source).name)
        expected, batch = self._expected()
        programs = {
            half.name: write_program(
                self.trained.task, half, batch, self.folder, movable=bool(self.trained.deltas)
            )
            for half in halves_of(self.trained.task)
        }
        needed = [f.name for f in self.trained.features if f.name in programs[SCORE].features]
        columns = FeatureEncoder([f for f in self.trained.features if f.name in needed]).columns
        _write_arrow(self.folder / GOLDEN, self.golden.select(columns))
        self._write_golden_scores(expected)
        if self.calibration is not None:
            (self.folder / CALIBRATION).write_bytes(self.calibration.to_bytes())
        tables, lookups = self._write_tables(), self._lookups()
        programs = {name: fold_program(self.folder, one, tables, lookups) for name, one in programs.items()}
        manifest = self._manifest(programs, tables, lookups)
        self._seal(manifest)
        return self._tried(manifest, expected)

    def _tried(self, manifest: Manifest, expected: Mapping[str, Column]) -> Manifest:
        """The manifest after the bundle has been loaded from its files and its scores were compared."""
        scorer = Scorer.load(self.folder, golden=False, raw_scores=True)
        found: dict[str, Column] = {}
        for program in scorer.manifest.programs:
            found.update(scorer.raw_outputs(program, scorer.golden))
        far = max(_largest(values_of(found[name]) - values_of(c)) for name, c in expected.items())
        largest = max(1.0, *(_largest(values_of(column)) for column in expected.values()))
        if not far <= _MOST * largest and self.precision == "FP32":
            raise RecgradError(
                f"export: the bundle's scores differ from the checkpoint's by {far:.2g}, so it is not "
                "written; a model of your own must compute the same while it is exported "
                "(torch.compiler.is_exporting)"
            )
        self._write_golden_scores(found)
        manifest = replace(manifest, golden_difference=far)
        return self._seal(manifest)

    def _write_golden_scores(self, scores: Mapping[str, Column]) -> None:
        """What the golden rows score; of calibrated outputs also what they score raw."""
        columns = dict(scores)
        if self.calibration is not None:
            mapped = self.calibration.apply({name: values_of(column) for name, column in scores.items()})
            columns = {name: with_values(scores[name], values) for name, values in mapped.items()}
            columns.update({f"{RAW}{name}": scores[name] for name in self.calibration.maps})
        _write_arrow(self.folder / GOLDEN_SCORES, _as_table(columns))

    def _seal(self, manifest: Manifest) -> Manifest:
        """Write the manifest, with the checksums of all other files."""
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file() and path.name != MANIFEST)
        files: dict[str, FileRecord] = {}
        for path in paths:
            name = path.relative_to(self.folder).as_posix()
            known = manifest.files.get(name) if name.startswith(f"{TABLES}/") else None
            files[name] = known or checksum_of(path)
        sealed = replace(manifest, files=files)
        (self.folder / MANIFEST).write_bytes(sealed.to_bytes())
        return sealed

    def _write_config(self) -> None:
        """The config, whose features read copies of their files."""
        config = PipelineConfig()
        config.CopyFrom(self.trained.config)
        copied: dict[str, str] = {}
        for item in config.feature_configs:
            for file in named_files(item):
                if file.path not in copied:
                    name = f"{FILES}/{len(copied):03d}_{Path(file.path).name}"
                    shutil.copyfile(file.path, self.folder / name)
                    copied[file.path] = name
                file.move(copied[file.path])
        save_config(config, self.folder / CONFIG)

    def _expected(self) -> tuple[dict[str, Column], Batch]:
        """What the checkpoint says of the golden rows, and their batch."""
        batch = encoded_batch(self.trained.features, self.golden)
        task = self.trained.task
        expected: dict[str, Column] = {}
        with torch.no_grad():
            for half in halves_of(task):
                parts = self.model.groups.gather(batch, self.model.engine, half.groups)
                lengths = None
                if half.list_group is not None:
                    lengths = self.model.groups.lengths(batch, half.list_group).numpy()
                for name, value in half.compute(parts).items():
                    expected[name] = in_lists(value.float().numpy(), lengths)
        return expected, batch

    def _write_tables(self) -> tuple[TableRecord, ...]:
        engine: Any = self.model.engine
        tables = [] if engine is None else list(engine.tables.values())
        return tuple(self._write_table(f"{TABLES}/{i:03d}", table) for i, table in enumerate(tables))

    def _write_table(self, stem: str, table: Any) -> TableRecord:
        if isinstance(table, LivingRows):
            rows, live = (table.every_row(), table.stand_ins()), table.turnover().live
            return write_living(self.folder, stem, table.spec, live, *rows, precision=self.precision)
        return write_table(
            self.folder,
            stem,
            table.spec,
            len(table.touched_rows()[0]),
            table.pieces(),
            precision=self.precision,
            seed=self.trained.config.train_config.seed,
        )

    def _lookups(self) -> tuple[LookupRecord, ...]:
        plan = self.model.groups.plan
        return tuple(LookupRecord(s.name, s.key, s.table, s.pooling, s.sequence) for s in plan.lookups)

    def _manifest(
        self,
        programs: Mapping[str, ProgramRecord],
        tables: tuple[TableRecord, ...],
        lookups: tuple[LookupRecord, ...],
    ) -> Manifest:
        trained = self.trained
        choice = chosen(trained.config.model_config, "model")
        assert choice is not None
        return Manifest(
            format=FORMAT,
            version=__version__,
            versions={name: _version(name) for name in _PACKAGES},
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            model=choice[0],
            step=trained.step,
            precision=self.precision,
            metrics=dict(trained.metrics),
            tasks=_tasks(trained.task),
            programs=programs,
            tables=tables,
            lookups=lookups,
            golden_difference=0.0,
            stream=trained.deltas.get("stream", ""),
            delta=trained.deltas.get("number", 0),
            delta_id=trained.deltas.get("id", ""),
        )


def encoded_batch(features: Sequence[Feature], table: pa.Table) -> Batch:
    """A batch of rows that are known to be good."""
    faults = Faults()
    encoded = FeatureEncoder(features).encode_table(table, faults)
    assert not faults
    return Batch.of(encoded)


def _tasks(task: Task) -> tuple[TaskRecord, ...]:
    return tuple(
        TaskRecord(head.spec.name, head.spec.label_name, head.prediction_name)
        for head in task.each_head()
        if not head.spec.training_only
    )


def _check_assets(paths: Sequence[str]) -> None:
    names = [Path(path).name for path in paths]
    for path, name in zip(paths, names, strict=True):
        if not Path(path).is_file():
            raise RecgradError(f"export: --asset_files: '{path}'{whole_path(path)} is not a file")
        if names.count(name) > 1:
            raise RecgradError(f"export: --asset_files: two files are called '{name}'; rename one")


def _largest(values: npt.NDArray[Any]) -> float:
    return float(np.abs(values).max(initial=0.0))


def _as_table(scores: Mapping[str, Column]) -> pa.Table:
    columns = {}
    for name, values in scores.items():
        if isinstance(values, ListColumn):
            columns[name] = values.to_arrow()
            continue
        flat = pa.array(np.ascontiguousarray(values, np.float32).reshape(-1))
        width = int(np.prod(values.shape[1:]))
        columns[name] = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, width)
    return pa.table(columns)


def _write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
