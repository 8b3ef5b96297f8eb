"""What every stored notebook must look like: functions from a notebook to a list of complaints.

The stored file is what a website shows and what nbval compares, so it is checked as a file:
kernel, order, sizes, machine paths, widget debris, alternative text, links, the parts of a lesson.
"""

import ast
import json
import re
import statistics
from pathlib import Path

from helpers.tools import notebooks

IGNORE = "nbval-ignore-output"
_IMPORTS = ast.Import | ast.ImportFrom
LONGEST_CELL, MEDIAN_CELL, LARGEST_FILE = 20, 6, 1_500_000
_MACHINE_PATH = re.compile(
    r"(?<![\w.:/])(?:/(?:root|home|Users|tmp|opt|mnt|var|work|srv|private)/|[A-Za-z]:\\+Users)"
)
_DEBRIS = re.compile(r"\d+%\|[█▏▎▍▌▋▊▉ ]*|\d+(?:\.\d+)?(?:it|B|kB|MB|GB)/s|TqdmWarning|IProgress")
_MAGIC = re.compile(r"^\s*[!%]|\bget_ipython\(\)\.(?:system|run_(?:line|cell)_magic)", re.MULTILINE)
_IMAGE = re.compile(r"!\[([^\]]*)\]\(|<img\b(?![^>]*\balt=\"[^\"]+\")")
_PICTURE = re.compile(r"<img\b(?![^>]*\balt=\"[^\"]+\")")
_REPEATED = re.compile(r'alt="([^"]+)"[^>]*>\s*<figcaption[^>]*>\1<')
_SHORT_ANSWER = 12  # lines that are not blank
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


def load(path: Path) -> dict:
    """Read a notebook file."""
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(notebook: dict) -> list[dict]:
    """Return the code cells that hold code."""
    return [c for c in notebook["cells"] if c["cell_type"] == "code" and source(c).strip()]


def source(cell: dict) -> str:
    """Return a cell's text (the format allows a list of lines)."""
    return "".join(cell["source"])


def tags(cell: dict) -> list[str]:
    """Return a cell's tags."""
    return cell.get("metadata", {}).get("tags", [])


def check_stored(notebook: dict) -> list[str]:
    """Find faults of the stored run: nbval would test nothing, or another machine shows."""
    faults = []
    meta, code = notebook["metadata"], code_cells(notebook)
    if meta.get("kernelspec", {}).get("name") != "python3":
        faults.append("kernelspec is not python3: other machines have no such kernel")
    if "widgets" in meta:
        faults.append("metadata.widgets is stored: some sites refuse to show such a notebook")
    if [cell.get("execution_count") for cell in code] != list(range(1, len(code) + 1)):
        faults.append("not executed once, top to bottom: nbval skips cells without a count")
    if sum(IGNORE in tags(cell) for cell in code) > len(code) / 2:
        faults.append("more than half of the code cells ignore their output")
    for number, cell in enumerate(code, 1):
        faults += [f"code cell {number} {fault}" for fault in _check_outputs(cell)]
    return faults


def _check_outputs(cell: dict) -> list[str]:
    faults, outputs = [], cell["outputs"]
    text = json.dumps(outputs, ensure_ascii=False)
    text = re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)  # pictures are data, not words
    if any(output.get("name") == "stderr" for output in outputs):
        faults.append("stores stderr")
    if any(output["output_type"] == "error" for output in outputs):
        faults.append("stores an uncaught error: catch it and show it")
    if path := _MACHINE_PATH.search(text):
        faults.append(f"stores a machine path: {path[0]}")
    if debris := _DEBRIS.search(text):
        faults.append(f"stores progress-bar debris: {debris[0]!r}")
    if "nbval-skip" in tags(cell):
        faults.append("is skipped by nbval")
    if IGNORE in tags(cell) and not isinstance(ast.parse(source(cell)).body[-1], ast.Assert):
        faults.append("ignores its output and does not end in an assertion")
    for data in (output.get("data", {}) for output in outputs):
        if "image/png" in data or _PICTURE.search("".join(data.get("text/html", ""))):
            faults.append("shows a picture without alternative text")
        if _REPEATED.search("".join(data.get("text/html", ""))):
            faults.append("has a caption that repeats the alternative text: one interprets")
        said = "".join(data.get("text/plain", ""))
        if any("widget-view" in kind for kind in data) and not re.fullmatch(r"\([A-Z].*\.\)", said):
            faults.append("stores no sentence in a widget's place: use widgets.frame.explorer")
    return faults


def check_page(notebook: dict, folder: Path) -> list[str]:
    """Find faults of the notebook as a text: long cells, late imports, headings, images, links."""
    faults, code = [], code_cells(notebook)
    lengths = [len(source(cell).strip().splitlines()) for cell in code]
    if code and source(code[0]) != notebooks.guard():
        faults.append("does not import helpers first, in the cell of data/templates/guard.txt")
    if code and (middle := statistics.median(lengths)) > MEDIAN_CELL:
        faults.append(f"the median code cell has {middle} lines, more than {MEDIAN_CELL}")
    for number, (cell, length) in enumerate(zip(code, lengths, strict=True), 1):
        if length > LONGEST_CELL:
            faults.append(f"code cell {number} has {length} lines")
        if _MAGIC.search(source(cell)):
            faults.append(f"code cell {number} uses a shell escape or magic")
        elif number > 4 and any(isinstance(n, _IMPORTS) for n in ast.parse(source(cell)).body):
            faults.append(f"code cell {number} imports: imports stand in the first four code cells")
    prose = [source(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    prose = [re.sub(r"```.*?```", "", text, flags=re.DOTALL) for text in prose]
    faults += _check_headings("\n".join(prose))
    for text in prose:
        if any(not match[1] for match in _IMAGE.finditer(text)):
            faults.append("an image has no alternative text")
        for link in _LINK.findall(text):
            target = link.split("#")[0]
            if target and not re.match(r"[a-z]+:", target) and not (folder / target).exists():
                faults.append(f"a link leads nowhere: {link}")
    return faults


def _check_headings(prose: str) -> list[str]:
    faults, level = [], 0
    for hashes in re.findall(r"^(#+) ", prose, re.MULTILINE):
        if len(hashes) > level + 1:
            faults.append(f"a heading of level {len(hashes)} follows one of level {level}")
        if len(hashes) == 1 and level:
            faults.append("there is more than one title")
        level = len(hashes)
    return faults


def short_answer(notebook: dict) -> str:
    """Return the first code below the heading *The short answer* that has none of our helpers."""
    begun = False
    for cell in notebook["cells"]:
        text = source(cell)
        begun = begun or "\n## The short answer" in f"\n{text}"
        if begun and cell["cell_type"] == "code" and "from helpers" not in text:
            return text
    return ""


def check_lesson(path: Path) -> list[str]:
    """Find faults of a lesson as a lesson: its opening, exercises, summary, solutions."""
    notebook = load(path)
    try:
        lesson = notebooks.read(path)
    except ValueError as error:
        return [str(error)]
    faults = []
    if not lesson.title.endswith("?"):
        faults.append("the title is not a question")
    if "**Before this:**" not in source(notebook["cells"][0]):
        faults.append("the first cell does not say what came before")
    prose = "\n".join(source(c) for c in notebook["cells"] if c["cell_type"] == "markdown")
    code = "\n".join(source(cell) for cell in code_cells(notebook))
    for name in ("Exercises", "Summary"):
        if f"\n## {name}" not in "\n" + prose:
            faults.append(f"no section '{name}'")
    answer = [line for line in short_answer(notebook).splitlines() if line.strip()]
    if not 0 < len(answer) <= _SHORT_ANSWER:
        faults.append(f"the short answer has {len(answer)} lines, not 1 to {_SHORT_ANSWER}")
    if len(re.findall(r"exercises\.check_", code)) < 2:
        faults.append("fewer than two exercises are checked")
    if not (path.parent / "solutions" / path.name).exists():
        faults.append("its solutions notebook is missing")
    return faults


def check_file(path: Path) -> list[str]:
    """Find all faults of one notebook file."""
    notebook = load(path)
    faults = check_stored(notebook) + check_page(notebook, path.parent)
    if path.stat().st_size > LARGEST_FILE:
        faults.append(f"the file has {path.stat().st_size / 1e6:.1f} MB")
    return faults + (check_lesson(path) if path.parent.name == "notebooks" else [])
