"""An index in PostgreSQL gives what one in a folder gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from recgrad.cli.main import main
from recgrad.errors import RecgradError
from recgrad.serving.postgres import PostgresIndex

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
    assert run("index", model_dir, "--items", few, "--to", database, "--kind", "ivf") == 2
    assert "search in PostgreSQL is exact" in capsys.readouterr().err
