"""Load checkpoints from another machine, all weights or none, and say what was done (notebook 03).

The fault to fear is silent success: a file that "loads" and leaves random weights.
"""

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.core.quiet import quiet
from helpers.lessons.checkpoint_files import (
    CheckpointError,
    common_prefix,
    few,
    read_checked,
    read_shards,
    weights_file,
)
from helpers.recipes.load_checkpoint import unwrapped

import torch
from torch import nn


@dataclass
class LoadReport:
    """What `load` did. Names are those in the model."""

    model: nn.Module  # filled, in eval mode
    checked: str  # by what the bytes of the file were checked
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # not in the file: they are untrained
    renamed: dict[str, str] = field(default_factory=dict)  # names in the file -> in the model
    dtypes: Counter[str] = field(default_factory=Counter)  # how it changed -> how many weights
    notes: list[str] = field(default_factory=list)  # what else was changed or looks wrong

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

    They stay mapped to the file, so never write into it.

    Args:
        path: The checkpoint; of a model in several files its folder or index.
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
    path = weights_file(Path(path))
    index = path.suffix == ".json" and b'"weight_map"' in path.read_bytes()
    read = read_shards if index else read_checked
    state, checked, clue = read(path, key, allow_globals)
    report = LoadReport(model, checked)
    given = _match(state, report, allow_missing)
    problems = _compare(given, allow_missing, report)
    if 2 * len(report.loaded) < len(model.state_dict()):  # whatever allow_missing says
        problems.append("it has less than half of the model")
    if problems:
        share = f"{len(report.loaded)} of whose {len(model.state_dict())} weights it has"
        way = "Parts that the file may lack: allow_missing=[...]; for a head too many, build the "
        way += "model that has it, and take its base_model"
        if clue:
            way += f". Perhaps it is {clue}"
        what = f"{path.name} does not fit {type(model).__name__}"
        raise CheckpointError(f"{what}, {share}: {'; '.join(problems)}. {way}")
    _fill(given, build, report)
    return report


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


def _match(state: Mapping, report: LoadReport, optional: Iterable[str]) -> dict[str, Any]:
    """Return the weights under the model's names, as far as it has them."""
    own, given = report.model.state_dict(), {}
    names = _rename(state, own, optional)
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


def _rename(names: Iterable[str], own: Iterable[str], optional: Iterable[str]) -> list[str]:
    """Find the model's names: without wrappers, and below the part that holds most of the file."""
    ours, theirs = dict(zip(unwrapped(own), own, strict=True)), unwrapped(names)
    if not any(name.endswith("LayerNorm.gamma") for name in ours):  # of files by TensorFlow
        now = {"gamma": "weight", "beta": "bias"}
        old = re.compile(r"(?<=LayerNorm\.)(gamma|beta)$")
        theirs = [old.sub(lambda found: now[found[0]], name) for name in theirs]
    leads = defaultdict(list)
    for name in ours:
        for lead, tail in _splits(name) if not _within(ours[name], optional) else ():
            leads[tail].append(lead)
    votes, whole = Counter({("", ""): 0}), ".".join([*common_prefix(theirs), ""])
    splits = ((head, tail) for name in theirs for head, tail in _splits(name))
    pairs = ((head, lead) for head, tail in splits for lead in leads.get(tail, ()))
    # A part takes the place of another only if all of the file is below it.
    votes.update(pair for pair in pairs if not all(pair) or whole.startswith(pair[0]))
    (head, lead), count = votes.most_common(1)[0]
    rivals = [other for (first, other), n in votes.items() if first == head and n == count]
    if count > 1 and len(rivals) > 1 and lead:
        raise CheckpointError(f"the file fits {few(rivals)}: allow_missing=[...] the others")
    found = [lead + name.removeprefix(head) if name.startswith(head) else name for name in theirs]
    return [ours.get(name, name) for name in found]


def _splits(name: str) -> list[tuple[str, str]]:
    """Cut a name into head and tail in front of each part, at most five deep."""
    parts = name.split(".")
    cuts = range(min(len(parts), 6))
    return [("".join(f"{part}." for part in parts[:at]), ".".join(parts[at:])) for at in cuts]


def _tied_names(model: nn.Module) -> dict[torch.Tensor, list[str]]:
    """List all names of each weight: files often keep only one of them."""
    names: dict[torch.Tensor, list[str]] = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        names.setdefault(weight, []).append(name)
    return names


def _compare(given: Mapping, allow_missing: Iterable[str], report: LoadReport) -> list[str]:
    """Say what does not fit, and note what does."""
    misfits, own = [], report.model.state_dict()
    for weight, names in _tied_names(report.model).items():
        found = [name for name in names if name in given]
        for name in found:
            misfits += _misfit(name, given[name], weight, report)
        if found:
            report.loaded += names
        else:
            report.missing += names
    problems = misfits[:3]
    if len(misfits) > 3:
        problems.append(f"{len(misfits) - 3} others do not fit either")
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
    """Describe what may not differ; numbers of 8 bits mean nothing without their scale."""
    numbers = "floating-point" if tensor.is_floating_point() else "integer"
    if tensor.itemsize == 1 or tensor.is_complex():
        numbers = str(tensor.dtype).removeprefix("torch.")
    return f"{tuple(tensor.shape)}, {numbers}, {tensor.layout}".removesuffix(", torch.strided")


def _is_finite(value: torch.Tensor) -> bool:  # without a mask, a quarter as large as the weights
    return value.itemsize == 1 or not value.numel() or all(map(torch.isfinite, value.aminmax()))


def _fill(given: dict[str, Any], build: Callable[[], nn.Module], report: LoadReport) -> None:
    """Give the model its weights; what is new comes from a model that is built as usual."""
    model, used = report.model, set()
    if report.missing:
        fresh = build().state_dict()
        given |= {name: fresh[name] for name in report.missing}
    values = {**dict(model.named_buffers()), **given}
    if empty := [name for name, value in values.items() if value.is_meta]:
        raise CheckpointError(f"{few(empty)} would stay on meta: build the model without meta")
    for weight, names in _tied_names(model).items():
        first, *others = [given[name] for name in names if name in given]
        if any(one.data_ptr() != first.data_ptr() and (one != first).any() for one in others):
            raise ValueError(f"{', '.join(names)} are tied in the model, not in the file")
        value = first.detach().to(weight.dtype).contiguous()
        if value.untyped_storage().data_ptr() in used:
            value = value.clone()  # or training would change both
        used.add(value.untyped_storage().data_ptr())
        if isinstance(weight, nn.Parameter):
            value = nn.Parameter(value, weight.requires_grad)
        given |= dict.fromkeys(names, value)
    model.load_state_dict(given, assign=True)
    model.eval()


def load_optimizer(
    optimizer: torch.optim.Optimizer, path: str | Path, key: str = "", allow_globals: Iterable = ()
) -> None:
    """Give an optimizer the state in a file; build it after its model has moved.

    Raises CheckpointError for none, for several without a `key` ("optimizer_states/1"), and for one
    of other parameters; `load_state_dict` would take another shape in silence.
    """
    content, _, _ = read_checked(Path(path), key, allow_globals)
    parts = [content]
    for part in content.values():
        parts += part if isinstance(part, list) else [part]
    found = [part for part in parts if isinstance(part, Mapping) and "param_groups" in part]
    if len(found) != 1:
        raise CheckpointError(f"{Path(path).name} holds {len(found)} optimizers' states: key=...")
    for mine, other in zip(optimizer.param_groups, found[0]["param_groups"], strict=False):
        strange = other.keys() - mine.keys() - {"initial_lr", "param_names"}
        if strange or mine.get("param_names") != other.get("param_names", mine.get("param_names")):
            what = f"settings {few(sorted(strange))}" if strange else "parameters in another order"
            raise CheckpointError(f"{Path(path).name} is of another optimizer, with {what}")
    ours = [one for group in optimizer.param_groups for one in group["params"]]
    theirs = [place for group in found[0]["param_groups"] for place in group["params"]]
    for parameter, place in zip(ours, theirs, strict=False):  # load_state_dict counts them
        for name, value in found[0]["state"].get(place, {}).items():
            shape = getattr(value, "shape", ())
            if len(shape) == parameter.dim() and shape != parameter.shape:
                message = f"{name} of parameter {place} is {tuple(shape)}"
                raise CheckpointError(f"{message} in the file, {tuple(parameter.shape)} here")
    optimizer.load_state_dict(found[0])


def load_adapter(base: nn.Module, folder: str | Path) -> nn.Module:
    """Put a PEFT adapter on its base model, in place, and return the PeftModel in eval mode.

    Raises CheckpointError if names differ; peft would warn and leave an adapter without effect.
    """
    import peft  # takes seconds

    state, _, _ = read_checked(Path(folder) / "adapter_model.safetensors", None, ())
    with quiet():
        model = peft.PeftModel.from_pretrained(base, folder)
    if differ := peft.get_peft_model_state_dict(model).keys() ^ state.keys():
        what = f"the adapter of {Path(folder).name} does not fit {type(base).__name__}"
        raise CheckpointError(f"{what}: {few(sorted(differ))}. Load the base model anew")
    return model.eval()
