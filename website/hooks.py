"""What MkDocs is told beside mkdocs.yml: pages that are made from the code, and links that leave docs/."""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "website")]

import notebooks  # noqa: E402
from reference import api_pages, command_pages, schema_page  # noqa: E402

# Lists of names that are made from a dict are not for griffe; the pages name each class themselves.
logging.getLogger("mkdocs.plugins.griffe").addFilter(lambda record: "HOMES" not in record.getMessage())

OUTWARD = re.compile(r"\[([^\]\n]*)\]\((\.\./[\w./-]*)(#[^)]*)?\)")
"""A link from a page of docs/ that may leave it, as GitHub follows it."""

FILE_NAME = re.compile(r"\[(\w+\.md)\]\(((?:\.\./)?\1)(#[^)]*)?\)")
"""A link whose words are the name of the file that it leads to."""

ADOPTED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "examples": "sources.md",
}
"""What stands outside docs/ and has a page on the site all the same."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation, and the pages of docs/ that it does not name."""
    nav: list[Any] = config.nav or []
    reference = next(entry["Reference"] for entry in nav if "Reference" in entry)
    reference += [*schema_page(), {"Commands": [*command_pages()]}, {"Python": [*api_pages()]}]
    named = set(_named(nav))
    docs = Path(config.docs_dir)
    pages = [path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md"))]
    more = [page for page in [*pages, *_adopted_pages()] if page not in named]
    config.nav = [*nav, {"More": more}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that have no file in docs/."""
    made: dict[str, str | bytes] = {**api_pages(), **command_pages(), **schema_page(), **_adopted_pages()}
    made |= notebooks.pages()
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Lead links to files outside docs/ to their pages on the site; without one, only the words stay.

    A link that shows the name of a file, as on GitHub, shows the title of its page.
    """
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]  # room for what the commands print
    if page.file.src_uri.startswith("coming_from/"):
        page.meta["hide"] = ["toc"]  # room for two configs beside each other
    here = PurePosixPath(page.file.src_uri).parent
    up = "../" * len(here.parts)

    def led(link: re.Match[str]) -> str:
        words, target, heading = link.groups(default="")
        path = (ROOT / "docs" / here / target).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return link[0]
        name = path.relative_to(ROOT).as_posix()
        if name in ADOPTED:
            return f"[{words}]({up}{ADOPTED[name]}{heading})"
        if name.startswith("examples/") and path.is_file():
            return f"[{words}]({up}{ADOPTED['examples']}#{_anchor(name)})"
        return words

    def titled(link: re.Match[str]) -> str:
        found = files.get_file_from_path(posixpath.normpath((here / link[2]).as_posix()))
        title = re.search(r"^# (.+)$", found.content_string, re.M) if found else None
        return f"[{title[1]}]({link[2]}{link[3] or ''})" if title else link[0]

    # A notebook has a page here; on GitHub its file is one.
    markdown = re.sub(r"\((notebooks/\w+)\.ipynb\)", r"(\1.md)", markdown)
    return FILE_NAME.sub(titled, OUTWARD.sub(led, markdown))


def _named(nav: Any) -> list[str]:
    """The pages that a navigation names."""
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [page for entry in inner for page in _named(entry)]


def _adopted_pages() -> dict[str, str]:
    """The pages of the project's root, their links as seen from docs/, and one of all files of examples/."""
    pages = {ADOPTED["examples"]: _sources()}
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"\]\((?!https?:|#|docs/)", "](../", text)
        pages[ADOPTED[name]] = text.replace("](docs/", "](")
    return pages


def _sources() -> str:
    """The files of examples/, one after the other."""
    parts = ["# Example files\n\nThe folder `examples/` of the project: whole configs and small programs.\n"]
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.is_file() and path.suffix not in (".pyc",):
            name = path.relative_to(ROOT).as_posix()
            language = "python" if path.suffix == ".py" else "text"
            text = path.read_text(encoding="utf-8")
            parts.append(f"\n## {name} {{ #{_anchor(name)} }}\n\n````{language}\n{text.rstrip()}\n````\n")
    return "".join(parts)


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower())
