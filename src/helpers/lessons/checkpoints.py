"""Load checkpoints from another machine, all weights or none, and say what was done (notebook 03).

The fault to fear is silent success: a file that "loads" and leaves random weights.
"""

import contextlib
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.core import files
from helpers.lessons.checkpoint_files import CheckpointError, common_prefix, explained, few, inspect
from helpers.recipes.load_checkpoint import load_strictly, read_state, strip_wrappers, tied_names

import numpy as np
import safetensors.torch
import torch
from torch import nn


@dataclass
class LoadReport:
    """What `load` did.

    Attributes:
        model: The filled model, in eval mode.
        checked: What the bytes of the file were checked by.
        loaded: Names in the model that came from the file.
        missing: Names in the model that the file lacks: they are untrained.
        renamed: Names in the file -> names in the model, where they differ.
        dtypes: How a dtype changed -> how many weights.
        notes: What else was changed or looks wrong.
    """

    model: nn.Module
    checked: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    dtypes: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        name = type(self.model).__name__
        lines = [f"{len(self.loaded)} weights loaded into {name}; bytes checked by {self.checked}"]
        if self.missing:
            lines.append(f"new, untrained: {few(self.missing)}")
        for old, new in list(self.renamed.items())[:1]:
            lines.append(f"renamed: {len(self.renamed)}, such as {old} -> {new}")
        lines += [f"{count} converted from {change}" for change, count in self.dtypes.items()]
        return "\n  ".join(lines + self.notes)


def load(
    path: str | Path,
    build: Callable[[], nn.Module],
    *,
    key: str | None = None,
    allow_globals: Iterable[Any] = (),
    allow_missing: Iterable[str] = (),
) -> LoadReport:
    """Build a model on the CPU and load the weights in a file into it: all of them, or an error.

    They stay mapped to the file: replace it, as `save` does, but never write into it.

    Args:
        path: The checkpoint.
        build: A function that builds the model; memory for its parameters is not allocated.
        key: Which weights, where a file has several.
        allow_globals: Classes that safe loading refuses, allowed for this load.
        allow_missing: Parts of the model that the file may lack.

    Raises:
        CheckpointError: If the file is broken, refused or does not fit.
        ValueError: If weights that are tied in the model differ in the file.
    """
    with _parameters_on_meta():  # each weight is drawn and dropped: before the file is mapped
        model = build()
    state, checked = _read(Path(path), key, allow_globals)
    report = LoadReport(model, checked)
    given = _match(state, report)
    problems = _compare(given, allow_missing, report)
    if 2 * len(report.loaded) < len(model.state_dict()):  # whatever allow_missing says
        problems.append("it has less than half of the model")
    if problems:
        share = f"{len(report.loaded)} of whose {len(model.state_dict())} weights it has"
        raise CheckpointError(
            f"{Path(path).name} does not fit {type(model).__name__}, {share}: "
            f"{'; '.join(problems)}. Parts that the file may lack: allow_missing=[...]; for a "
            "head too many, build the model that has it, and take its base_model"
        )
    _fill(given, build, report)
    return report


def _read(path: Path, key: str | None, allow_globals: Iterable) -> tuple[Any, str]:
    """Return what is at a key, or the only set of weights, and how the bytes were checked."""
    allowed = list(allow_globals)
    if np.dtype in allowed:  # its instances have classes of their own
        allowed += [kind for kind in vars(np.dtypes).values() if isinstance(kind, type)]
    with torch.serialization.safe_globals(allowed):
        look = inspect(path)
        if look.refused:
            way = "If you know them and trust the sender: allow_globals=[...] for this load"
            if look.whole:
                way = f"It is a whole model: save its state_dict() where the class {look.whole} is"
            what = "names what safe loading refuses, because it could run code"
            raise CheckpointError(f"{path.name} {what}: {', '.join(look.refused)}. {way}")
        if key is None and len(look.states) == 1:
            key = next(iter(look.states))
        if key is None or key.partition("/")[0] not in {"", *look.nesting}:
            there = list(look.states) or f"none, only {few(look.nesting)}"
            raise CheckpointError(f"{path.name}: say which with key=...; weights are at {there}")
        with explained(path):
            state = read_state(path, key)
            if look.format == "zip":
                with zipfile.ZipFile(path) as archive:
                    if broken := archive.testzip():
                        raise ValueError(f"the checksum of {broken} does not agree")
        checked = "CRC-32" if look.format == "zip" else "nothing, the file has no checksums"
        return state, checked


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Build modules whose parameters need no memory and stay tied; their buffers are real."""

    def replace(module, name, weight):
        if weight is None or weight.is_meta:
            return None
        if not hasattr(weight, "on_meta"):
            weight.on_meta = nn.Parameter(weight.detach().to("meta"), weight.requires_grad)
        return weight.on_meta

    hook = nn.modules.module.register_module_parameter_registration_hook(replace)
    try:
        yield
    finally:
        hook.remove()


def _within(name: str, parts: Iterable[str]) -> bool:
    return any(f".{part}." in f".{name}." for part in parts)


def _match(state: Mapping, report: LoadReport) -> dict[str, Any]:
    """Return the weights under the model's names, as far as it has them."""
    own, given = report.model.state_dict(), {}
    names = _rename(list(strip_wrappers(state, report.model)), own)
    for (old, value), name in zip(state.items(), names, strict=True):
        if name in given:
            raise CheckpointError(f"the file gives {name} twice, by an old and a new name")
        if name not in own and _is_position_ids(name, value):
            report.notes.append(f"left out {old}, which newer versions compute")
            continue
        given[name] = value
        if name != old:
            report.renamed[old] = name
    return given


def _is_position_ids(name: str, value: Any) -> bool:
    named = name.endswith("embeddings.position_ids") and isinstance(value, torch.Tensor)
    return named and value.flatten().tolist() == list(range(value.numel()))


def _rename(names: list[str], own: Iterable[str]) -> list[str]:
    """Take off, or put on, what all names begin with, so that most of them are the model's."""
    bases = Counter(name.split(".")[0] for name in own)  # most are in "bert", beside a head
    ours = common_prefix(name for name in own if name.split(".")[0] == max(bases, key=bases.get))
    theirs = common_prefix(names)
    rest = [".".join(name.split(".")[len(theirs) :]) for name in names]
    for old, new in {"gamma": "weight", "beta": "bias"}.items():  # files that TensorFlow wrote
        rest = [re.sub(rf"(?<=LayerNorm\.){old}$", new, name) for name in rest]
    leads = [
        [*ours[:put], *theirs[cut:]]
        for cut in range(len(theirs) + 1)
        for put in range(len(ours) + 1)
    ]
    candidates = [[".".join([*lead, name]) for name in rest] for lead in leads]
    return max(candidates, key=lambda names: len(set(own).intersection(names)))


def _compare(given: Mapping, allow_missing: Iterable[str], report: LoadReport) -> list[str]:
    """Say what does not fit, and note what does."""
    problems, own = [], report.model.state_dict()
    for weight, names in tied_names(report.model).items():
        found = [name for name in names if name in given]
        for name in found:
            problems += _misfit(name, given[name], weight, report)
        if found:
            report.loaded += names
        else:
            report.missing += names
    if extra := [name for name in given if name not in own]:
        problems.append(f"not in the model: {few(extra)}")
    if lost := [name for name in report.missing if not _within(name, allow_missing)]:
        problems.append(f"not in the file: {few(lost)}")
    return problems


def _misfit(name: str, value: Any, weight: torch.Tensor, report: LoadReport) -> list[str]:
    """Say why a value in the file cannot be the weight, or note what changes."""
    if not isinstance(value, torch.Tensor):
        return [f"{name} is a {type(value).__name__} in the file"]
    theirs, ours = "without data" if value.is_meta else _kind(value), _kind(weight)
    if theirs != ours:
        return [f"{name} is {theirs} in the file, {ours} in the model"]
    kept, finite = value.to(weight.dtype), _is_finite(value)
    back = value.is_floating_point() or torch.equal(kept.to(value.dtype), value)
    if not back or (finite and not _is_finite(kept)):
        return [f"{name} has numbers in the file that {weight.dtype} cannot hold"]
    if not finite:
        report.notes.append(f"{name} holds numbers that are not finite")
    if value.dtype != weight.dtype:
        report.dtypes[f"{value.dtype} to {weight.dtype}".replace("torch.", "")] += 1
    return []


def _kind(tensor: torch.Tensor) -> str:
    """Describe what may not differ; 8-bit numbers are quantized: nothing without their scale."""
    numbers = "floating-point" if tensor.is_floating_point() else "integer"
    if tensor.itemsize == 1:
        numbers = "8-bit"
    return f"{tuple(tensor.shape)}, {numbers}, {tensor.layout}".removesuffix(", torch.strided")


def _is_finite(value: torch.Tensor) -> bool:  # without a mask, a quarter as large as the weights
    return value.itemsize == 1 or not value.numel() or all(map(torch.isfinite, value.aminmax()))


def _fill(given: dict[str, Any], build: Callable[[], nn.Module], report: LoadReport) -> None:
    """Give the model its weights; what is new comes from a model that is built as usual."""
    if report.missing:
        fresh = build().state_dict()
        given |= {name: fresh[name] for name in report.missing}
    values = {**dict(report.model.named_buffers()), **given}
    if empty := [name for name, value in values.items() if value.is_meta]:
        raise CheckpointError(f"{few(empty)} would stay on meta: build the model without meta")
    load_strictly(report.model, given)


def save(model: nn.Module, path: str | Path) -> None:
    """Write a model's weights as safetensors, an atomic write; tied weights are written once."""
    with files.atomic_write(path) as part:
        safetensors.torch.save_model(model, part, metadata={"format": "pt"})
