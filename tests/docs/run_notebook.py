# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs examples/notebook.ipynb without a window, looks at what its cells show, and takes a picture of it.

    VENV/bin/python tests/docs/run_notebook.py [--picture notebook.png]

VENV has the wheel, torch, nbclient and ipykernel. The picture needs Chromium.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

import nbclient
import nbformat

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"
#: What cells must show, by a word of their source: a picture, and words that are in their HTML or text.
SHOWS = {
    "recording.timeline()": ("<svg", "weights", "all of the GPU but its context"),
    "recording.explain()": ("out of memory: memory is fragmented (TN102)", "[replayed]"),
    "recording.replay()": ("<table", "expandable_segments:True", "out of memory"),
    "%%tonnage": ("<svg", "optimizer state", "fits on NVIDIA GeForce RTX 4090"),
    "print(verdict": ("peak", "because"),
}


def shown(cell: nbformat.NotebookNode) -> str:
    """All that a cell shows: HTML where there is some, else text."""
    parts = []
    for output in cell.outputs:
        if output.output_type == "error":
            raise AssertionError("\n".join(output.traceback))
        if output.output_type == "stream":
            parts.append(output.text)
        else:
            parts.append(output.data.get("text/html", output.data.get("text/plain", "")))
    return "\n".join(parts)


def problems(notebook: nbformat.NotebookNode) -> list[str]:
    """The parts that are missing."""
    found = []
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for source, words in SHOWS.items():
        fitting = [cell for cell in cells if source in cell.source]
        if len(fitting) != 1:
            found.append(f"{len(fitting)} cells have {source}")
            continue
        text = shown(fitting[0])
        found += [f"{source} does not show {word!r}:\n{text[:2000]}" for word in words if word not in text]
    return found


def as_page(notebook: nbformat.NotebookNode) -> str:
    """The notebook as one page, much as a notebook's window shows it: sources, and HTML or text below them."""
    parts = []
    for cell in notebook.cells:
        style = "background:#f5f5f5;padding:8px" if cell.cell_type == "code" else "font:16px sans-serif"
        parts.append(f'<pre style="{style}">{escape(cell.source)}</pre>')
        for output in cell.get("outputs", []):
            if "data" in output and "text/html" in output.data:
                parts.append(f"<div>{output.data['text/html']}</div>")
            else:
                text = output.get("text") or output.get("data", {}).get("text/plain", "")
                parts.append(f"<pre>{escape(text)}</pre>")
    head = '<!doctype html><meta charset="utf-8"><title>notebook</title>'
    return f'{head}<body style="font:14px sans-serif;max-width:1000px;margin:20px auto">{"".join(parts)}</body>'


def take_picture(page: str, picture: Path) -> None:
    """Opens the page in Chromium as a reader would, and keeps what is seen."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("a picture needs chromium on the path")
    with tempfile.TemporaryDirectory(prefix="tonnage-notebook-") as folder:
        file = Path(folder) / "notebook.html"
        file.write_text(page, encoding="utf-8")
        subprocess.run(
            [
                chromium,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                f"--user-data-dir={folder}/profile",
                "--window-size=1100,2350",
                f"--screenshot={picture.absolute()}",
                file.as_uri(),
            ],
            check=True,
            timeout=180,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    if picture.stat().st_size < 20_000:
        raise SystemExit(f"{picture} has {picture.stat().st_size} bytes: nothing seems to be on it")


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the notebook of the examples.")
    parser.add_argument("--picture", type=Path, help="where to keep a picture of it")
    parser.add_argument("--page", type=Path, help="where to keep it as HTML")
    options = parser.parse_args()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    if any(cell.get("outputs") for cell in notebook.cells):
        print(f"{NOTEBOOK.name} was committed with outputs")
        return 1
    os.environ["TONNAGE_NO_PROGRESS"] = "1"
    with tempfile.TemporaryDirectory(prefix="tonnage-notebook-") as folder:
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    found = problems(notebook)
    for problem in found:
        print(problem)
    page = as_page(notebook)
    if options.page:
        options.page.write_text(page, encoding="utf-8")
    if options.picture:
        take_picture(page, options.picture)
    print(f"{len(SHOWS)} cells looked at, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
