"""Make slides of the notebooks: `python -m helpers slides FOLDER [01 ...]`.

The cells are the notebooks' own, chosen by rule, with the outputs that are stored; nothing is run.
Each notebook becomes one page for a browser. reveal.js, which turns pages, is got once from a
package (pinned, checked by SHA-256) and put beside them: showing them needs no network.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from helpers.core import files
from helpers.models import catalogue, download, locate
from helpers.tools import notebooks

import nbformat
from guide import LOOKED_UP as LEFT_OUT
from nbconvert import SlidesExporter
from slide_parts import ROOM, Part, code, has_figure, markdown, outputs, paragraphs
from traitlets.config import Config

DOCS = Path(__file__).parent
WIDTH, HEIGHT = 1280, 720
REVEAL = catalogue.Package(
    name="sphinx-revealjs",
    version="3.2.1",  # with reveal.js 5.2.0, under the MIT licence
    archive="sphinx_revealjs-3.2.1-py3-none-any.whl",
    size=2390529,
    sha256="805bed3ca459346e0f01967d5ed1c40d6b7b917de1541e1e4566c8341fe7017b",
    prefix="sphinx_revealjs/_static/revealjs/",
    files={
        "LICENSE": "34014800f4126ac2525e224166f099f26628612e95c41f76d70841b63138c989",
        "dist/reveal.css": "68f915a11ebf7203c0446576b7e952ff61c5dd02134a8a226ffaf62ed42136d2",
        "dist/reveal.js": "46538b52db48724192f59bf46f5e851a18e302777c46f4a34c32709d010d6a29",
    },
)
PREDICT = "**Predict:**"
SIGNS = re.compile("[☐☑☒◐]")  # of claims and verdicts
SHORT, PASTED, EXERCISES, SUMMARY = "The short answer", "people paste", "Exercises", "Summary"
END = "## Going deeper"
MOST_WORDS = 60  # of an explanation


def chosen_text(paragraph: str, section: str, answer: bool) -> Part | None:
    """Return a paragraph as a part, or None where it is left for reading.

    Args:
        paragraph: In Markdown, no heading.
        section: The last heading.
        answer: Whether it is the first paragraph after a prediction and its run.
    """
    table = paragraph.startswith(("|", "<!--"))
    if section.startswith(LEFT_OUT) or (table and not SIGNS.search(paragraph)):
        return None
    if PREDICT in paragraph:
        asked = paragraph[paragraph.index(PREDICT) :]
        return markdown(re.sub(r"\s+(?=\([abc]\) )", "\n\n", asked), "subslide")
    if section.startswith(EXERCISES):
        return markdown(paragraph, "subslide") if re.match(r"\*\*\d", paragraph) else None
    if paragraph.startswith("!["):
        return markdown(paragraph, "subslide")
    short_answer = answer and len(paragraph.split()) <= MOST_WORDS
    wanted = section.startswith((SHORT, SUMMARY)) or SIGNS.search(paragraph)
    if wanted or short_answer:
        return markdown(paragraph)
    return None


def chosen_code(cell: nbformat.NotebookNode, section: str, near: bool) -> list[Part]:
    """Return the parts of a code cell that come on a slide.

    Args:
        cell: The cell.
        section: The last heading.
        near: Whether a prediction is about this cell.
    """
    if section.startswith((*LEFT_OUT, EXERCISES)) or "from helpers" in cell.source:
        return []
    shows_code = near or PASTED in section or section.startswith(SHORT)
    verdicts = "promised" in section or SIGNS.search(str(cell.outputs))
    parts = []
    if shows_code and not has_figure(cell):
        parts.append(code(cell))
    if shows_code or has_figure(cell) or verdicts or section.startswith(SUMMARY):
        parts += outputs(cell)
    return parts


def chosen(notebook: nbformat.NotebookNode) -> Iterator[Part]:
    """Yield what comes on the slides of a notebook, in order."""
    section, near = "", False
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            told = asked_next(notebook.cells[place:]) or (near and bool(cell.outputs))
            yield from chosen_code(cell, section, told)
            continue
        answer, near = near, PREDICT in cell.source
        for paragraph in paragraphs(cell.source):
            if paragraph.startswith(END):
                return
            heading = re.match(r"(#+) (?:\d+\. )?(.+)", paragraph)
            if heading:
                section, begins = heading[2], "slide" if len(heading[1]) < 3 else "subslide"
                yield markdown(paragraph, begins, heading=True)
            elif place == 0 and not paragraph.startswith("**"):
                yield markdown(paragraph)
            elif part := chosen_text(paragraph, section, answer):
                yield part
            answer = False


def asked_next(cells: list[nbformat.NotebookNode]) -> bool:
    """Return whether the next text begins with a prediction, which is about the code before it."""
    texts = (cell.source for cell in cells if cell.cell_type == "markdown")
    return next(texts, "").startswith(PREDICT)


def slides(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a notebook whose cells say which slide they begin; no slide is fuller than ROOM."""
    made = nbformat.v4.new_notebook(metadata=notebook.metadata)
    heading, used = None, 0
    for part in chosen(notebook):
        if part.heading:
            heading = part  # it comes once something below it does
            continue
        if part.height > ROOM:
            continue
        begins = "subslide" if used + part.height > ROOM else part.begins
        if heading:
            begins = "subslide" if heading.height + part.height > ROOM else "-"
            add(made, heading, heading.begins)
            used, heading = heading.height, None
        used = part.height + (used if begins == "-" else 0)
        add(made, part, begins)
    return made


def add(made: nbformat.NotebookNode, part: Part, begins: str) -> None:
    """Add a part to the slides."""
    part.cell.metadata["slideshow"] = {"slide_type": begins}
    made.cells.append(part.cell)


def page(path: Path) -> str:
    """Return the slides of a notebook as HTML, with its pictures in it."""
    settings = {"enabled": True, "remove_input_tags": ["outputs"]}
    exporter = SlidesExporter(
        template_file=str(DOCS / "slides.html.j2"),
        config=Config(TagRemovePreprocessor=settings),
        reveal_url_prefix="reveal.js",
        reveal_theme="tutorial",
        reveal_width=str(WIDTH),
        reveal_height=str(HEIGHT),
        embed_images=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
    )
    resources = {"metadata": {"path": str(path.parent), "name": path.stem}}
    notebook = slides(nbformat.read(path, as_version=4))
    return exporter.from_notebook_node(notebook, resources)[0]


def put_reveal(folder: Path) -> None:
    """Put reveal.js and the look of the slides into a folder, from this machine or the network.

    Raises:
        AssetError: If reveal.js cannot be had.
    """
    asset = catalogue.Asset("reveal.js", "reveal.js", REVEAL.size, "MIT", package=REVEAL)
    if not locate.locate(asset):
        (locate.package_folder(REVEAL) / "dist").mkdir(parents=True, exist_ok=True)
    source = download.obtain(asset).folder
    (folder / "dist" / "theme").mkdir(parents=True, exist_ok=True)
    for file in REVEAL.files:
        shutil.copyfile(source / file, folder / file)
    shutil.copyfile(DOCS / "slides.css", folder / "dist" / "theme" / "tutorial.css")


def main(argv: list[str] | None = None) -> int:
    """Write the slides; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m helpers slides", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pages are written")
    lessons = {lesson.number: lesson for lesson in notebooks.lessons()}
    parser.add_argument("numbers", nargs="*", help="such as 01; default: all")
    given = parser.parse_args(argv)
    chosen_ones = [number.zfill(2) for number in given.numbers] or list(lessons)
    if unknown := sorted(set(chosen_ones) - set(lessons)):
        parser.error(f"there is no notebook {unknown[0]}; there are {', '.join(lessons)}")
    try:
        put_reveal(given.folder / "reveal.js")
        for number in chosen_ones:
            target = given.folder / f"{lessons[number].path.stem}.html"
            with files.atomic_write(target) as part:
                part.write_text(page(lessons[number].path), encoding="utf-8")
            print(target)
    except catalogue.AssetError as error:
        cause = str(error).partition(" Way out:")[0]
        print(
            f"{cause} Run this once where there is a network; later runs need none, and the "
            f"slides themselves never do. Or put {REVEAL.archive} into a folder and name the "
            "folder in PIP_FIND_LINKS.",
            file=sys.stderr,
        )
        return 1
    except OSError as error:
        sys.exit(f"The slides were not written: {error}. Name a folder that is yours and has room.")
    except KeyboardInterrupt:
        print("Stopped; the slides are not finished.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
