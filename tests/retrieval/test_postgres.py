"""An index in PostgreSQL gives what one in a folder gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recgrad.cli.main import main
from recgrad.errors import RecgradError
from recgrad.retrieval.approximate import Settings
from recgrad.retrieval.lists import ItemSets
from recgrad.serving.postgres import PostgresIndex, write_postgres
from recgrad.serving.postgres_kinds import Kind, choose_kind

pgserver = pytest.importorskip("pgserver", reason="needs pgserver, which brings PostgreSQL with pgvector")
pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.mark.slow
def test_a_database_recommends_what_a_folder_does(
    shop, model_dir: Path, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RecgradError, match="there is none"):
        PostgresIndex(database)
    folder, few = tmp_path / "index", tmp_path / "few.parquet"
    pq.write_table(shop.items.slice(10, 3), few)
    for place in (folder, database):
        assert run("index", model_dir, "--items", shop.folder / "items.parquet", "--to", place) == 0
        assert run("index", "--to", place, "--remove", few) == 0
    assert "3 items removed: 87 items" in capsys.readouterr().out
    for secret in (database.replace(":@", ":sesame@"), f"{database}&password=sesame"):
        assert "sesame" in secret
        assert run("index", model_dir, "--items", shop.folder / "items.parquet", "--to", secret) == 0
        assert run("index", model_dir, "--items", few, "--to", secret, "--update") == 0
        assert run("index", "--to", secret, "--remove", few) == 0
        printed = capsys.readouterr()
        assert "sesame" not in printed.out + printed.err
    wheres = [None, "price < 0.5 and category in ('k0', 'k3') or not price > 0.1", "item_id != 'i5'"]
    for where in wheres:
        lists = []
        for place in (folder, database):
            out = tmp_path / "lists.parquet"
            flags = ["--users", shop.folder / "users.parquet", "--output", out, "--k", 9]
            flags += ["--exclude", shop.folder / "train.parquet", *(["--filter", where] if where else [])]
            assert run("recommend", model_dir, "--index", place, *flags) == 0
            lists.append(pq.read_table(out))
        assert lists[0]["items"].to_pylist() == lists[1]["items"].to_pylist()
        for a, b in zip(lists[0]["scores"].to_pylist(), lists[1]["scores"].to_pylist()):
            assert a == pytest.approx(b, abs=1e-5)
    assert run("index", model_dir, "--items", few, "--to", database, "--update") == 0
    assert len(PostgresIndex(database)) == 90
    capsys.readouterr()
    flags = ["--users", shop.folder / "users.parquet", "--output", tmp_path / "x.parquet"]
    assert run("recommend", model_dir, "--index", database, *flags, "--filter", "prize < 3") == 2
    assert "no column 'prize'; did you mean 'price'?" in capsys.readouterr().err
    assert run("recommend", model_dir, "--index", database, *flags, "--filter", "len(price) < 3") == 2
    assert "is not a column, a value or a comparison" in capsys.readouterr().err


DIM, ITEMS = 12, 3000


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    rng = np.random.default_rng(0)
    found = rng.normal(size=(ITEMS, DIM)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def catalogue() -> pa.Table:
    number = np.arange(ITEMS)
    return pa.table({"item_id": [f"i{n}" for n in number], "rank": number, "half": number % 2})


def true_lists(vectors: np.ndarray, queries: np.ndarray, similarity: str, allowed: np.ndarray) -> np.ndarray:
    """All allowed items by similarity, computed in float64."""
    a, b = queries.astype(np.float64), vectors.astype(np.float64)
    scores = a @ b.T if similarity != "EUCLID" else -np.linalg.norm(a[:, None] - b[None], axis=2)
    scores[:, ~allowed] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")


@pytest.mark.parametrize("similarity", ["COSINE", "EUCLID"])
@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_approximate_search_finds_most_and_never_fewer_than_there_are(
    kind: str, similarity: str, database: str, vectors: np.ndarray
) -> None:
    settings = Settings(nlist=40, nprobe=8)
    index = write_postgres(
        database,
        catalogue(),
        vectors,
        id_field="item_id",
        similarity=similarity,
        golden=None,
        name=f"{kind}_{similarity}",
        kind=kind,
        settings=settings,
    )
    again = PostgresIndex(database, f"{kind}_{similarity}")
    assert again.kind == index.kind
    assert index.num_bytes > 4 * ITEMS * DIM
    queries, number = vectors[:20], np.arange(ITEMS)
    conditions = [(None, number >= 0), ("half == 1", number % 2 == 1), ("rank < 60", number < 60)]
    conditions += [("rank >= 2995", number >= 2995), ("rank > 9999", number < 0)]
    for where, allowed in conditions:
        best = true_lists(vectors, queries, similarity, allowed)
        banned = ItemSets.of(np.repeat(np.arange(20), 3), index.numbers(_ids(best[:, :3])), 20)
        found = again.view(where).search(queries, 10, banned)
        wanted = min(10, max(int(allowed.sum()) - 3, 0))
        assert ((found.items >= 0).sum(1) == wanted).all()
        assert (np.diff(found.scores[:, :wanted]) <= 0).all()
        if not wanted:
            continue
        places = again.places(found.items[:, :wanted])
        assert allowed[places].all()
        assert not (places[:, :, None] == best[:, None, :3]).any(), "what is banned is not found"
        shared = sum(len(np.intersect1d(a, b)) for a, b in zip(places, best[:, 3 : 3 + wanted]))
        few = allowed.sum() < 100
        assert shared / places.size > (0.999 if few else 0.7), "where a filter leaves few, it is exact"
    many = again.view().search(queries, 1500)
    assert (many.items >= 0).all(), "also more than an approximate search can find"


def _ids(places: np.ndarray) -> pa.Array:
    return pa.array([f"i{place}" for place in places.reshape(-1)])


def test_the_index_is_used_and_kept_by_changes(
    database: str, vectors: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = catalogue().append_column("item_tower_emb", pa.array(vectors.tolist(), pa.list_(pa.float32())))
    pq.write_table(table, tmp_path / "vectors.parquet")
    pq.write_table(table.slice(5, 10), tmp_path / "few.parquet")
    line = [
        "index",
        "--embedding-input-path",
        tmp_path / "vectors.parquet",
        "--to",
        database,
        "--table",
        "used",
    ]
    shares = []
    for probes in (1, 7, 50):
        assert run(*line, "--kind", "ivf", "--ivf-nlist", 50, "--ivf-nprobe", probes, "--k", 10) == 0
        said = capsys.readouterr().out
        assert "3,000 items of 12 dims, ivf, built in" in said
        shares.append(float(said.split("against exact search: ")[1].split()[0]))
    assert shares[0] < shares[1] < shares[2]
    assert (shares[0] < 0.6, shares[2]) == (True, 1.0)
    before = PostgresIndex(database, "used").manifest
    assert run(*line, "--kind", "ivf", "--ivf-nlist", 2990) == 2
    assert "cannot build ivf: memory required is" in capsys.readouterr().err
    assert PostgresIndex(database, "used").manifest == before, "what was there stays"
    assert run(*line, "--index-type", "HNSWFlatIP", "--hnsw-M", 8, "--hnsw-efConstruction", 40) == 0
    assert "3,000 items of 12 dims, hnsw, built in" in capsys.readouterr().out
    assert run("index", "--to", database, "--table", "used", "--remove", tmp_path / "few.parquet") == 0
    index = PostgresIndex(database, "used")
    assert index.kind == Kind("hnsw", {"m": 8, "ef_construction": 40, "ef_search": 128})
    found = index.ids_of(index.view().search(vectors[4:6], 1).items[:, 0]).to_pylist()
    assert found[0] == "i4"
    assert found[1] != "i5"
    flags = ["--to", database, "--table", "used", "--update"]
    assert run("index", "--embedding-input-path", tmp_path / "few.parquet", *flags) == 0
    index = PostgresIndex(database, "used")
    assert index.kind.name == "hnsw"
    assert index.ids_of(index.view().search(vectors[5:6], 1).items[:, 0]).to_pylist() == ["i5"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--kind", "ivfpq"], "PostgreSQL has no kind ivfpq (has: exact, hnsw, ivf)"),
        (["--kind", "hnsw", "--hnsw-M", 101], "--hnsw-M in PostgreSQL is from 2 to 100, got 101"),
        (["--kind", "hnsw", "--hnsw-efSearch", 1001], "--hnsw-efSearch in PostgreSQL is from 1 to 1,000"),
        (["--kind", "hnsw", "--hnsw-efConstruction", 63], "at least twice --hnsw-M 32, got 63"),
        (["--kind", "ivf", "--ivf-nlist", 40000], "--ivf-nlist in PostgreSQL is from 1 to 32,768"),
        (["--ivf-nlist", 4], "--ivf-nlist has no effect with kind exact"),
    ],
)
def test_what_pgvector_has_not_is_refused(
    flags: list[object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"item_id": ["a", "b"], "item_tower_emb": [[0.0, 1.0], [1.0, 0.0]]}
    pq.write_table(pa.table(table), tmp_path / "v.parquet")
    line = [
        "index",
        "--embedding-input-path",
        tmp_path / "v.parquet",
        "--to",
        "postgresql://nobody@nowhere/x",
    ]
    assert run(*line, *flags) == 2
    assert message in capsys.readouterr().err


def test_wide_vectors_are_exact_alone() -> None:
    with pytest.raises(RecgradError, match="at most 2,000 dims, got 2,001"):
        choose_kind("hnsw", Settings(), 10, 2001)
    assert choose_kind("exact", Settings(), 10, 2001) == Kind("exact", {})
    assert choose_kind("ivf", Settings(), 90_000, 8) == Kind("ivf", {"lists": 90, "probes": 10})
    assert choose_kind("ivf", Settings(), 10, 8) == Kind("ivf", {"lists": 1, "probes": 1})


def test_how_far_a_query_looks() -> None:
    hnsw = Kind("hnsw", {"m": 8, "ef_construction": 40, "ef_search": 100})
    assert hnsw.reach(10, 0, 1.0) == ("hnsw.ef_search", 100)
    assert hnsw.reach(90, 30, 1.0) == ("hnsw.ef_search", 120)
    assert hnsw.reach(10, 10, 0.1) == ("hnsw.ef_search", 300)
    assert hnsw.reach(10, 0, 0.01) is None, "more candidates than pgvector follows"
    ivf = Kind("ivf", {"lists": 100, "probes": 10})
    assert ivf.reach(10, 0, 0.5) == ("ivfflat.probes", 20)
    assert ivf.reach(10, 0, 0.1) is None, "all lists are the table"
    assert Kind("exact", {}).reach(1, 0, 1.0) is None
