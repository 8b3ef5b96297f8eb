"""Run notebooks from a fresh kernel and store them with their outputs: python -m helpers.tools.store_notebooks [NOTEBOOK ...].

Without names it does all of them. What is stored is the run and nothing else: no timing metadata, no widget state, no
machine's kernel name, cell ids that stay the same. A notebook that fails is left as it was.
"""

import base64
import os
import re
import sys
from pathlib import Path

from helpers.core import files

import nbclient
import nbformat

NOTEBOOKS = files.ROOT / "notebooks"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}

# The README shows this notebook's first picture.
PICTURE_OF, PICTURE = NOTEBOOKS / "00_start_here.ipynb", NOTEBOOKS / "images" / "start_here.png"


def paths() -> list[Path]:
    """All lessons and solutions (JupyterLab's own checkpoint copies lie elsewhere)."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")) + sorted(
        NOTEBOOKS.glob("solutions/[0-9][0-9]_*.ipynb")
    )


def first_picture(notebook: nbformat.NotebookNode) -> bytes:
    """The PNG of the first figure in a notebook's outputs."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    pages = ("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    return base64.b64decode(
        next(re.finditer(r"data:image/png;base64,([A-Za-z0-9+/=]+)", "".join(pages)))[1]
    )


def normalise(notebook: nbformat.NotebookNode) -> None:
    """Keep the run, drop what would differ from one author's machine to the next."""
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02}"
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        for output in cell.get("outputs", []):
            output.pop("transient", None)
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})


def store(path: Path) -> None:
    """Execute one notebook as a reader would (working directory: its folder) and replace the file with the result."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    normalise(notebook)
    nbformat.validate(notebook)
    fresh = path.with_suffix(".ipynb.new")
    nbformat.write(notebook, fresh)
    fresh.replace(path)
    if path == PICTURE_OF:
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_bytes(first_picture(notebook))


if __name__ == "__main__":
    # A download bar depends on what was here before the run: it must not get into the file.
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    for name in sys.argv[1:] or paths():
        print(name, flush=True)
        store(Path(name).resolve())
