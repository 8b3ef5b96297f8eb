"""A learner's own copy of the notebooks: make it, and put a page of it back as it came."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from helpers.core import files
from helpers.tools.notebooks import NOTEBOOKS

PAGES = "[0-9][0-9]_*.ipynb"


def notebooks(rest: list[str]) -> int:
    """Copy the notebooks into a learner's folder; what is there already stays as it is."""
    parser = argparse.ArgumentParser("python -m helpers notebooks", description=notebooks.__doc__)
    parser.add_argument("folder", type=Path, help="made if it is missing")
    folder = parser.parse_args(rest).folder.resolve()
    _require_notebooks()
    if folder.is_relative_to(NOTEBOOKS.resolve()):
        parser.error(f"{folder} holds the originals: name a folder outside of it")
    sources = [path.relative_to(NOTEBOOKS) for path in NOTEBOOKS.rglob("*") if path.is_file()]
    wanted = [path for path in sources if not any(part.startswith(".") for part in path.parts)]
    new = [path for path in sorted(wanted) if not os.path.lexists(folder / path)]
    try:
        for path in new:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with files.atomic_write(folder / path) as part:
                shutil.copyfile(NOTEBOOKS / path, part)
    except OSError as error:
        sys.exit(f"{folder} could not be filled: {error}")
    print(f"{folder}: {len(new)} files are new, {len(wanted) - len(new)} were there and stay.")
    return 0


def reset(rest: list[str]) -> int:
    """Put pages back as they came; the learner's version of each stays beside it."""
    parser = argparse.ArgumentParser("python -m helpers reset", description=reset.__doc__)
    number = {"type": lambda text: text.zfill(2), "metavar": "number"}
    parser.add_argument("numbers", nargs="+", **number, help="such as 01; several at once will do")
    parser.add_argument("--folder", type=Path, help="default: here, else the tutorial's notebooks")
    given = parser.parse_args(rest)
    _require_notebooks()
    folder = given.folder or (Path.cwd() if any(Path.cwd().glob(PAGES)) else NOTEBOOKS)
    pages = _originals(folder)
    for one in given.numbers:  # all of them before the first page is touched
        if one not in pages:
            parser.error(f"there is no notebook {one}: choose from {', '.join(pages)}")
    try:
        for one in dict.fromkeys(given.numbers):
            name, read = pages[one]
            print(_restore(folder / name, read()))
    except OSError as error:
        sys.exit(f"{error}\nIs {folder} yours to write in? `notebooks FOLDER` makes your own copy.")
    return 0


def _require_notebooks() -> None:
    if not any(NOTEBOOKS.glob(PAGES)):
        sys.exit("The notebooks are not here: get the repository, and run this in it.")


def _originals(folder: Path) -> dict[str, tuple[str, Callable[[], bytes]]]:
    """Return each page's name and what reads its original, by number: from git for the checkout."""
    if folder.resolve() == NOTEBOOKS.resolve():
        names = _git("ls-tree", "--name-only", "HEAD", "notebooks/").decode().split()
        found = {
            Path(name).name: partial(_git, "cat-file", "--filters", f"HEAD:./{name}")
            for name in names
        }
    else:
        found = {path.name: path.read_bytes for path in sorted(NOTEBOOKS.glob(PAGES))}
    return {name[:2]: (name, read) for name, read in found.items() if Path(name).match(PAGES)}


def _git(*arguments: str) -> bytes:
    try:
        command = ["git", "-C", str(files.ROOT), *arguments]
        return subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error).encode()).decode().strip()
        sys.exit(
            f"git has no original of these pages ({said}): get the repository once more, in "
            "another folder, and run `reset` there with --folder and this one."
        )


def _restore(page: Path, original: bytes) -> str:
    """Write a page's original in its place; what was there is kept under a name of its own."""
    said = f"{page}: back as it came"
    if page.exists():
        if page.read_bytes() == original:
            return f"{page}: unchanged, so there is nothing to put back"
        said += f"; yours is {_keep(page).name}. Open pages: File, Reload Notebook from Disk."
    with files.atomic_write(page) as part:
        part.write_bytes(original)
    return said


def _keep(page: Path) -> Path:
    """Give the learner's version a second name, which nothing has yet; return it."""
    moment, count = time.strftime("%Y-%m-%d-%H%M"), 1
    while True:
        mine = page.with_name(f"{page.stem}.mine-{moment}{f'-{count}' if count > 1 else ''}.ipynb")
        try:
            os.link(page, mine)  # fails if there is such a file, and never leaves half of one
            return mine
        except FileExistsError:
            count += 1
