"""Write fit.json, the numbers of the page "Will it fit?": `python docs/fit_grid.py`.

The page offers what the memory explorer of notebook 02 offers, at fewer lengths, and its numbers
are those of `memory.predict_peak`. Thousands of predictions would take an hour, so each choice of
model, task, dtype and lever is predicted at a few sizes, and what was allocated and freed there is
replayed at the others. That is exact: a storage holds one tensor, so its bytes are a constant times
a power of the batch and a power of the length, which the few sizes tell.
"""

import json
import sys
from itertools import groupby, product
from pathlib import Path

from helpers.core import files
from helpers.lessons import memory
from helpers.lessons.ledger import Ledger
from helpers.widgets import memory as widget

import torch
import transformers

FILE = Path(__file__).with_name("fit.json")
# Without SciBERT, which is BERT-base with a vocabulary that is 2 % larger.
MODELS = tuple(name for name in widget.MODELS if name != "scibert")
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (32, 64, 128, 256, 384, 512)
UNIT = 512  # bytes: PyTorch's allocator rounds every size up to a multiple of it
# Twice the batch, twice the length: their ratios to the first are the powers.
TRACED = ((4, 64), (8, 64), (4, 128))
SHORT = (",", ":")  # no spaces: the page carries all of it
MOMENTS = ("forward pass", "backward pass", "optimizer step")


class Recorder(Ledger):
    """A ledger of a GPU that also lists what happens, with the bytes that were asked for."""

    def __init__(self):
        """Begin with an empty list."""
        super().__init__(cuda=True)
        self.events, self._serial = [], {}

    def begin(self, phase: str) -> None:
        """Begin a phase, as a ledger does."""
        self.events.append(("begin", phase, 0))
        super().begin(phase)

    def relabel(self, tensor: torch.Tensor, label: str) -> None:
        """Say what a tensor's memory is for, as a ledger does."""
        self.events.append(("relabel", self._serial[tensor.untyped_storage()._cdata], label))
        super().relabel(tensor, label)

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.live and storage.nbytes():
            self._serial[storage._cdata] = len(self.events)
            self.events.append(("add", len(self.events), storage.nbytes()))
        super()._add(tensor)

    def _drop(self, key: int) -> None:
        self.events.append(("drop", self._serial[key], 0))
        super()._drop(key)


class Storage:
    """Stands for a tensor and its storage in a replay."""

    def __init__(self, serial: int, size: int):
        """Take a number that no other one has, and the bytes."""
        self._cdata, self.size = serial, size

    def untyped_storage(self) -> "Storage":
        """Return itself."""
        return self

    def nbytes(self) -> int:
        """Return its bytes."""
        return self.size


def in_order(events: list[tuple]) -> list[tuple]:
    """Return the events with what is freed at one time in the order in which it was made."""
    runs = groupby(events, lambda event: event[0])
    return [event for kind, run in runs for event in (sorted(run) if kind == "drop" else run)]


def powers(traces: list[list[tuple]]) -> list[tuple]:
    """Return the events of the first trace, with the powers of batch and length for each "add".

    Raises:
        ValueError: If the traces differ in more than sizes, or a size is no such product.
    """
    traces = [in_order(trace) for trace in traces]
    steps = [[event[:2] for event in trace] for trace in traces]
    if steps.count(steps[0]) != len(steps):
        raise ValueError("what is allocated depends on the size in a way that is not replayed")
    events = []
    for (kind, which, first), (_, _, wider), (_, _, longer) in zip(*traces, strict=True):
        if kind == "add":
            power = {1: 0, 2: 1, 4: 2}
            if wider % first or longer % first:
                raise ValueError(f"{first}, {wider} and {longer} bytes are no powers of the size")
            first = (first, power[wider // first], power[longer // first])
        events.append((kind, which, first))
    return events


def replay(events: list[tuple], batch: float, length: float) -> memory.Peak:
    """Return the peak for a batch and a length, each as a multiple of the first trace's."""
    ledger, held = Ledger(cuda=True), {}
    phases = 0
    for kind, which, more in events:
        if kind == "add":
            size, wide, long = more
            held[which] = Storage(which, round(size * batch**wide * length**long))
            ledger._add(held[which])
        elif kind == "drop":
            del held[which]
        elif kind == "relabel":
            ledger.relabel(held[which], more)
        else:
            if not phases:  # what came before is how the model was made
                ledger.peaks.clear()
            phases += 1
            ledger.begin(which)
    return memory._peak(ledger, "")


def trace(model: str, batch: int, length: int, options: dict) -> list[tuple]:
    """Return what a predicted step allocates and frees."""
    ledger = Recorder()
    memory._run(ledger, model, batch, length, **options)
    return ledger.events


def columns(model: str, options: dict) -> dict:
    """Return the terms of a choice's peaks, in units, and its moments, by batch, then length.

    A column that is the same at all sizes is one number.
    """
    traces = {size: trace(model, *size, options) for size in ((1, 64), (1, 128), *TRACED)}
    single = powers([traces[1, 64], traces[1, 64], traces[1, 128]])  # its kernels copy less
    several = powers([traces[size] for size in TRACED])
    peaks = []
    for batch, length in product(BATCHES, LENGTHS):
        events, wider = (single, 1) if batch == 1 else (several, batch / 4)
        peaks.append(replay(events, wider, length / 64))
    found = {name: [peak.terms.get(name, 0) // UNIT for peak in peaks] for name in memory.TERMS}
    found["moment"] = [MOMENTS.index(peak.moment) for peak in peaks]
    return {name: max(all_) if len(set(all_)) == 1 else all_ for name, all_ in found.items()}


def written(options: dict) -> str:
    """Return options as they stand in a call, after others."""
    return "".join(f", {name}={value!r}" for name, value in options.items())


def main() -> None:
    """Predict all choices, and write them one a line: about ten minutes on one core."""
    kinds = {"mode": widget.MODES, "dtype": widget.DTYPES, "lever": widget.LEVERS}
    head = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "unit": UNIT,
        "terms": memory.TERMS,
        "moments": MOMENTS,
        "gpus": widget.SIZES,
        "model": MODELS,
        "batch": BATCHES,
        "length": LENGTHS,
        "options": {
            kind: {name: written(options) for name, options in choices.items()}
            for kind, choices in kinds.items()
        },
    }
    lines = []
    for model, mode, dtype, lever in product(MODELS, *kinds.values()):
        if mode == "inference" and lever != "none":
            continue
        options = widget.MODES[mode] | widget.DTYPES[dtype] | widget.LEVERS[lever]
        key = " | ".join((model, mode, dtype, lever))
        print(key, file=sys.stderr, flush=True)
        lines.append(f"{json.dumps(key)}: {json.dumps(columns(model, options), separators=SHORT)}")
    opening = json.dumps(head, indent=1).removesuffix("\n}")
    with files.atomic_write(FILE) as part:
        peaks = ",\n  ".join(lines)
        part.write_text(f'{opening},\n "peaks": {{\n  {peaks}\n }}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
