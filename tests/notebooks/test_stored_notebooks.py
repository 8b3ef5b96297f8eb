"""The stored notebook files are what they should be, and each check that says so can fail."""

import copy
import json
import re

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
            code(1, "import helpers\n\nimport torch"),
            code(2, "print(1)", _output("1\n")),
            code(3, "x = 1\nassert x == 1", _output("7 ms\n"), tags=[checks.IGNORE]),
            code(4, "assert x", tags=[checks.IGNORE]),
        ],
    }


def _set(path, value):
    def change(notebook):
        for key in path[:-1]:
            notebook = notebook[key]
        notebook[path[-1]] = value

    return change


BAD_STORED = {
    "case_94_kernel_of_the_author": (
        _set(["metadata", "kernelspec"], {"name": "conda-env-x-py"}),
        "kernelspec",
    ),
    "case_94_no_kernel": (_set(["metadata"], {}), "kernelspec"),
    "case_95_widget_state": (_set(["metadata", "widgets"], {}), "metadata.widgets"),
    "stripped": (_set(["cells", 2, "execution_count"], None), "not executed"),
    "out_of_order": (_set(["cells", 2, "execution_count"], 9), "not executed"),
    "all_ignored": (_set(["cells", 2, "metadata", "tags"], [checks.IGNORE]), "more than half"),
    "case_90_stderr": (
        _set(["cells", 2, "outputs"], [_output("UserWarning: x", "stderr")]),
        "stderr",
    ),
    "error": (
        _set(["cells", 2, "outputs"], [{"output_type": "error", "ename": "E", "evalue": ""}]),
        "uncaught",
    ),
    "case_97_home_path": (
        _set(["cells", 2, "outputs"], [_output("/home/ann/x.py")]),
        "machine path",
    ),
    "case_97_windows_path": (
        _set(["cells", 2, "outputs"], [_output("C:\\Users\\ann")]),
        "machine path",
    ),
    "case_97_iprogress": (
        _set(["cells", 2, "outputs"], [_output("TqdmWarning: IProgress not found")]),
        "debris",
    ),
    "case_90_progress_bar": (
        _set(["cells", 2, "outputs"], [_output(" 50%|█████     | 5/10")]),
        "debris",
    ),
    "skipped": (_set(["cells", 2, "metadata", "tags"], ["nbval-skip"]), "skipped"),
    "ignored_without_assertion": (_set(["cells", 3, "source"], "x = 1"), "assertion"),
    "picture_without_words": (
        _set(
            ["cells", 2, "outputs"],
            [{"output_type": "display_data", "data": {"image/png": "iVBOR"}}],
        ),
        "alternative text",
    ),
    "html_picture_without_words": (
        _set(
            ["cells", 2, "outputs"],
            [{"output_type": "display_data", "data": {"text/html": '<img src="data:x">'}}],
        ),
        "alternative text",
    ),
}
BAD_PAGE = {
    "long_cell": (_set(["cells", 2, "source"], "x = 1\n" * 26), "26 lines"),
    "long_median": (
        lambda nb: [c.update(source="import helpers\n" + "x = 1\n" * 7) for c in nb["cells"][1:]],
        "median",
    ),
    "magic": (_set(["cells", 2, "source"], "%time x"), "magic"),
    "shell": (_set(["cells", 2, "source"], "!pip install x"), "magic"),
    "late_import": (_set(["cells", 4, "source"], "import json"), "imports stand"),
    "helpers_not_first": (
        _set(["cells", 1, "source"], "import torch\nimport helpers"),
        "imported first",
    ),
    "heading_jump": (
        lambda nb: nb["cells"].append({"cell_type": "markdown", "source": "### Deep"}),
        "heading",
    ),
    "two_titles": (
        lambda nb: nb["cells"].append({"cell_type": "markdown", "source": "# Again"}),
        "one title",
    ),
    "image_without_words": (
        lambda nb: nb["cells"].append({"cell_type": "markdown", "source": "![](a.png)"}),
        "image",
    ),
    "dead_link": (
        lambda nb: nb["cells"].append({"cell_type": "markdown", "source": "[x](nowhere.ipynb)"}),
        "nowhere",
    ),
}


def test_a_good_notebook_has_no_fault(tmp_path):
    assert checks.check_stored(_good()) + checks.check_page(_good(), tmp_path) == []


@pytest.mark.parametrize(("spoil", "complaint"), BAD_STORED.values(), ids=BAD_STORED)
def test_stored_fault_is_found(spoil, complaint):
    notebook = copy.deepcopy(_good())
    spoil(notebook)
    assert complaint in "\n".join(checks.check_stored(notebook))


@pytest.mark.parametrize(("spoil", "complaint"), BAD_PAGE.values(), ids=BAD_PAGE)
def test_page_fault_is_found(spoil, complaint, tmp_path):
    notebook = copy.deepcopy(_good())
    spoil(notebook)
    assert complaint in "\n".join(checks.check_page(notebook, tmp_path))


def test_there_are_notebooks():
    assert [path.name[:2] for path in PATHS if path.parent == notebooks.NOTEBOOKS][:2] == [
        "00",
        "01",
    ]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(notebooks.NOTEBOOKS)))
def test_stored_notebook_has_no_fault(path):
    assert checks.check_file(path) == []


def test_no_lesson_shows_a_solution():
    """A lesson must not hold a line of its solutions' answers."""
    for path in PATHS:
        if path.parent == notebooks.NOTEBOOKS:
            continue
        lesson, solutions = (
            json.loads(p.read_text(encoding="utf-8"))
            for p in (path.parent.parent / path.name, path)
        )
        told = {
            line.strip()
            for cell in checks.code_cells(lesson)
            for line in checks.source(cell).splitlines()
        }
        answers = [
            c
            for c in checks.code_cells(solutions)
            if re.search(r"^answer_\w+ =", checks.source(c), re.M)
        ]
        assert answers, f"{path}: no cell gives an answer"
        for cell in answers:
            lines = {
                line.strip()
                for line in checks.source(cell).splitlines()
                if line.startswith("answer_")
            }
            assert not lines & told, f"{path}: the lesson holds {lines & told}"


def test_needs_stay_within_binder():
    """No lesson may need more than 90 s on two cores or 1.5 GB."""
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


def test_readme_picture_is_the_notebooks_own():
    """The picture in the README is the one in the stored notebook, with words beside it."""
    notebook = nbformat.read(store_notebooks.START, as_version=4)
    assert store_notebooks.PICTURE.read_bytes() == store_notebooks.first_picture(notebook)
    readme = (notebooks.ROOT / "README.md").read_text(encoding="utf-8")
    link = store_notebooks.PICTURE.relative_to(notebooks.ROOT).as_posix()
    assert re.search(rf"!\[[^\]]{{40,}}\]\({link}\)", readme)
