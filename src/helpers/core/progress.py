"""Progress bars."""

import os
import sys


def is_set(variable: str) -> bool:
    """Return whether an environment variable is switched on, as huggingface_hub reads it."""
    return os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")


def progress_bar(total: int, **style):
    """Return a tqdm bar for people: not in a log file, nor with HF_HUB_DISABLE_PROGRESS_BARS=1."""
    from tqdm import tqdm

    people = sys.stdout.isatty() or type(sys.stdout).__module__ == "ipykernel.iostream"
    shown = people and not is_set("HF_HUB_DISABLE_PROGRESS_BARS")
    return tqdm(total=total, leave=False, file=sys.stdout, disable=not shown, **style)
