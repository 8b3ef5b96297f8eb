"""What every stored notebook must look like, as plain functions from a notebook to a list of complaints.

The stored file is what a web page shows and what nbval compares, so it is checked as a file: kernel, order, sizes,
machine paths, widget debris, alternative text, links, the shape of a lesson.
"""

import ast
import json
import re
import statistics
import sys
from pathlib import Path

from helpers.tools import notebooks

IGNORE = "nbval-ignore-output"
LONGEST_CELL, MEDIAN_CELL, LARGEST_FILE = 25, 6, 1_500_000
_MACHINE_PATH = re.compile(
    r"(?<![\w.:/])(?:/(?:root|home|Users|tmp|opt|mnt|var|work|srv|private)/|[A-Za-z]:\\+Users)"
)
_DEBRIS = re.compile(r"\d+%\|[█▏▎▍▌▋▊▉ ]*|\d+(?:\.\d+)?(?:it|B|kB|MB|GB)/s|TqdmWarning|IProgress")
_MAGIC = re.compile(
    r"^\s*[!%]|\bget_ipython\(\)\.(?:system|run_line_magic|run_cell_magic)", re.MULTILINE
)
_IMAGE = re.compile(r"!\[([^\]]*)\]\(|<img\b(?![^>]*\balt=\"[^\"]+\")")
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


def code_cells(notebook: dict) -> list[dict]:
    """The code cells that hold code."""
    return [
        cell for cell in notebook["cells"] if cell["cell_type"] == "code" and source(cell).strip()
    ]


def source(cell: dict) -> str:
    """A cell's text (the format allows a list of lines)."""
    return "".join(cell["source"])


def tags(cell: dict) -> list[str]:
    """A cell's tags."""
    return cell.get("metadata", {}).get("tags", [])


def _package(node: ast.Import | ast.ImportFrom) -> str:
    """The top-level package that an import statement names."""
    return ((node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name).split(
        "."
    )[0]


def check_stored(notebook: dict) -> list[str]:
    """Faults of the stored run: what would make nbval test nothing, or a reader see another machine's dust."""
    faults = []
    meta, code = notebook["metadata"], code_cells(notebook)
    if meta.get("kernelspec", {}).get("name") != "python3":
        faults.append(
            "kernelspec is not python3: no such kernel on Binder or on a reader's machine"
        )
    if "widgets" in meta:
        faults.append("metadata.widgets is stored: some pages refuse to show such a notebook")
    if [cell.get("execution_count") for cell in code] != list(range(1, len(code) + 1)):
        faults.append(
            "not executed once, top to bottom: nbval skips cells without an execution count"
        )
    if sum(IGNORE in tags(cell) for cell in code) > len(code) / 2:
        faults.append("more than half of the code cells ignore their output")
    for number, cell in enumerate(code, 1):
        outputs = json.dumps(cell.get("outputs", []), ensure_ascii=False)
        text = re.sub(r"base64,[A-Za-z0-9+/=]+", "", outputs)  # pictures are data, not words
        if any(output.get("name") == "stderr" for output in cell["outputs"]):
            faults.append(f"code cell {number} stores stderr")
        if any(output["output_type"] == "error" for output in cell["outputs"]):
            faults.append(f"code cell {number} stores an uncaught error: catch it and show it")
        if _MACHINE_PATH.search(text):
            faults.append(
                f"code cell {number} stores a machine path: {_MACHINE_PATH.search(text)[0]}"
            )
        if _DEBRIS.search(text):
            faults.append(
                f"code cell {number} stores progress-bar debris: {_DEBRIS.search(text)[0]!r}"
            )
        if "nbval-skip" in tags(cell):
            faults.append(f"code cell {number} is skipped by nbval")
        if IGNORE in tags(cell) and not isinstance(ast.parse(source(cell)).body[-1], ast.Assert):
            faults.append(f"code cell {number} ignores its output and does not end in an assertion")
        for output in cell["outputs"]:
            html = "".join(output.get("data", {}).get("text/html", ""))
            if "image/png" in output.get("data", {}) or re.search(
                r"<img\b(?![^>]*\balt=\"[^\"]+\")", html
            ):
                faults.append(f"code cell {number} shows a picture without alternative text")
    return faults


def check_page(notebook: dict, folder: Path) -> list[str]:
    """Faults of the page as a text: cells too long, imports astray, headings out of order, images, links."""
    faults = []
    code = code_cells(notebook)
    lengths = [len(source(cell).strip().splitlines()) for cell in code]
    if code and statistics.median(lengths) > MEDIAN_CELL:
        faults.append(
            f"the median code cell has {statistics.median(lengths)} lines, more than {MEDIAN_CELL}"
        )
    faults += [f"code cell {i} has {n} lines" for i, n in enumerate(lengths, 1) if n > LONGEST_CELL]
    faults += [
        f"code cell {i} uses a shell escape or magic"
        for i, c in enumerate(code, 1)
        if _MAGIC.search(source(c))
    ]
    for number, cell in enumerate(code, 1):
        if _MAGIC.search(source(cell)):
            continue  # not Python, and reported above
        imports = [
            node
            for node in ast.parse(source(cell)).body
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        if number > 1 and imports:
            faults.append(f"code cell {number} imports: imports stand in the first code cell")
        foreign = [
            ast.unparse(node) for node in imports if _package(node) not in sys.stdlib_module_names
        ]
        if number == 1 and "helpers" not in "".join(foreign[:1]):
            faults.append(
                "helpers is not imported first: it sets what torch and transformers read at import"
            )
    level = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        prose = re.sub(r"```.*?```", "", source(cell), flags=re.DOTALL)
        for hashes in re.findall(r"^(#+) ", prose, re.MULTILINE):
            if len(hashes) > level + 1:
                faults.append(f"a heading of level {len(hashes)} follows one of level {level}")
            if len(hashes) == 1 and level:
                faults.append("there is more than one title")
            level = len(hashes)
        if any(not match[1] for match in _IMAGE.finditer(prose)):
            faults.append("an image has no alternative text")
        for link in _LINK.findall(prose):
            target = link.split("#")[0]
            if target and not re.match(r"[a-z]+:", target) and not (folder / target).exists():
                faults.append(f"a link leads nowhere: {link}")
    return faults


def check_lesson(path: Path) -> list[str]:
    """Faults of a lesson as a lesson: the opening, a question as title, what came before, exercises, a summary."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    faults = []
    try:
        lesson = notebooks.read(path)
    except ValueError as error:
        return [str(error)]
    if not lesson.title.endswith("?"):
        faults.append("the title is not a question")
    if "**Before this:**" not in source(notebook["cells"][0]):
        faults.append("the first cell does not say what came before")
    prose = "\n".join(source(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    code = "\n".join(source(cell) for cell in code_cells(notebook))
    faults += [
        f"no section '{name}'"
        for name in ("Exercises", "Summary")
        if f"\n## {name}" not in "\n" + prose
    ]
    if len(re.findall(r"exercises\.check_", code)) < 2:
        faults.append("fewer than two exercises are checked")
    if not (path.parent / "solutions" / path.name).exists():
        faults.append("its solutions notebook is missing")
    return faults


def check_file(path: Path) -> list[str]:
    """All faults of one notebook file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    faults = check_stored(notebook) + check_page(notebook, path.parent)
    if path.stat().st_size > LARGEST_FILE:
        faults.append(f"the file has {path.stat().st_size / 1e6:.1f} MB")
    return faults + (check_lesson(path) if path.parent.name == "notebooks" else [])
