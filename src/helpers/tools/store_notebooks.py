"""Run notebooks from a fresh kernel and store them with their outputs.

What is stored is the run and nothing else: no timing metadata, no widget state, no machine's
kernel name, cell ids that stay the same. A notebook that fails is left as it was. Afterwards the
tables of notebooks and recipes in README and notebook 00 are written anew.
"""

import argparse
import base64
import os
import re
import runpy
import tempfile
from pathlib import Path

from helpers.core import files
from helpers.tools import measure, notebooks

import nbclient
import nbformat

NOTEBOOKS = notebooks.NOTEBOOKS
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
README, START = files.ROOT / "README.md", NOTEBOOKS / "00_start_here.ipynb"
PICTURE = NOTEBOOKS / "images" / "start_here.png"  # README shows the first picture of 00


def paths() -> list[Path]:
    """Return all notebooks and solutions (JupyterLab's own copies lie elsewhere)."""
    return [*notebooks.pages(), *notebooks.pages(NOTEBOOKS / "solutions")]


def chosen(name: str) -> list[Path]:
    """Return the files that a number ("09": notebook and solutions) or a path stands for."""
    found = [path for path in paths() if path.name.startswith(f"{name}_")]
    return found or [Path(name).resolve()]


def first_picture(notebook: nbformat.NotebookNode) -> bytes:
    """Return the PNG of the first figure in a notebook's outputs."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    html = "".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    return base64.b64decode(re.search(r"data:image/png;base64,([A-Za-z0-9+/=]+)", html)[1])


def normalise(notebook: nbformat.NotebookNode) -> None:
    """Keep the run, drop what would differ from one author's machine to the next."""
    meta = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    notebook.metadata = nbformat.from_dict(meta)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02}"
        cell.source = cell.source.rstrip("\n")
        keys = {"tags", "jp-MarkdownHeadingCollapsed"} & cell.metadata.keys()
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in sorted(keys)})
        for output in cell.get("outputs", []):
            output.pop("transient", None)
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})


def store(path: Path) -> None:
    """Run one notebook as a reader would, in its own folder, and replace the file by the result."""
    notebook = nbformat.read(path, as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    if first.source.startswith("try:"):
        first.source = notebooks.guard()
    folder = {"metadata": {"path": str(path.parent)}}
    options = {"timeout": 300, "kernel_name": "python3", "store_widget_state": False}
    client = nbclient.NotebookClient(notebook, resources=folder, **options)
    with measure.temporary_folder() as variables:
        client.execute(env=variables)
    normalise(notebook)
    nbformat.validate(notebook)
    with files.atomic_write(path) as part:
        nbformat.write(notebook, part)
    if path == START:
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_bytes(first_picture(notebook))


def tables(folder: str) -> dict[str, str]:
    """Return the tables by the name of their marks; `folder` leads from the page to notebooks/."""
    rows = ["| notebook | question | time | memory | GPU |", "|---|---|---|---|---|"]
    for page in notebooks.lessons():
        link = f"[{page.number}]({folder}{page.path.name})"
        needs = f"{page.seconds} s | {page.gigabytes} GB | {page.gpu}"
        rows.append(f"| {link} | {page.title} | {needs} |")
    recipes = ["| notebook | recipe | what it does |", "|---|---|---|"]
    for number, path in notebooks.recipes().items():
        link = f"[{path.name}]({path.relative_to(files.ROOT).as_posix()})"
        recipes.append(f"| {number} | {link} | {notebooks.first_sentence(path)} |")
    return {"notebooks": "\n".join(rows), "recipes": "\n".join(recipes)}


def with_tables(text: str, folder: str) -> str:
    """Return a page's text with its tables, which stand between marks, written anew."""
    for name, table in tables(folder).items():
        marks = rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)"
        text = re.sub(marks, lambda m, t=table: m[1] + t + m[2], text, flags=re.DOTALL)
    return text


def write_tables() -> None:
    """Write the tables in README, in notebook 00 and in the instructor's guide."""
    text = with_tables(README.read_text(encoding="utf-8"), "notebooks/")
    with files.atomic_write(README) as part:
        part.write_text(text, encoding="utf-8")
    start = nbformat.read(START, as_version=4)
    for cell in start.cells:
        if cell.cell_type == "markdown":
            cell.source = with_tables(cell.source, "")
    with files.atomic_write(START) as part:
        nbformat.write(start, part)
    runpy.run_path(str(files.ROOT / "docs" / "guide.py"))["main"]([])


def main(argv: list[str] | None = None) -> int:
    """Store the notebooks that are named, or all; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m helpers store-notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", help="numbers (09) or files; default: all")
    names = parser.parse_args(argv).names
    # A download bar depends on what was here before the run: it must not get into the file.
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    for path in [path for name in names for path in chosen(name)] or paths():
        print(path.relative_to(files.ROOT) if path.is_relative_to(files.ROOT) else path, flush=True)
        with tempfile.TemporaryDirectory() as folder:  # no exercise is done, and none is recorded
            os.environ["BERT_PROGRESS"] = folder
            store(path)
    write_tables()
    return 0
