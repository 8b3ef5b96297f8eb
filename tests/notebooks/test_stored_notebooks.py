"""The stored notebook files are what they should be, and each check that says so can fail."""

import copy
import re
import subprocess
import sys
from pathlib import Path

from helpers.tools import notebook_checks as checks
from helpers.tools import notebooks, store_notebooks

import nbformat
import pytest

PATHS = store_notebooks.paths()


def _output(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def _good():
    """A notebook without a fault: title, import, result, an ignored cell that asserts."""

    def code(number, text, *outputs, tags=()):
        cell = {
            "cell_type": "code",
            "source": text,
            "execution_count": number,
            "outputs": list(outputs),
        }
        return cell | {"metadata": {"tags": list(tags)}}

    return {
        "metadata": {"kernelspec": {"name": "python3"}},
        "cells": [
            {
                "cell_type": "markdown",
                "source": "# Why?\n\n![two bars](data:x) and [Python](https://www.python.org)",
            },
            code(1, notebooks.guard()),
            code(2, "print(1)", _output("1\n")),
            code(3, "x = 1\nassert x == 1", _output("7 ms\n"), tags=[checks.IGNORE]),
            code(4, "assert x", tags=[checks.IGNORE]),
            code(5, "x"),
        ],
    }


def _spoiled(path, value):
    """The good notebook with another value at a path: its keys and places."""
    notebook = held = copy.deepcopy(_good())
    for key in path[:-1]:
        held = held[key]
    held[path[-1]] = value
    return notebook


OUTPUTS, PNG = ["cells", 2, "outputs"], {"image/png": "iVBOR"}
ERROR = {"output_type": "error", "ename": "E", "evalue": ""}
BARE = {"text/html": '<img src="data:x">'}
TWICE = {"text/html": '<img src="data:x" alt="A line."><figcaption>A line.</figcaption>'}
WIDGET = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "VBox(children=(Text(),))"}
BAD_STORED = {
    "case_94_author's_kernel": (["metadata", "kernelspec"], {"name": "conda-x-py"}, "kernelspec"),
    "case_94_no_kernel": (["metadata"], {}, "kernelspec"),
    "case_95_widget_state": (["metadata", "widgets"], {}, "metadata.widgets"),
    "stripped": (["cells", 2, "execution_count"], None, "not executed"),
    "out_of_order": (["cells", 2, "execution_count"], 9, "not executed"),
    "all_ignored": (["cells", 2, "metadata", "tags"], [checks.IGNORE], "more than half"),
    "case_90_stderr": (OUTPUTS, [_output("UserWarning: x", "stderr")], "stderr"),
    "error": (OUTPUTS, [ERROR], "uncaught"),
    "case_97_home_path": (OUTPUTS, [_output("/home/ann/x.py")], "machine path"),
    "case_97_windows_path": (OUTPUTS, [_output("C:\\Users\\ann")], "machine path"),
    "case_97_iprogress": (OUTPUTS, [_output("TqdmWarning: IProgress not found")], "debris"),
    "case_90_progress_bar": (OUTPUTS, [_output(" 50%|█████     | 5/10")], "debris"),
    "skipped": (["cells", 2, "metadata", "tags"], ["nbval-skip"], "skipped"),
    "ignored_without_assertion": (["cells", 3, "source"], "x = 1", "assertion"),
    "picture": (OUTPUTS, [{"output_type": "display_data", "data": PNG}], "alternative text"),
    "html_picture": (OUTPUTS, [{"output_type": "display_data", "data": BARE}], "alternative text"),
    "one_text_twice": (OUTPUTS, [{"output_type": "display_data", "data": TWICE}], "repeats"),
    "widget": (OUTPUTS, [{"output_type": "display_data", "data": WIDGET}], "widget's place"),
}
BAD_PAGE = {
    "long_cell": (["cells", 2, "source"], "x = 1\n" * 26, "26 lines"),
    "long_median": (["cells"], [_good()["cells"][2] | {"source": "x\n" * 7}] * 3, "median"),
    "magic": (["cells", 2, "source"], "%time x", "magic"),
    "shell": (["cells", 2, "source"], "!pip install x", "magic"),
    "late_import": (["cells", 5, "source"], "import json", "imports stand"),
    "helpers_not_first": (["cells", 1, "source"], "import torch\nimport helpers", "guard"),
    "heading_jump": (["cells", 0, "source"], "# Why?\n### Deep", "heading"),
    "two_titles": (["cells", 0, "source"], "# Why?\n# Again", "one title"),
    "image_without_words": (["cells", 0, "source"], "![](a.png)", "image"),
    "dead_link": (["cells", 0, "source"], "[x](nowhere.ipynb)", "nowhere"),
}


def test_a_good_notebook_has_no_fault(tmp_path):
    assert checks.check_stored(_good()) + checks.check_page(_good(), tmp_path) == []


@pytest.mark.parametrize(("path", "value", "complaint"), BAD_STORED.values(), ids=BAD_STORED)
def test_stored_fault_is_found(path, value, complaint):
    assert complaint in "\n".join(checks.check_stored(_spoiled(path, value)))


@pytest.mark.parametrize(("path", "value", "complaint"), BAD_PAGE.values(), ids=BAD_PAGE)
def test_page_fault_is_found(path, value, complaint, tmp_path):
    assert complaint in "\n".join(checks.check_page(_spoiled(path, value), tmp_path))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(notebooks.NOTEBOOKS)))
def test_stored_notebook_has_no_fault(path):
    assert checks.check_file(path) == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(notebooks.NOTEBOOKS)))
def test_a_notebook_alone_says_what_it_lacks(path, tmp_path):
    """Its first cell in an empty folder, then beside another project's package of that name."""
    first = checks.source(checks.code_cells(checks.load(path))[0])
    command = [sys.executable, "-I", "-S", "-c", f"import sys\nsys.path.insert(0, '.')\n{first}"]
    for _ in ("alone", "beside a stranger"):
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr
        way_out = "Download the whole tutorial, and in its folder run: python3 tutorial.py lab"
        assert said.splitlines()[-1] == f"ImportError: {way_out}"
        assert said.count("Traceback") == 1
        (tmp_path / "helpers.py").touch()


def test_the_short_answer_is_the_first_code_of_its_own_below_the_heading():
    cells = [
        "## The short answer\n\nSo:",
        "from helpers import x",
        "import torch\n\nx = 1",
        "y = 2",
    ]
    kinds = ["markdown", *["code"] * 3]
    page = [{"cell_type": k, "source": text} for k, text in zip(kinds, cells, strict=True)]
    assert checks.short_answer({"cells": page}) == "import torch\n\nx = 1"
    assert checks.short_answer({"cells": page[1:]}) == ""


def test_storing_writes_the_repository_into_the_first_cell_once_there_is_one(tmp_path, monkeypatch):
    address = "https://example.org/somebody/bert-on-any-device"
    (tmp_path / "pyproject.toml").write_text(f'[project.urls]\nRepository = "{address}"\n')
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("try:  # an old address")])
    nbformat.write(page, tmp_path / "page.ipynb")
    client, given = store_notebooks.nbclient.NotebookClient, {}
    monkeypatch.setattr(client, "execute", lambda self, env: given.update(env))
    store_notebooks.store(tmp_path / "page.ipynb")
    assert not Path(given["TMPDIR"]).exists()  # what the kernel left there is gone
    (cell,) = nbformat.read(tmp_path / "page.ipynb", as_version=4).cells
    assert f'home = "{address}"' in cell.source


def test_no_lesson_shows_a_solution():
    """A lesson must not hold a line of its solutions' answers."""
    for path in (path for path in PATHS if path.parent != notebooks.NOTEBOOKS):
        lesson, solutions = (
            "\n".join(checks.source(cell) for cell in checks.code_cells(checks.load(each)))
            for each in (path.parent.parent / path.name, path)
        )
        answers = set(re.findall(r"^answer_\w+ =.*", solutions, re.MULTILINE))
        assert answers, f"{path}: no cell gives an answer"
        shown = answers & set(re.findall(r"^answer_\w+ =.*", lesson, re.MULTILINE))
        assert not shown, f"{path}: the lesson holds {shown}"


def test_needs_stay_within_binder():
    """No lesson may need more than 90 s on two cores or 1.5 GB; and there are lessons."""
    assert [lesson.number for lesson in notebooks.lessons()][:2] == ["00", "01"]
    assert all(lesson.seconds <= 90 and lesson.gigabytes <= 1.5 for lesson in notebooks.lessons())


def test_the_tables_are_those_of_the_notebooks():
    """README and notebook 00 list title, needs and recipe of every notebook as it is now."""
    readme = store_notebooks.README.read_text(encoding="utf-8")
    assert store_notebooks.with_tables(readme, "notebooks/") == readme
    prose = [cell for cell in checks.load(store_notebooks.START)["cells"] if cell["source"]]
    start = "\n\n".join(checks.source(c) for c in prose if c["cell_type"] == "markdown")
    assert store_notebooks.with_tables(start, "") == start
    for lesson in notebooks.lessons():
        assert f"| [{lesson.number}](notebooks/{lesson.path.name}) | {lesson.title} |" in readme
        assert f"| [{lesson.number}]({lesson.path.name}) | {lesson.title} |" in start
    for path in notebooks.recipes().values():
        assert f"[{path.name}](src/helpers/recipes/{path.name})" in readme
    guide = [sys.executable, notebooks.ROOT / "docs/guide.py", "--check"]
    assert subprocess.run(guide).returncode == 0  # the instructor's tables and questions, too


def test_readme_picture_is_the_notebooks_own():
    """The picture in the README is the one in the stored notebook, with words beside it."""
    notebook = nbformat.read(store_notebooks.START, as_version=4)
    assert store_notebooks.PICTURE.read_bytes() == store_notebooks.first_picture(notebook)
    readme = (notebooks.ROOT / "README.md").read_text(encoding="utf-8")
    link = store_notebooks.PICTURE.relative_to(notebooks.ROOT).as_posix()
    assert re.search(rf"!\[[^\]]{{40,}}\]\({link}\)", readme)
