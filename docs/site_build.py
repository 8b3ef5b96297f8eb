"""Build the tutorial as a static web site: `python -m helpers site FOLDER`.

Sphinx reads a temporary folder, where the stored notebooks lie beside docs/'s own pages and those
that are written here: the recipes, the error index, the glossary, "Will it fit?". No notebook is
run, and nothing is fetched.
"""

import argparse
import functools
import importlib.util
import json
import os
import re
import re._parser
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from pathlib import Path

from helpers.lessons import device_errors
from helpers.tools import notebooks

import fit_page

DOCS = Path(__file__).parent
OWN = sorted(DOCS.glob("*.md"))  # pages that are written by hand
NEEDS = ("myst_nb", "sphinx_book_theme", "sphinx_copybutton")
MISSING = 'The site needs more packages: pip install -e ".[site]" -c constraints.txt'
NO_LAUNCH = "No launch buttons: this repository has no remote `origin` on GitHub or GitLab."
TWO_DEVICES = (
    "Two devices in one operation: what the message names is on one, the rest on another. Move "
    "both, or neither."
)
INVENTORY, PROJECT = "objects.inv", b"# Project: BERT on any device\n"  # Sphinx writes it
REMOTE = re.compile(r"(?:://|@)(github|gitlab)\.com[:/](.+?)(?:\.git)?/?$")


def git(*arguments: str) -> str:
    """Return what git prints, or "" where it fails or there is none."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=notebooks.ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def launch_addresses(remote: str, branch: str) -> dict[str, str]:
    """Return where a copy of the repository can be run, with {notebook} for the file's path.

    Args:
        remote: The repository's address, as https or ssh.
        branch: What Colab opens; Binder takes the default branch.
    """
    found = REMOTE.search(remote)
    if not found:
        return {}
    host, name = found.groups()
    if host == "gitlab":
        name = urllib.parse.quote(name, safe="")
        return {"Binder": f"https://mybinder.org/v2/gl/{name}/HEAD?urlpath=lab/tree/{{notebook}}"}
    return {
        "Binder": f"https://mybinder.org/v2/gh/{name}/HEAD?urlpath=lab/tree/{{notebook}}",
        "Colab": f"https://colab.research.google.com/github/{name}/blob/{branch}/{{notebook}}",
    }


def anchor(heading: str) -> str:
    """Return the anchor that JupyterLab gives a heading: links in the notebooks name it."""
    return heading.replace(" ", "-")


@functools.cache  # of a file with all its pictures, which the error index asks for row by row
def prose(path: Path) -> str:
    """Return the Markdown of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def headings(path: Path) -> list[str]:
    """Return the headings of a notebook, without their marks."""
    return [text.replace("`", "") for text in re.findall(r"(?m)^#+ (.+)$", prose(path))]


def section(path: Path, heading: str) -> str:
    """Return the text of a notebook's section, with links that work one folder up."""
    text = re.search(rf"(?ms)^#+ {heading}\n(.+?)(?=^#|\Z)", prose(path))[1]
    text = re.sub(r"\]\((?=\d\d_)", "](notebooks/", text)
    return text.replace("](#", f"](notebooks/{path.name}#")


def wording(pattern: str) -> list[str]:
    """Return what a pattern finds as texts: its choices, each with … for what varies."""
    parsed = list(re._parser.parse(pattern))
    choices = [parsed]
    if str(parsed[-1][0]) == "BRANCH":  # what the choices begin with alike stands before them
        choices = [[*parsed[:-1], *choice] for choice in parsed[-1][1][1]]
    return [re.sub("…+", "…", _text(choice)).strip() for choice in choices]


def _text(parsed) -> str:
    """Return one text that a parsed pattern finds."""
    said = ""
    for kind, value in parsed:
        match str(kind):
            case "LITERAL":
                said += chr(value)
            case "SUBPATTERN":
                said += _text(value[-1])
            case "BRANCH":
                said += _text(value[1][0])
            case "IN" if str(value[0][0]) == "LITERAL":
                said += chr(value[0][1])
            case "MAX_REPEAT" if tuple(value[:2]) == (0, 1):
                pass  # may be missing
            case "AT" | "ASSERT" | "ASSERT_NOT":
                pass  # finds no characters
            case _:
                said += "…"
    return said


def errors_page() -> str:
    """Return the error index: messages, what they mean, the section to read."""
    pages = {lesson.number: lesson.path for lesson in notebooks.lessons()}
    lines = ["# Find your error", "## By symptom", section(pages["00"], "Find your error")]
    lines += ["## By message", "`python3 tutorial.py explain` knows these, and which side did not"]
    lines += ["move; … stands for what varies.\n", "| message | cause and way out |"]
    lines += ["|---|---|"]
    rows = []
    for text in device_errors.KNOWN["two devices"]:
        example = text.replace("AT", "cpu").replace("REST", "cuda:0")
        rows.append({"says": example, "means": TWO_DEVICES, "read": "01 What moves with the model"})
    for row in rows + device_errors.KNOWN["other"]:
        texts = wording(row["says"])
        number, _, title = row.get("read", "").partition(" ")
        link = ""
        if number:
            # Sections are numbered; what is to be read names them without.
            heading = next(one for one in headings(pages[number]) if one.endswith(title))
            link = f" Read [{number}, {title}](<notebooks/{pages[number].name}#{anchor(heading)}>)"
        means = re.sub(r"\$\d", "…", row["means"])
        cells = ["<br>".join(f"`` {text} ``" for text in texts), escaped(means) + link]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return a text whose signs Markdown leaves as they are, but for code in backticks."""
    return re.sub(r"([*_<>{}\[\]|])(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\1", text)


def recipe_page(path: Path, lesson: notebooks.Lesson) -> str:
    """Return the page of a recipe: what it does, where it is explained, its source."""
    return "\n".join(
        [
            f"# {path.name}",
            f"{notebooks.first_sentence(path)} Explained in notebook {lesson.number}, "
            f"[{lesson.title}](../notebooks/{lesson.path.name})\n",
            f"{{download}}`Download {path.name} <{path.name}>`\n",
            f"```{{literalinclude}} {path.name}\n:language: python\n```\n",
        ]
    )


def contents(caption: str, entries: dict[str, str]) -> str:
    """Return a part of the navigation; entries are titles by page."""
    listed = "\n".join(f"{title} <{page}>" for page, title in entries.items())
    return f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def relinked(text: str) -> str:
    """Return a text of the repository with links to the site's pages; others become plain text."""
    text = re.sub(r"\]\((?:\.\./|docs/)", "](", text)
    text = re.sub(r"\(src/helpers/(recipes/\w+)\.py", r"(\1.md", text)
    text = text.replace("(notebooks/solutions)", "(notebooks/solutions/00_start_here.ipynb)")
    pages = "|".join(["errors", "glossary", "fit", *(path.stem for path in OWN)])
    there = rf"https?:|#|notebooks/|recipes/|(?:{pages})\.md"
    return re.sub(rf"\[([^\]]*)\]\((?!{there})[^)]*\)", r"\1", text)


def index_page() -> str:
    """Return the first page: README's opening and tables, and the navigation."""
    readme = (notebooks.ROOT / "README.md").read_text(encoding="utf-8")
    opening, rest = readme.split("## Start", 1)[0], readme.split("## The notebooks", 1)[1]
    link = "[web site](docs/running.md#the-web-site) (`python3 tutorial.py site FOLDER` builds it)"
    opening = opening.replace(link, "page [Will it fit?](fit.md)")
    tables = "## The notebooks" + rest.split("## Encoders", 1)[0]
    lessons, recipes = notebooks.lessons(), notebooks.recipes().values()
    own = {path.stem: path.read_text(encoding="utf-8").split("\n")[0].strip("# ") for path in OWN}
    parts = [
        contents("Try it", {"fit": "Will it fit?"}),
        contents(
            "Notebooks",
            {f"notebooks/{one.path.stem}": f"{one.number} {one.title}" for one in lessons},
        ),
        contents("Code to take home", {f"recipes/{path.stem}": path.stem for path in recipes}),
        contents("Look it up", {"errors": "Find your error", "glossary": "Glossary"} | own),
        contents(
            "Solutions",
            {
                f"notebooks/solutions/{one.path.stem}": f"Solutions of {one.number}"
                for one in lessons
            },
        ),
    ]
    text = re.sub(r"(?<=\d) (?=(?:s|GB) \|)", "\N{NO-BREAK SPACE}", opening + tables)
    text = re.sub(r"\[([^\]]*)\]\(#[^)]*\)", r"\1", relinked(text))  # sections of README only
    return text + "\n" + "\n".join(parts)


def write_pages(source: Path) -> None:
    """Write everything that Sphinx reads into an empty folder."""
    left_out = shutil.ignore_patterns("ruff.toml", ".*", "__pycache__")
    shutil.copytree(notebooks.NOTEBOOKS, source / "notebooks", ignore=left_out)
    lessons = {lesson.number: lesson for lesson in notebooks.lessons()}
    pages = {
        "index": index_page(),
        "errors": errors_page(),
        "fit": fit_page.page(),
        "glossary": "# Glossary\n" + section(lessons["00"].path, "Glossary"),
    }
    pages |= {path.stem: relinked(path.read_text(encoding="utf-8")) for path in OWN}
    (source / "recipes").mkdir()
    for number, path in notebooks.recipes().items():
        shutil.copy(path, source / "recipes")
        pages[f"recipes/{path.stem}"] = recipe_page(path, lessons[number])
    for name, text in pages.items():
        (source / f"{name}.md").write_text(text, encoding="utf-8")


def build(work: Path) -> Path:
    """Let Sphinx build the site below an empty folder; SystemExit where a page has a fault."""
    remote = git("remote", "get-url", "origin")
    branch = git("rev-parse", "--abbrev-ref", "origin/HEAD").removeprefix("origin/")
    launch = launch_addresses(remote, branch or "main")
    if not launch:
        print(NO_LAUNCH)
    source, html = work / "source", work / "out" / "html"  # MyST-NB writes beside its output, too
    source.mkdir()
    write_pages(source)
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", str(DOCS)]
    options += ["--doctree-dir", str(work / "doctrees")]
    command = [sys.executable, "-P", "-m", "sphinx", *options, str(source), str(html)]
    extra = {"SITE_LAUNCH": json.dumps(launch)}
    paths = [str(DOCS), os.environ.get("PYTHONPATH", "")]  # Sphinx imports `anchor` from here
    extra["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if subprocess.call(command, env=os.environ | extra):
        sys.exit("Sphinx did not build the site: see above.")
    for path in notebooks.recipes().values():  # under its own name: each page links to its file
        shutil.copy(path, html / "recipes")
    return html


def holds_other_files(folder: Path) -> bool:
    """Return whether a folder has files and is no earlier site; hidden ones, as .git, may stay."""
    listing = folder / INVENTORY
    ours = listing.is_file() and PROJECT in listing.read_bytes()
    return not ours and any(folder.glob("[!.]*"))


def put(html: Path, folder: Path) -> None:
    """Copy a site into a folder, first what tells that it is one: a copy may be cut off."""
    for path in (html / INVENTORY, *html.rglob("*")):
        if path.is_file():
            target = folder / path.relative_to(html)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def main() -> int:
    """Build the site; returns the exit status, 1 where a page has a fault or packages lack."""
    parser = argparse.ArgumentParser(prog="python -m helpers site", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pages are written: new, or a site")
    folder = parser.parse_args().folder.resolve()
    if not all(map(importlib.util.find_spec, NEEDS)):
        print(MISSING, file=sys.stderr)
        return 1
    try:
        folder.mkdir(parents=True, exist_ok=True)  # before anything is built
        if holds_other_files(folder):
            parser.error(f"{folder} holds other files than this site: name a new folder")
        with tempfile.TemporaryDirectory() as work:
            put(build(Path(work)), folder)
    except OSError as error:
        sys.exit(f"The site was not written: {error}. Name a folder that is yours and has room.")
    except KeyboardInterrupt:
        print("Stopped; the site is not finished. The next run begins anew.", file=sys.stderr)
        return 130
    print(folder / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
