"""Write the reader's times and the schedules into docs/instructors.md, from the notebooks.

`python docs/guide.py` writes them; with `--check` it only says whether they are current. The
questions in the guide have to be the notebooks' own.
"""

import argparse
import functools
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from helpers.core import files
from helpers.tools import notebooks

GUIDE = Path(__file__).with_name("instructors.md")
# What a reader is taken to need. Nobody was timed: these are the estimate's assumptions.
WORDS_A_MINUTE, CELL, PREDICTION, EXERCISE = 200, 0.5, 0.5, 10.0  # the last three in minutes
TALK = 1.5  # in class, times the reader's time: votes, talk, somebody's laptop
# Minutes there are, and slots: "text | minutes", or "notebook: sections", with ex1 for exercise 1.
PLANS = {
    "90 minutes": (
        90,
        [
            "Welcome; `python3 tutorial.py doctor` on every laptop | 5",
            "00: short 1 2 3",
            "01: short 1 2",
            "Break | 5",
            "08: short 2 5 9",
            "01: ex1",
        ],
    ),
    "Half a day": (
        240,
        [
            "Welcome; `python3 tutorial.py doctor` on every laptop | 10",
            "00: short 1 2 3 4",
            "01: short 1 2 3 ex1",
            "Break | 15",
            "02: short 1 2 3 6",
            "04: short 2 6 7",
            "Break | 15",
            "05: short 1 2 5",
            "08: short 2 5 7 9",
            "`python3 tutorial.py recipe 08`, questions | 10",
        ],
    ),
    "A day": (
        480,
        [
            "Welcome; `python3 tutorial.py doctor` on every laptop | 10",
            "00: short 1 2 3 4 ex1",
            "01: short 1 2 3 4 ex1",
            "Break | 15",
            "02: short 1 2 3 4 6",
            "03: short 1 2 4 8",
            "Lunch | 60",
            "04: short 2 6 7",
            "05: short 1 2 5 ex1",
            "Break | 15",
            "06: short 2 3 5",
            "07: short 2 3 4 6",
            "Break | 15",
            "08: short 2 3 4 5 6 7 9",
            "`python3 tutorial.py recipe`, `exercises.progress()`, questions | 15",
        ],
    ),
}
LOOKED_UP = ("Find your error", "How these notebooks work")  # not read in order
END = "Going deeper"


@functools.cache  # the plans ask for each notebook many times
def lessons() -> dict[str, notebooks.Lesson]:
    """Return the notebooks by number."""
    return {lesson.number: lesson for lesson in notebooks.lessons()}


@functools.cache
def sections(path: Path) -> dict[str, float]:
    """Return the minutes that a reader needs for each section of a notebook, up to *Going deeper*.

    A section is what stands below a heading of the second level.
    """
    minutes: dict[str, float] = {}
    section, counted = "", True
    for kind, text in pieces(path):
        if kind == "heading":
            level, name = text.split(" ", 1)
            if name == END:
                break
            counted = not name.startswith(LOOKED_UP)
            section = name if level == "##" and counted else section
        if counted and section:
            minutes[section] = minutes.get(section, 0) + cost(kind, text)
    return minutes


def pieces(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the headings, texts and code cells of a notebook, in order."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            yield "code", source
            continue
        for text in re.split(r"(?m)^(#+ .+)$", source):
            if text.strip():
                yield ("heading" if text.startswith("#") else "text"), text


def cost(kind: str, text: str) -> float:
    """Return the minutes of one piece of a notebook."""
    if kind == "code":
        return EXERCISE if "exercises.check_" in text else CELL
    words = len(text.split()) / WORDS_A_MINUTE
    return words + PREDICTION * text.count("**Predict:**")


def times() -> str:
    """Return the table of reader's times: a row for each notebook."""
    rows = ["| notebook | minutes for each section | all | exercises |", "|---|---|---|---|"]
    for lesson in lessons().values():
        read = dict(sections(lesson.path))
        done = read.pop("Exercises", 0)
        each = " · ".join(f"{name} **{max(1, round(spent))}**" for name, spent in read.items())
        rows.append(f"| {lesson.number} | {each} | {sum(read.values()):.0f} | {done:.0f} |")
    return "\n".join(rows)


def schedule(minutes: int, slots: list[str]) -> str:
    """Return a plan as a table: when, for how long, what.

    Raises:
        ValueError: If the slots take longer than there is time.
    """
    rows, start = ["| at | minutes | what |", "|---|---|---|"], 0
    for slot in slots:
        what, length = slot.split(" | ") if " | " in slot else in_class(*slot.split(": "))
        rows.append(f"| {start // 60}:{start % 60:02} | {length} | {what} |")
        start += int(length)
    if start > minutes:
        raise ValueError(f"a plan of {minutes} minutes takes {start}: take a section out of PLANS")
    return "\n".join(rows)


def in_class(number: str, wanted: str) -> tuple[str, int]:
    """Return what is done of a notebook, and the minutes for it in class, in steps of five.

    Raises:
        ValueError: If the notebook has no such section.
    """
    lesson = lessons()[number]
    read, names = sections(lesson.path), []
    minutes = lesson.seconds / 60 if "short" in wanted else 0.0  # all cells are run once
    for key in wanted.split():
        if key.startswith("ex"):
            names.append(f"exercise {key[2:]}")
            minutes += EXERCISE
            continue
        start = "The short answer" if key == "short" else f"{key}. "
        name = next((name for name in read if name.startswith(start)), None)
        if name is None:
            raise ValueError(f"{lesson.path.name} has no section {key}: mend PLANS in guide.py")
        names.append(key.replace("short", "short answer"))
        minutes += TALK * read[name]
    return f"**{number}**: {', '.join(names)}", 5 * math.ceil(minutes / 5)


def parted(text: str, name: str) -> tuple[str, str, str]:
    """Return what stands before a table's rows, between its marks, and after them.

    Raises:
        ValueError: If the text has not each of the two marks once, in order.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = text.partition(begin)
    table, closed, after = rest.partition(end)
    if not closed or text.count(begin) + text.count(end) > 2:
        raise ValueError(f"{GUIDE.name} must hold {begin.strip()} and {end} once, in this order")
    return before + begin, table, end + after


def written(text: str) -> str:
    """Return the guide's text with its tables, which stand between marks, as they have to be.

    Raises:
        ValueError: If a table's marks are not there, or the notebooks no longer fit a plan.
    """
    tables = {"times": times()} | {name: schedule(*plan) for name, plan in PLANS.items()}
    for name, table in tables.items():
        before, _, after = parted(text, name)
        text = f"{before}{table}\n{after}"
    return text


def strangers(text: str) -> list[str]:
    """Return the guide's questions that their notebooks do not ask."""
    table = parted(text, "predictions")[1]
    asked = {number: one.path.read_text(encoding="utf-8") for number, one in lessons().items()}
    asked = {number: re.sub(r"\\(.)", r"\1", page) for number, page in asked.items()}  # no JSON
    rows = re.findall(r"(?m)^\| (\d\d) \| (.+?) \|", table)
    return [
        f"{number}: {question}"
        for number, question in rows
        if question not in asked.get(number, "")
    ]


def main(argv: list[str] | None = None) -> int:
    """Write the tables, or check them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args(argv).check
    old = GUIDE.read_text(encoding="utf-8")
    try:
        new, unknown = written(old), strangers(old)
    except ValueError as error:
        print(error)
        return 1
    if unknown:
        print(f"{GUIDE.name} asks what the notebook does not: {'; '.join(unknown)}")
        return 1
    if check and new != old:
        print(f"{GUIDE.name} is not what the notebooks say: run python docs/guide.py")
        return 1
    if new != old:
        with files.atomic_write(GUIDE) as part:
            part.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
