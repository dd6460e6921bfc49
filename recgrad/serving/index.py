"""An index on disk: vectors of items with their ids and columns, searched without torch.

    INDEX/
      manifest.json      what it is: kind, similarity, segments; replaced as a whole when something changes
      segment-1/         items as they came: never changed after
        items.parquet    ids and columns
        panels.npy       vectors as exact search reads them, mapped
        faiss.index      of other kinds than exact
      segment-2/ …       items that were added or changed later; searched exactly
      removed-3.npy      numbers of items that are gone, or that a later segment has again
      golden.parquet     some items as the model saw them, with their vectors: another model gives others

Items are numbered through all segments in their order; equal scores go by it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recgrad.data.ids import KnownIds, plain_ids
from recgrad.errors import RecgradError, whole_path
from recgrad.retrieval.approximate import KINDS, ApproximateIndex, Settings
from recgrad.retrieval.boost import NOT_EUCLID, Boost
from recgrad.retrieval.exact import PackedVectors
from recgrad.retrieval.filters import Filter
from recgrad.retrieval.lists import Array, Bools, Floats, Ints
from recgrad.retrieval.similarity import EUCLID, item_side
from recgrad.serving.by_vectors import ByVectors
from recgrad.serving.index_view import Segment, View

FORMAT = 1
MANIFEST = "manifest.json"
EXACT = "exact"
VECTOR = "__vector__"
SAME = 1e-3


class Index(ByVectors):
    """Items that can be searched by vectors.

    Args:
        path: the folder of it.

    Attributes:
        manifest: what manifest.json says.
        segments: in order.
        similarity: of the model.
        boost: what is added to the similarities, if anything is.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = _read_manifest(self.path)
        self.kind: str = self.manifest["kind"]
        self.settings = Settings(**self.manifest["settings"])
        self.similarity: str = self.manifest["similarity"]
        boost = self.manifest.get("boost")
        self.boost = None if boost is None else Boost(**boost)
        names = self.manifest["segments"]
        self.segments = [Segment.read(self.path / name, self.kind, self.settings) for name in names]
        self.table = pa.concat_tables([segment.table for segment in self.segments], promote_options="default")
        removed = self.manifest["removed"]
        self.live: Bools = np.ones(self.table.num_rows, bool)
        if removed:
            self.live[np.load(self.path / removed)] = False
        self.dim: int = self.manifest["dim"]

    @property
    def id_field(self) -> str:
        """The column of ids."""
        return str(self.manifest["id_field"])

    def __len__(self) -> int:
        return int(self.live.sum())

    @property
    def bytes(self) -> int:
        """What its files take."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    @cached_property
    def ids(self) -> pa.Array:
        """Ids by number, also of items that are gone."""
        return plain_ids(self.table.column(self.id_field), f"index '{self.path}'")

    @cached_property
    def _known(self) -> tuple[KnownIds, Ints]:
        numbers = np.flatnonzero(self.live)
        return KnownIds(self.ids.take(pa.array(numbers)), f"index '{self.path}'"), numbers

    def numbers(self, ids: pa.Array) -> Ints:
        """The numbers of ids, −1 for those that it has not."""
        known, numbers = self._known
        found = known.numbers(ids)
        return np.where(found < 0, -1, numbers[found]) if len(numbers) else found

    def ids_of(self, numbers: Array) -> pa.Array:
        """The ids of items by number."""
        return self.table.column(self.id_field).combine_chunks().take(pa.array(numbers))

    def view(self, condition: str | None = None) -> View:
        """What a filter leaves of it, for searching."""
        allowed = self.live
        if condition is not None:
            allowed = allowed & Filter(condition).mask(self.table)
        allowed_here = None if allowed.all() else allowed
        return View(self.segments, self.similarity, allowed_here, boosted=self.boost is not None)

    def check_model(self, embedder: Any) -> None:
        """Raise unless a model gives the items the vectors that they have here."""
        path = self.path / "golden.parquet"
        if path.exists():
            check_golden(pq.read_table(path), embedder, f"{self.path}{whole_path(self.path)}")

    # Changes: new files, then a new manifest.

    def update(self, table: pa.Table, vectors: Array) -> None:
        """Add items, or change those whose ids it has."""
        KnownIds(table.column(self.id_field), "items")
        vectors = _checked(vectors, table, self.id_field)
        if vectors.shape[1] != self.dim:
            raise RecgradError(
                f"index '{self.path}': vectors have {self.dim} dims, the new ones {vectors.shape[1]}"
            )
        old = self.numbers(plain_ids(table.column(self.id_field), "items"))
        _check_columns(self, table)
        name = f"segment-{len(self.manifest['segments']) + 1}"
        columns = table.select(self.table.column_names)
        _write_segment(self.path / name, columns, vectors, self.similarity, self.boost)
        self._replace([*self.manifest["segments"], name], old[old >= 0])

    def remove(self, ids: pa.Array) -> int:
        """Take items out; returns how many of the ids it had."""
        numbers = self.numbers(plain_ids(ids, "ids to remove"))
        numbers = np.unique(numbers[numbers >= 0])
        self._replace(self.manifest["segments"], numbers)
        return len(numbers)

    def _replace(self, segments: list[str], gone: Ints) -> None:
        """Write a manifest with these segments, and without these items as well."""
        before = np.flatnonzero(~self.live)
        version = int(self.manifest["version"]) + 1
        removed = f"removed-{version}.npy" if len(before) + len(gone) else ""
        if removed:
            np.save(self.path / removed, np.union1d(before, gone))
        _write_manifest(
            self.path, {**self.manifest, "segments": segments, "removed": removed, "version": version}
        )
        self.__init__(self.path)  # type: ignore[misc]
        for name in self.__dict__.keys() & {"ids", "_known"}:
            del self.__dict__[name]


def check_golden(golden: pa.Table, embedder: Any, where: str) -> None:
    """Raise unless a model gives some items the vectors that they had when the index was made."""
    then = np.stack(golden.column(VECTOR).to_numpy()).astype(np.float64)
    now = np.asarray(embedder.embed(golden.drop_columns([VECTOR]), "item"), np.float64)
    scale = np.linalg.norm(then, axis=1) + 1e-12
    apart = np.linalg.norm(then - now, axis=1) / scale if now.shape == then.shape else np.full(1, np.inf)
    if apart.max() > SAME:
        raise RecgradError(
            f"index '{where}' was made by another model: its items have other vectors by this one; build it "
            "again with `recgrad index`, or give the model that made it"
        )


def build_index(
    path: str | Path,
    table: pa.Table,
    vectors: Array,
    *,
    id_field: str,
    similarity: str = "INNER_PRODUCT",
    boost: Boost | None = None,
    kind: str = EXACT,
    settings: Settings | None = None,
    golden: pa.Table | None = None,
    model: Mapping[str, Any] | None = None,
) -> Index:
    """Write an index of items; one that is there is replaced when the new one is whole.

    Args:
        path: a folder.
        table: ids and the columns to filter by.
        vectors: [items, dim], as the item tower gives them.
        id_field: the column of ids, each once.
        similarity: of the model.
        boost: what is added to the similarities, of a column of the table.
        kind: exact, or of KINDS.
        settings: of kinds other than exact.
        golden: some rows of the item tower with their vectors in the column VECTOR.
        model: what is known of the model, for people.
    """
    path = Path(path)
    if kind != EXACT and kind not in KINDS:
        raise RecgradError(f"index: no kind '{kind}' (there are: {', '.join((EXACT, *KINDS))})")
    if path.exists() and not (path / MANIFEST).exists() and (not path.is_dir() or any(path.iterdir())):
        raise RecgradError(f"index: '{path}'{whole_path(path)} is there and no index; choose another path")
    if boost is not None and similarity == EUCLID:
        raise RecgradError(f"index: a boost {NOT_EUCLID}")
    KnownIds(table.column(id_field), f"items: column '{id_field}'")
    vectors = _checked(vectors, table, id_field)
    settings = settings or Settings()
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    searched = _write_segment(partial / "segment-1", table, vectors, similarity, boost)
    if kind != EXACT:
        ApproximateIndex.build(searched, kind, settings).write(str(partial / "segment-1" / "faiss.index"))
    if golden is not None:
        pq.write_table(golden, partial / "golden.parquet")
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "settings": asdict(settings),
        "similarity": similarity,
        "boost": None if boost is None else asdict(boost),
        "dim": vectors.shape[1],
        "id_field": id_field,
        "segments": ["segment-1"],
        "removed": "",
        "version": 1,
        "model": dict(model or {}),
    }
    _write_manifest(partial, manifest)
    if path.exists():
        old = path.with_name(path.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        partial.rename(path)
        shutil.rmtree(old)
    else:
        partial.rename(path)
    return Index(path)


def _write_segment(
    folder: Path, table: pa.Table, vectors: Floats, similarity: str, boost: Boost | None
) -> Floats:
    """Write items; returns their vectors as they are searched."""
    boosts = None if boost is None else boost.values(table.column(boost.field), "items")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    searched = item_side(vectors, similarity, boosts)
    np.save(folder / "panels.npy", PackedVectors(searched).panels)
    pq.write_table(table, folder / "items.parquet")
    return searched


def _checked(vectors: Array, table: pa.Table, id_field: str) -> Floats:
    """Vectors [items, dim], all numbers finite."""
    vectors = np.asarray(vectors, np.float32)
    if vectors.ndim != 2 or len(vectors) != table.num_rows:
        raise RecgradError(f"index: {table.num_rows} items need a vector each, got {list(vectors.shape)}")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        name = table.column(id_field)[int(bad[0])].as_py()
        raise RecgradError(
            f"index: {len(bad)} items have vectors with numbers that are not finite, the first is {name!r}; "
            "the model may have diverged"
        )
    return vectors


def _check_columns(index: Index, table: pa.Table) -> None:
    missing = [name for name in index.table.column_names if name not in table.column_names]
    if missing:
        raise RecgradError(
            f"index '{index.path}': the new items have no column '{missing[0]}'; give all columns"
        )


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if manifest["format"] != FORMAT or "segments" not in manifest:
            raise ValueError(f"format {manifest['format']}")
    except FileNotFoundError:
        raise RecgradError(
            f"index '{path}'{whole_path(path)}: there is none; make it with `recgrad index`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecgradError(
            f"index '{path}'{whole_path(path)}: cannot be read ({error}); build it again"
        ) from error
    found: dict[str, Any] = manifest
    return found


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    partial = path / (MANIFEST + ".partial")
    partial.write_text(json.dumps(manifest, indent=2) + "\n")
    os.replace(partial, path / MANIFEST)
