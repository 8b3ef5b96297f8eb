"""Explain error messages: of two devices, which side did not move; of others, what to do.

data/device_errors.json holds how torch words two devices in one operation (which argument, where
it is, AT, where the REST is), and what other messages mean.
"""

import json
import re

from helpers.core import files

KNOWN = json.loads((files.DATA / "device_errors.json").read_text(encoding="utf-8"))
PLACEMENT = "notebook 01: What moves with the model"
# PyTorch ends each CUDA error, whatever its cause, with this hint.
HINT = r"Compile with .TORCH_USE_\w+. to enable device-side assertions"
UNKNOWN = """Not an error known here. Messages by topic: "Find your error" in notebook 00 and near \
the top of each notebook, and errors.html of the web site."""
DEVICE = r"(?:cpu|gpu|cuda|mps|meta|xpu)(?::\d+)?"


def which_side_stayed(argument: str, at: str, rest: str) -> str:
    """Say which side did not move: `argument` ("index", "weight", ...) is `at`, all else `rest`."""
    is_input = argument in ("input", "index", "indices", "mat1")
    if "cpu" not in (at, rest):
        return "Both have been moved, to different devices: choose one for all."
    if not is_input and argument not in ("weight", "bias", "mat2"):
        return "Whatever is on cpu did not move: left_behind(model, device) names it."
    if is_input == (at == "cpu"):
        return "The model moved and the inputs did not: move both, or neither."
    return "The inputs moved and the model did not: move both, or neither."


def explain(error: BaseException | str) -> str:
    """Return what an error means and what to do, or that it is not known here."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    text = re.sub(HINT, "", text)
    for wording in KNOWN["two devices"]:
        pattern = wording.replace("AT", f"(?P<at>{DEVICE})").replace("REST", f"(?P<rest>{DEVICE})")
        found = re.search(pattern, text, re.DOTALL)
        if found and found["at"] != found["rest"]:
            argument, at, rest = (found["arg"] or "").lower(), found["at"], found["rest"]
            what = repr(argument) if argument else "a tensor"
            # A product of batches has no weight, and a loss's are not the model's.
            named = "" if re.search("bmm|loss|entropy", text) else argument
            stayed = which_side_stayed(named, at, rest)
            found = f"{what} is on {at}, the rest on {rest}"
            return f"Two devices in one operation: {found}. {stayed} ({PLACEMENT})"
    return known(text) or UNKNOWN


def explain_pasted(text: str) -> str:
    """Return what a message or a traceback (its exceptions, the last one first) means."""
    text = re.sub(r"\x1b\[[0-9;]*m|\S{500,}", "", text)  # a notebook's colours, encoded data
    exceptions = r"^[A-Za-z_][\w.]*: .*?(?=\n\n(?:During handling|The above)|\nTraceback|\Z)"
    found = re.findall(exceptions, text, re.MULTILINE | re.DOTALL)
    meanings = [explain(message) for message in reversed(found or [text])]
    return next((meaning for meaning in meanings if meaning != UNKNOWN), UNKNOWN)


def known(text: str) -> str:
    """Return what a message means, or ""; $1 in a row stands for what its first group found."""
    for row in KNOWN["other"]:
        if found := re.search(row["says"], text, re.IGNORECASE | re.DOTALL):
            means = re.sub(r"\$(\d)", lambda group: found[int(group[1])], row["means"])
            where = row.get("read", "").partition(" ")  # notebook and section
            return means + (f" (notebook {where[0]}: {where[2]})" if where[2] else "")
    return ""
