"""Pieces of a notebook that may come on a slide, each with an estimate of its height in pixels."""

import html
import itertools
import math
import re
from dataclasses import dataclass

import nbformat

ROOM = 656  # pixels of a slide that its cells may take, by the estimates below
WIDGET = {"application/vnd.jupyter.widget-view+json"}


@dataclass
class Part:
    """A piece of a notebook that may come on a slide: a text, a cell's code or its outputs."""

    cell: nbformat.NotebookNode
    height: int  # estimated, in pixels
    begins: str = "-"  # "slide" and "subslide" begin a new one
    heading: bool = False


def text_height(text: str, per_line: int, pixels: int) -> int:
    """Return the height in pixels of lines that wrap after so many characters."""
    return sum(pixels * max(1, math.ceil(len(line) / per_line)) for line in text.splitlines())


def markdown(text: str, begins: str = "-", heading: bool = False) -> Part:
    """Return a part of some Markdown; of a link to another page, the words are left."""
    text = re.sub(r"(?<!!)\[([^\]]+)\]\((?!http)(?:[^()\s]|\([^()]*\))+\)", r"\1", text)
    if heading:
        height = text_height(text, 55, 48) + 30
    elif text.startswith("!["):
        height = 470 + text_height("\n".join(text.splitlines()[1:]), 72, 40)
    else:
        height = text_height(re.sub(r"\(http[^)]+\)", "", text), 72, 40) + 26
    return Part(nbformat.v4.new_markdown_cell(text), height, begins, heading)


def code(cell: nbformat.NotebookNode) -> Part:
    """Return a part of a cell's code without its outputs."""
    height = text_height(cell.source, 104, 24) + 40
    return Part(nbformat.v4.new_code_cell(cell.source), height, "subslide")


def outputs(cell: nbformat.NotebookNode) -> list[Part]:
    """Return a cell's outputs without its code: together, or where that is too much, each alone."""
    shown = [one for one in cell.outputs if not WIDGET & one.get("data", {}).keys()]
    begins = "subslide" if has_figure(cell) else "-"
    heights = [20 + output_height(output) for output in shown]
    if sum(heights) <= ROOM:
        return [Part(output_cell(*shown), sum(heights), begins)] if shown else []
    pairs = zip(shown, heights, strict=True)
    return [Part(output_cell(output), height) for output, height in pairs]


def output_cell(*shown: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a cell of outputs, whose (empty) code is not shown."""
    return nbformat.v4.new_code_cell(metadata={"tags": ["outputs"]}, outputs=list(shown))


def has_figure(cell: nbformat.NotebookNode) -> bool:
    """Return whether a code cell shows a picture."""
    return any("<img" in output.get("data", {}).get("text/html", "") for output in cell.outputs)


def output_height(output: nbformat.NotebookNode) -> int:
    """Return the height in pixels of one output of a cell."""
    data = output.get("data", {})
    shown = data.get("text/html", "")
    words = " ".join(re.sub(r"<style.*?</style>|<[^>]+>", " ", shown, flags=re.DOTALL).split())
    if "<img" in shown:
        return 440 + text_height(words, 90, 33)  # the words are the caption
    if "<tr" in shown:
        return table_height(shown)
    if shown:
        return 110 * math.ceil(len(words) / 150)  # words that are coloured, with numbers below
    return 16 + text_height(output.get("text") or data.get("text/plain", ""), 102, 24)


def table_height(table: str) -> int:
    """Return the height in pixels of an HTML table: columns share the width as their texts do."""
    rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
    lengths = []
    for row in rows:
        cells = re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL)
        lengths.append([len(html.unescape(cell)) for cell in cells])
    widest = [max(column) for column in itertools.zip_longest(*lengths, fillvalue=1)]
    fits = min(1, 120 / (sum(widest) + 2 * len(widest)))  # 1: each row is one line
    height = 0
    for row in lengths:
        shares = zip(row, widest, strict=False)
        lines = max(math.ceil(length / max(1, width * fits)) for length, width in shares)
        height += 8 + 22 * max(1, lines)
    return height


def paragraphs(text: str) -> list[str]:
    """Cut Markdown into headings, pictures with their captions, code blocks and paragraphs."""
    special = r"^```.*?^```$|^#+ [^\n]+|^!\[[^\n]+(?:\n+\*[^*\n][^\n]*\*$)?"
    pattern = rf"(?ms){special}|(?:^(?!#+ |```|!\[)[^\n]*\S[^\n]*(?:\n|\Z))+"
    return [found.strip() for found in re.findall(pattern, text)]
