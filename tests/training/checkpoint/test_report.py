"""The report of a restore: counts, and names only where there is something to say."""

from __future__ import annotations

from recgrad.training.checkpoint import Afresh, RestoredTable, RestoreReport


def report(**parts):
    empty = dict.fromkeys(
        [
            "restored",
            "renamed",
            "tables",
            "reinitialised",
            "unused",
            "optimizer_restored",
            "optimizer_afresh",
        ],
        (),
    )
    return str(RestoreReport(100, **(empty | parts)))


def names(count, prefix="w"):
    return tuple(f"{prefix}{i}" for i in range(count))


def table(name, rows=10, dropped=0, old=100, new=100):
    return RestoredTable(name, name, rows, dropped, old, new)


def test_what_was_simply_restored_is_counted_and_not_named():
    text = report(
        restored=names(300), tables=tuple(map(table, names(40, "t"))), optimizer_restored=names(340)
    )
    assert text == (
        "restored from step 100: 300 parameters, 40 tables with 400 rows; 0 renamed, 0 reinitialised, "
        "0 unused; optimizer state of 340"
    )


def test_tables_that_changed_are_named():
    text = report(tables=(table("same"), table("grown", new=200), table("shrunk", dropped=3, new=50)))
    assert text.splitlines()[1:] == [
        "  table          grown: 10 rows (the table grew from 100 to 200 rows)",
        "  table          shrunk: 10 rows, 3 dropped (the table shrank from 100 to 50 rows)",
    ]


def test_what_begins_anew_is_told_by_reason():
    text = report(
        reinitialised=(Afresh("a", "not there"), Afresh("b", "shape"), Afresh("c", "not there")),
        optimizer_afresh=tuple(Afresh(name, "left out") for name in names(12)),
    )
    assert text.splitlines()[1:] == [
        "  reinitialised  a, c: not there",
        "  reinitialised  b: shape",
        "  optimizer      w0, w1, w2, w3, w4 and 7 more: left out",
    ]


def test_long_lists_are_cut():
    text = report(
        unused=names(1_300),
        renamed=tuple((f"new{i}", f"old{i}") for i in range(500)),
        tables=tuple(table(name, new=200) for name in names(30, "t")),
        reinitialised=tuple(Afresh(f"w{i}", f"shape [{i}]") for i in range(200)),
    )
    lines = text.splitlines()
    assert len(lines) == 1 + 3 * 11 + 1
    assert "  renamed        new9 (there: old9)" in lines
    assert "  renamed        and 490 more" in lines
    assert "  table          and 20 more" in lines
    assert "  reinitialised  and 190 more" in lines
    assert "  unused         w0, w1, w2, w3, w4 and 1,295 more" in lines
