"""The page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving_browser import BROWSER, Browser
from serving_fake import GOLDEN, Running, formula

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Debian's chromium")

NUMBER = "document.getElementById('number').textContent"
ERROR = "document.getElementById('error').textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def page(browser: Browser, server: Running) -> Browser:
    browser.events.clear()
    browser.size(1280, 900)
    browser.open(f"http://127.0.0.1:{server.port}/")
    browser.wait(f"{NUMBER} !== '–'")
    return browser


def score(page: Browser, **changes: object) -> None:
    wanted = f"{formula({**GOLDEN, **changes}):.5f}"
    page.wait(f"{NUMBER} === '{wanted}'")


def test_the_form_is_filled_with_a_golden_row_and_scores_as_it_changes(page: Browser) -> None:
    values = page.value(
        "Object.fromEntries(Array.from(document.querySelectorAll('input')).map(i => [i.name, i.value]))"
    )
    assert values == {"user_id": "1", "item_id": "2", "price": "3.5", "city": "Oslo", "tags": '["a","b"]'}
    score(page)
    page.fill("price", "9")
    score(page, price=9)
    page.fill("tags", "[]")
    score(page, price=9, tags=[])
    page.fill("city", "")
    score(page, price=9, tags=[], city=None)
    page.value("document.getElementById('reset').click()")
    score(page)
    assert page.problems() == []


def test_bars_show_what_moved_the_score_the_most_first(page: Browser) -> None:
    bars = page.wait(
        "Array.from(document.querySelectorAll('#bars > span')).map((s, i) =>"
        " [s.textContent, document.querySelectorAll('#bars > b')[i].textContent,"
        " document.querySelectorAll('#bars i')[i].className])"
    )
    moved = {name: formula(GOLDEN) - formula({**GOLDEN, name: None}) for name in GOLDEN}
    wanted = sorted(moved, key=lambda name: -abs(moved[name]))
    assert [name for name, _, _ in bars] == wanted
    for name, text, side in bars:
        assert text == f"{'−' if moved[name] < 0 else '+'}{abs(moved[name]):.4f}"
        assert side == ("down" if moved[name] < 0 else "up")
    widths = page.value(
        "Array.from(document.querySelectorAll('#bars i')).map(i => i.getBoundingClientRect().width)"
    )
    assert widths == sorted(widths, reverse=True)
    assert widths[1] / widths[0] == pytest.approx(abs(moved[wanted[1]] / moved[wanted[0]]), rel=0.05)


def test_a_bad_value_is_told_at_its_field(page: Browser) -> None:
    page.fill("price", "-1")
    assert "price -1.0 is negative" in page.wait(ERROR)
    note = page.value("document.querySelector('.wrong small').textContent")
    assert note == "price -1.0 is negative; send a price of at least 0"
    page.fill("price", "1")
    score(page, price=1)
    assert page.value(ERROR) == ""
    assert page.value("document.querySelector('.wrong')") is None


def test_text_from_others_is_shown_and_not_run(page: Browser) -> None:
    page.fill("city", "<img src=x onerror=alert(1)>")
    score(page, city="<img src=x onerror=alert(1)>")
    page.fill("item_id", "<b>5</b>")
    assert "<b>5</b>" in page.wait(ERROR)
    assert page.value("document.querySelectorAll('img, section b b').length") == 0
    assert [text for text in page.problems() if "422" not in text] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_phones_and_desktops(page: Browser, width: int, tmp_path: Path) -> None:
    page.size(width, 844)
    page.wait(f"window.innerWidth === {width}")
    measured = page.value(
        "[document.documentElement.scrollWidth,"
        " Math.max(...Array.from(document.querySelectorAll('section, input, .track, h1'))"
        ".map(e => Math.ceil(e.getBoundingClientRect().right))),"
        " Math.max(...Array.from(document.querySelectorAll('section'))"
        ".map(e => e.scrollWidth - e.clientWidth))]"
    )
    assert measured[0] <= width
    assert measured[1] <= width
    assert measured[2] <= 0
    page.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_the_model_is_described(page: Browser) -> None:
    text = page.value("document.querySelector('main').textContent")
    assert "0.75000" in text  # its AUC
    assert "5 features" in text
