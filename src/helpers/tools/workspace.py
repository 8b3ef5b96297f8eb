"""A learner's own copy of the notebooks: make it, and put a page of it back as it came."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from helpers.tools.commands import require_checkout, write
from helpers.tools.notebooks import NOTEBOOKS, PAGES, pages


def notebooks(rest: list[str]) -> int:
    """Copy the notebooks into a folder of your own; what is there already stays as it is."""
    parser = argparse.ArgumentParser("python -m helpers notebooks", description=notebooks.__doc__)
    parser.add_argument("folder", type=Path, help="made if it is missing")
    folder = parser.parse_args(rest).folder.resolve()
    require_checkout()
    if folder.is_relative_to(NOTEBOOKS.resolve()):
        parser.error(f"{folder} holds the originals: name a folder outside of it")
    paths = [path.relative_to(NOTEBOOKS) for path in NOTEBOOKS.rglob("*") if path.is_file()]
    wanted = [path for path in paths if not path.match(".*") and ".mine-" not in path.name]
    new = [path for path in wanted if not os.path.lexists(folder / path)]
    write(parser, ((folder / path, (NOTEBOOKS / path).read_bytes()) for path in new))
    print(f"{folder}: {len(new)} files are new, {len(wanted) - len(new)} were there and stay.")
    return 0


def reset(rest: list[str]) -> int:
    """Put pages back as they came; your version of each stays beside it."""
    parser = argparse.ArgumentParser("python -m helpers reset", description=reset.__doc__)
    number = {"type": lambda text: text.zfill(2), "metavar": "number"}
    parser.add_argument("numbers", nargs="+", **number, help="such as 01; several at once will do")
    parser.add_argument("--folder", type=Path, help="default: here, else the tutorial's notebooks")
    given = parser.parse_args(rest)
    require_checkout()
    here = Path.cwd() if any(Path(page.name).exists() for page in pages()) else NOTEBOOKS
    folder = (given.folder or here).resolve()
    # Solutions have the names of their notebooks, and originals of their own.
    inner = "solutions/" if folder.name == "solutions" and pages(folder.parent) else ""
    copy = folder != (NOTEBOOKS / inner).resolve()
    # A copy's originals are the checkout's pages, and those of the checkout itself git's.
    names = [path.name for path in pages()] if copy else _git("ls-files", PAGES).decode().split()
    names = {name[:2]: name for name in names}
    if unknown := sorted(set(given.numbers) - set(names)):  # before the first page is touched
        parser.error(f"no notebook {', '.join(unknown)}: choose from {', '.join(names)}")
    chosen = [folder / names[number] for number in dict.fromkeys(given.numbers)]
    for path in (folder, *filter(os.path.lexists, chosen)):
        if not os.access(path, os.R_OK | os.W_OK) or (path != folder and path.is_dir()):
            parser.error(f"{path} is missing, protected or a folder: notebooks FOLDER makes a copy")
    for page in chosen:
        name = inner + page.name
        original = (NOTEBOOKS / name).read_bytes() if copy else _git("show", f"HEAD:./{name}")
        print(_restore(parser, page, original))
    return 0


def _git(*arguments: str) -> bytes:
    """Return what git prints in the folder of the checkout's notebooks; exit where it fails."""
    try:
        command = ["git", "-C", str(NOTEBOOKS), *arguments]
        return subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", b"").decode().strip() or error
        sys.exit(
            f"git has no original of these pages: {why}\nIf you have a copy of your own, run this "
            "in its folder. Else get the tutorial once more, in another folder, and run there: "
            f"python3 tutorial.py reset NUMBER --folder {NOTEBOOKS}"
        )


def _restore(parser: argparse.ArgumentParser, page: Path, original: bytes) -> str:
    """Write a page's original in its place, and first what was there beside it."""
    said, contents = f"{page}: back as it came", [(page, original)]
    if page.exists():
        yours = page.read_bytes()
        mine = page.with_suffix(time.strftime(".mine-%Y-%m-%d-%H%M.ipynb"))
        if yours == original:
            return f"{page}: unchanged, nothing to do"
        while os.path.lexists(mine):  # a second one in this minute
            mine = mine.with_stem(f"{mine.stem}-2")
        contents.insert(0, (mine, yours))
        said += f", yours is {mine.name} (in JupyterLab: File, Reload Notebook from Disk)"
    write(parser, contents)
    return said
