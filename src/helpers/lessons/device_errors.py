"""Explain PyTorch's device errors: which side did not move, and what to do about it.

What is known stands in data/device_errors.json: how torch 0.4 to 2.13 word two devices in one
operation (which argument, where it is, AT, where the REST is), and what other messages mean.
"""

import json
import re

from helpers.core import files

KNOWN = json.loads((files.DATA / "device_errors.json").read_text(encoding="utf-8"))


def which_side_stayed(argument: str, at: str, rest: str) -> str:
    """Say which side did not move.

    Args:
        argument: The operation's argument that differs, such as "index" or "weight".
        at: Its device.
        rest: The device of the others.
    """
    is_input = argument in ("input", "index", "indices", "mat1")
    if "cpu" not in (at.lower(), rest.lower()):
        return "Both have been moved, to different devices: choose one for all."
    if not is_input and argument not in ("weight", "bias", "mat2"):
        return (
            "Whatever is on cpu did not move: audit(model) and check_call(model, inputs) name it."
        )
    if is_input == (at.lower() == "cpu"):
        return "The model moved and the inputs did not: move both, or neither."
    return "The inputs moved and the model did not: move both, or neither."


def _two_devices(text: str) -> str | None:
    for wording in KNOWN["two devices"]:
        pattern = wording.replace("AT", f"(?P<at>{KNOWN['device']})")
        pattern = pattern.replace("REST", f"(?P<rest>{KNOWN['device']})")
        found = re.search(pattern, text, re.DOTALL | re.IGNORECASE)
        if not found:
            continue
        argument, at, rest = (found["arg"] or "").lower(), found["at"], found["rest"]
        if argument == "indices":  # the text offers "cpu or ...", so they are on neither
            at = "another device"
        elif at == rest:  # the error is about dtypes
            continue
        elif argument == "self" and re.search("index_select|embedding|addmm", text):
            argument = "weight"  # there it is the table or the bias
        what = repr(argument) if argument else "a tensor"
        stayed = which_side_stayed(argument, at, rest)
        return f"Two devices in one operation: {what} is on {at}, the rest on {rest}. {stayed}"
    return None


def explain(error: BaseException | str) -> str:
    """Return what a device error means and what to do, in a sentence or two.

    For other errors it says that it does not know them.
    """
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    # Before torch 1.5, a tensor's type told its device.
    text = re.sub(r"(?:torch\.)?(?:cuda\.\w+Tensor|CUDA\w+Type)", "cuda", text)
    text = re.sub(r"(?:torch\.)?(?:mps\.\w+Tensor|MPS\w+Type)", "mps", text)
    text = re.sub(r"torch\.\w+Tensor|CPU\w+Type", "cpu", text)
    if meaning := _two_devices(text):
        return meaning
    for row in KNOWN["other"]:
        if re.search(row["says"], text, re.IGNORECASE | re.DOTALL):
            return row["means"]
    return "Not a device error known here: read its last line, and check audit(model) all the same."
