"""Notebooks of docs/notebooks: runs them (`make notebooks`), and shows them as pages of the site."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "notebooks"


def execute(path: Path) -> Any:
    """Run a notebook in an empty folder, as CI does; returns it with what it printed and drew.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    # The kernel finds this environment's `recgrad` and this tree's code.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    os.environ |= {"TERM": "dumb", "COLUMNS": "120"}  # a terminal without colours, as wide as the page
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, resources=resources, record_timing=False).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _merged(cell.outputs)
    return notebook


def _merged(outputs: list[Any]) -> list[Any]:
    """Pieces of one stream as one output, without what only a terminal understands."""
    merged: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":
            plain = re.sub(r"\x1b\[[0-9;]*m", "", output.text)
            output.text = re.sub(r"[ \r]+$", "", plain, flags=re.M)
        last = merged[-1] if merged else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def pages() -> dict[str, str | bytes]:
    """A page for each notebook, and its pictures, by path on the site."""
    found: dict[str, str | bytes] = {}
    for path in sorted(FOLDER.glob("*.ipynb")):
        found |= _page(path)
    return found


def _page(path: Path) -> dict[str, str | bytes]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    parts: list[str] = []
    pictures: dict[str, str | bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        language = "console" if source.startswith("!") else "python"
        parts.append(f"```{language}\n{source}\n```")
        for output in cell["outputs"]:
            name = f"{path.stem}-{len(pictures) + 1}.png"
            shown, picture = _shown(output, name)
            parts.append(shown)
            if picture:
                pictures[f"notebooks/{name}"] = picture
    first, _, rest = "\n\n".join(parts).partition("\n")
    link = f"[The notebook]({path.name}), to run it yourself.\n"
    return {f"notebooks/{path.stem}.md": f"{first}\n\n{link}\n{rest}\n", **pictures}


def _shown(output: dict[str, Any], name: str) -> tuple[str, bytes]:
    """What a cell gave, as Markdown; a picture also as bytes."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![what the cell draws]({name})", base64.b64decode("".join(data["image/png"]))
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.S)
        table = re.sub(r"<table[^>]*>", "<table>", table)
        return "\n".join(line.strip() for line in table.splitlines() if line.strip()), b""
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```", b""


def main() -> None:
    """Run every notebook and keep what it gave in its file."""
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(execute(path), path)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} kB", flush=True)


if __name__ == "__main__":
    main()
