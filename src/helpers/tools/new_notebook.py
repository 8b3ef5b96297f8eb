"""Begin a notebook from templates: the notebook, its solutions, its exercises and their test."""

import argparse
import re
from pathlib import Path

from helpers.core import files
from helpers.tools import store_notebooks

TEMPLATES = files.DATA / "templates"


def plan(number: str, title: str) -> dict[str, Path]:
    """Return for each template the file that it becomes, with the title's words in its name."""
    words = re.findall(r"[a-z0-9]+", title.lower())
    name = "_".join([number, *words[:6]]) + ".ipynb"
    return {
        "notebook.ipynb": files.ROOT / "notebooks" / name,
        "solutions.ipynb": files.ROOT / "notebooks" / "solutions" / name,
        "exercises.py.txt": files.ROOT / "src/helpers/exercises" / f"lesson_{number}.py",
        "test_exercises.py.txt": files.ROOT / "tests/exercises" / f"test_exercises_{number}.py",
    }


def main(argv: list[str] | None = None) -> int:
    """Write the files of a new notebook and the tables that list it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m helpers new-notebook", description=__doc__)
    parser.add_argument("number", help="two digits, such as 09")
    parser.add_argument("title", help="a question, in quotes")
    given = parser.parse_args(argv)
    if not re.fullmatch(r"\d\d", given.number):
        parser.error(f"the number has two digits, such as 09, not {given.number!r}")
    if not re.search(r"[A-Za-z0-9].*\?$", given.title):
        parser.error("the title is a question: it ends in a question mark")
    targets = plan(given.number, given.title)
    taken = [*files.ROOT.glob(f"notebooks/{given.number}_*.ipynb"), *targets.values()]
    if existing := [path for path in taken if path.exists()]:
        parser.error(f"{existing[0].relative_to(files.ROOT)} exists already")
    for template, target in targets.items():
        title = given.title
        if template.endswith(".ipynb"):
            title = title.replace("\\", "\\\\").replace('"', '\\"')
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        text = text.replace("NN", given.number).replace("TITLE", title)
        target.write_text(text.replace("FILE", targets["notebook.ipynb"].name), encoding="utf-8")
        print(target.relative_to(files.ROOT))
    store_notebooks.write_tables()
    print(f"Fill them, then run and store them: python -m helpers store-notebooks {given.number}")
    return 0
