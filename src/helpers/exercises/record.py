"""Which exercises are done: the learner's own folder, and nothing else, has a file for each."""

import os
import re
from pathlib import Path

import platformdirs


def folder() -> Path:
    """Return where the files lie: `BERT_PROGRESS`, else in the user's own data folder."""
    default = platformdirs.user_data_path("bert-on-any-device", appauthor=False) / "exercises"
    return Path(os.environ.get("BERT_PROGRESS") or default).expanduser()


def add(name: str) -> None:
    """Record a check's right answer; if that fails, a sentence says so."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        (folder() / name).touch()  # its time is the date, and nothing is read that could be damaged
    except (OSError, RuntimeError) as error:  # the latter without a home folder
        print(f"(This is not recorded for exercises.progress(): {error})")


def progress() -> None:
    """Print a line for each notebook: how many of its exercises are done, and which are open."""
    lines, done = ["Exercises done:"], {file.name for file in folder().glob("check_*")}
    for module in sorted(Path(__file__).parent.glob("lesson_*.py")):
        checks = re.findall(r"(?m)^def (check_\d\d_\d)\(", module.read_text(encoding="utf-8"))
        left = [name[-1] for name in checks if name not in done]
        still = f", open: {', '.join(left)}" if left else ""
        lines.append(f"{module.stem[-2:]}  {len(checks) - len(left)} of {len(checks)}{still}")
    print(*lines, sep="\n")
