"""Checkpoints from another machine: look into one, load it safely, say what was done (notebook 03).

Silent success is the fault to fear: a file that "loads" and leaves random weights. So `load` takes a weight only where
name, shape and kind of number agree, reports whatever it changed, and stops where anything is left over.
"""

import contextlib
import hashlib
import itertools
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.core import cuda, files
from helpers.lessons.checkpoint_files import (
    CheckpointError,
    _explained,
    _few,
    _lead,
    _mapped,
    _states,
    _zip,
    inspect,
)

import safetensors.torch
import torch
from torch import nn

WRAPPERS = ("module", "_orig_mod")  # what DataParallel and torch.compile put before the names
# Parts of Python and NumPy that only hold values. Anything else of theirs might act, and is never allowed.
_HARMLESS = re.compile(
    r"numpy\.(_?core\.(multiarray\.(scalar|_reconstruct)|numeric\._frombuffer)|ndarray|dtype|dtypes\.\w+|[a-z]+\d+)|"
    r"(collections\.(defaultdict|deque)|datetime\.\w+|decimal\.Decimal|fractions\.Fraction|uuid\.UUID)|"
    r"(argparse|types)\.\w*Namespace|pathlib\.(_local\.)?\w*Path|builtins\.(dict|float|frozenset|int|list|range|slice)"
)
_POSITIONS = re.compile(r"(^|\.)embeddings\.position_ids$")


def _optimizers(tree: Any) -> Iterator[tuple[str, Mapping]]:
    for name, thing in {"": tree, **(tree if isinstance(tree, dict) else {})}.items():
        if isinstance(thing, dict) and {"state", "param_groups"} <= thing.keys():
            yield name, thing


def _names(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else [*names]


def _within(name: str, parts: Iterable[str]) -> bool:
    return any(f".{part}." in f".{name}." for part in parts)


def _allowed(names: Iterable[str]) -> Iterator[tuple[Any, str]]:
    for name in names:
        try:
            # A path of another system's or Python's kind is read as one that only names a place.
            here = re.sub(r"^pathlib\.(_local\.)?(?=(Posix|Windows)Path$)", "pathlib.Pure", name)
            thing = pkgutil.resolve_name(here.replace("numpy.core.", "numpy._core."))
        except (ImportError, AttributeError, ValueError) as error:
            raise CheckpointError(
                f"a pickle needs what it names, and {name} is not here: {error}"
            ) from error
        # Not where the file says it is: "my.subprocess.Popen" is Popen.
        home = str(getattr(thing, "__module__", ""))
        own = home == "__main__" or home.partition(".")[0] not in sys.stdlib_module_names | {
            "numpy"
        }
        if not _HARMLESS.fullmatch(name) and not (own and isinstance(thing, type)):
            raise CheckpointError(f"{name} can do more than hold values: it is never allowed")
        yield thing, name
        if name == "numpy.dtype":  # its instances have classes of their own
            kinds = vars(pkgutil.resolve_name("numpy.dtypes")).items()
            yield from (
                (kind, f"numpy.dtypes.{name}") for name, kind in kinds if isinstance(kind, type)
            )


def _read(path: Path, key: str | None, allow: Iterable[str], find: Callable) -> tuple[Mapping, str]:
    """What `find` finds in a file, at `key` or the only one, mapped into memory; and how the bytes were checked."""
    look, allow, mapped = inspect(path), _names(allow), False
    if look.format not in ("zip", "legacy", "safetensors"):
        text = "which safe loading does not read; where it came from, torch.save(model.state_dict(), ...) makes one"
        raise CheckpointError(f"{path.name} is a {look.format}, {text}")
    if refused := [name for name in look.refused if name not in allow]:
        whole = (
            f" It is a whole model: where its class {look.whole} is, save model.state_dict()."
            * bool(look.whole)
        )
        text = f"{path.name} names what safe loading refuses, as it could be made to act: {', '.join(refused)}."
        raise CheckpointError(
            f"{text}{whole} Names that you know, from a sender you trust: allow=[...] for this load."
        )
    with _explained(path):
        checked = "nothing, the file has no checksums"
        if look.format == "safetensors":
            tree, meta = _mapped(path)
            if "sha256" in meta and meta["sha256"] != _digest(tree):
                raise ValueError("its SHA-256, which `save` wrote into it, does not agree")
            checked = "SHA-256" if "sha256" in meta else checked
            tree |= {
                name: tree[kept] for name, kept in meta.items() if kept in tree and name not in tree
            }
        else:
            if look.format == "zip":
                with _zip(path) as archive:
                    if broken := archive.testzip():
                        raise ValueError(f"the checksum of {broken} does not agree")
                    records = archive.infolist()
                checked = "CRC-32" if records[0].CRC is not None else checked
                # torch.load would believe the name, and map packed bytes as if they were numbers
                mapped = path.suffix != ".safetensors" and not any(
                    record.compress_type for record in records
                )
            with torch.serialization.safe_globals(list(_allowed(allow))), path.open("rb") as file:
                tree = torch.load(
                    path if mapped else file, map_location="cpu", weights_only=True, mmap=mapped
                )
    parts = dict(find(tree))
    key = (
        next(iter(parts))
        if key is None and len(parts) == 1 and "/" not in next(iter(parts))
        else key
    )
    if key not in parts:
        there = ", ".join(map(repr, parts)) or f"none, only {_few(look.nesting or look.tensors)}"
        raise CheckpointError(f"{path.name}: say which with key=...; there is {there}")
    return parts[key], checked


def _digest(state: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _rename(names: list[str], own: Iterable[str]) -> dict[str, str]:
    """The model's name for each name in the file. Only what all names begin with is taken off or put on."""
    bases = Counter(name.split(".")[0] for name in own)  # most are in "bert", in a BERT with a head
    lead, known = _lead(names), set(own)
    ours = _lead(name for name in own if name.split(".")[0] == max(bases, key=bases.get))
    rest = {name: ".".join(name.split(".")[len(lead) :]) for name in names}
    for old, today in {
        "gamma": "weight",
        "beta": "bias",
    }.items():  # in files that came from TensorFlow
        rest = {
            name: re.sub(rf"(?<=LayerNorm\.){old}$", today, short) for name, short in rest.items()
        }
    best, most = {}, -1
    for left in range(len(lead), -1, -1):
        for kept, more in itertools.product(
            itertools.combinations(lead, left), range(len(ours) + 1)
        ):
            fitted = {name: ".".join([*ours[:more], *kept, short]) for name, short in rest.items()}
            if (hits := len(known.intersection(fitted.values()))) > most:
                best, most = fitted, hits
    return best


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Modules built inside get parameters without memory, tied where they were tied; their buffers are real."""

    def replace(module, name, parameter):
        if parameter is None or parameter.is_meta:
            return None
        if not hasattr(parameter, "on_meta"):
            parameter.on_meta = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        return parameter.on_meta

    hook = nn.modules.module.register_module_parameter_registration_hook(replace)
    try:
        yield
    finally:
        hook.remove()


@dataclass
class LoadReport:
    """What `load` did. loaded, missing: names in the model, the missing ones being in `new`, untrained parts;
    unexpected: names in the file that were dropped; renamed: file's name -> model's; dtypes: model's name -> change;
    notes: anything else; checked: what the file's bytes were checked by.
    """

    model: nn.Module
    loaded: list[str]
    missing: list[str]
    unexpected: list[str]
    renamed: dict[str, str]
    dtypes: dict[str, str]
    notes: list[str]
    checked: str

    def __str__(self) -> str:
        lines = [
            f"{len(self.loaded)} weights loaded into {type(self.model).__name__}; bytes checked by {self.checked}"
        ]
        lines += [f"  new, untrained: {_few(self.missing)}"] * bool(self.missing)
        lines += [f"  dropped: {_few(self.unexpected)}"] * bool(self.unexpected)
        first = [f"{old} -> {name}" for old, name in self.renamed.items()][:1]
        lines += [f"  renamed: {len(self.renamed)}, such as {name}" for name in first]
        lines += [
            f"  {count} with numbers {change}"
            for change, count in Counter(self.dtypes.values()).items()
        ]
        return "\n".join(lines + [f"  {note}" for note in self.notes])


def load(
    path, model, device="cpu", *, key=None, allow=(), new=(), drop=(), dtype=None, at_least=0.5
) -> LoadReport:
    """Load the weights in a file into a model, on the CPU first, then on `device`: all of them, or an error and none.

    model: a function that builds it (its own weights are then never allocated, and it comes back in eval mode), or the
    model itself. key: which set of weights, where there are several. allow: names that safe loading refuses, permitted
    for this one load. new: parts of the model that the file lacks; drop: parts of the file that the model lacks. dtype:
    of the numbers, by default the model's. at_least: the share of the model's numbers that has to come from the file.
    Weights stay mapped to the file until they change: never write into it, replace it, as `save` does. Build optimizers
    afterwards. Raises CheckpointError; then the model given is as it was.
    """
    path, new, drop = Path(path), _names(new), _names(drop)
    _check_options(device, dtype)
    with _parameters_on_meta():
        core, twin = _build(model)
    state, checked = _read(path, key, allow, _states)
    own, notes, seen = core.state_dict(keep_vars=True), [], set()
    if odd := [name for name, value in own.items() if not isinstance(value, torch.Tensor)]:
        raise CheckpointError(
            f"{_few(odd)} in the model is no tensor: use the model's own load_state_dict, strictly"
        )
    dropped = [str(name) for name in state if _within(name, drop)]
    state = {str(name): value for name, value in state.items() if name not in dropped}
    for name in (
        [n for n in state if _POSITIONS.search(n)] if not any(map(_POSITIONS.search, own)) else ()
    ):
        value = state[name]
        if (
            isinstance(value, torch.Tensor)
            and not value.is_meta
            and value.ravel().tolist() == [*range(value.numel())]
        ):
            notes.append(f"left out {name}, which newer versions compute")
            del state[name]
    names = _rename(list(state), own)
    given = {name: state[old] for old, name in names.items()}
    extra, twice = (
        [old for old, name in names.items() if name not in own],
        Counter(names.values()) - Counter([*given]),
    )
    misfits = [f"not in the model: {_few(extra)}"] * bool(extra) + [
        f"given twice: {_few(twice)}"
    ] * bool(twice)
    tied = {id(value): [name for name in own if own[name] is value] for value in own.values()}
    full, missing, dtypes = {}, [], {}
    for group in tied.values():
        first, found = own[group[0]], [name for name in group if name in given]
        if not found and _POSITIONS.search(group[0]) and not first.is_meta:
            notes.append(f"computed {group[0]}, which the file lacks")
        elif not found:
            missing += group
        wanted = dtype if dtype and first.is_floating_point() else first.dtype
        for name in found:
            misfits += _misfit(name, given[name], first, wanted)
        if found and not misfits:
            stored = given[found[0]].detach()
            misfits += [f"{name} is tied to {found[0]} in the model, not in the file" for name in found[1:]
                        if not _same(given[name], stored)]  # fmt: skip
            value = stored.to(wanted).contiguous()
            # What is tied in the file, and not in the model, would be changed together.
            value = value.clone() if value.untyped_storage()._cdata in seen else value
            seen.add(value.untyped_storage()._cdata)
            if not _finite(value):
                notes.append(f"{found[0]} holds numbers that are not finite")
            value = (
                nn.Parameter(value, first.requires_grad)
                if isinstance(first, nn.Parameter)
                else value
            )
            full |= dict.fromkeys(group, value)
            if stored.dtype != wanted:
                dtypes |= dict.fromkeys(group, f"{stored.dtype} -> {wanted}".replace("torch.", ""))
    if lost := [name for name in missing if not _within(name, new)]:
        misfits.append(f"not in the file: {_few(lost)}")
    share = sum(own[name].numel() for name in full) / max(
        1, sum(value.numel() for value in own.values())
    )
    if misfits or share < at_least:
        misfits = misfits or [f"only {share:.0%} of the numbers would be loaded"]
        depth = len(_lead(names))
        parts = [
            _few(dict.fromkeys(n.split(".")[i] for n in group))
            for group, i in ((names, depth), (own, 0))
        ]
        raise CheckpointError(
            f"{path.name} does not fit {type(core).__name__}, {len(set(given) & set(own))} of whose {len(own)} weights "
            f"it has: {'; '.join(misfits)}. Parts of the file: {parts[0]}; of the model: {parts[1]}. Say which are "
            "to be new=[...], as the file lacks them, and which to drop=[...]"
        )
    for name, buffer in twin.named_buffers() if twin is not core else ():
        mine, (place, _, leaf) = core.get_buffer(name), name.rpartition(".")
        same = (
            mine.is_meta
            or mine.shape != buffer.shape
            or torch.equal(mine.cpu(), buffer.to(mine.dtype))
        )
        if name not in own and (mine.is_meta or not same):
            core.get_submodule(place)._buffers[leaf] = buffer.to(device if mine.is_meta else mine)
            notes.append(f"computed the buffer {name} anew")
    _initialize(core, [name for name in missing if own[name].is_meta])
    if empty := [
        n
        for n, t in (*core.named_parameters(), *core.named_buffers())
        if t.is_meta and n not in full
    ]:
        raise CheckpointError(
            f"{_few(empty)} would stay on meta, without data: give load a function that builds the model"
        )
    core.load_state_dict(full, strict=False, assign=True)
    renamed = {old: name for old, name in names.items() if old != name}
    return LoadReport(
        core.to(device), list(full), missing, dropped, renamed, dtypes, notes, checked
    )


def _check_options(device: Any, dtype: torch.dtype | None) -> None:
    """Before anything is changed: a device that exists, numbers that can be weights."""
    if not getattr(dtype or torch.float32, "is_floating_point", False):
        raise CheckpointError(
            f"dtype={dtype!r}: weights are floating-point numbers, such as torch.float32"
        )
    try:
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(cuda.cuda_status().reason)
        if torch.empty(0, device=device).is_meta:
            raise RuntimeError("nothing has numbers there")
    except (RuntimeError, AssertionError) as error:
        raise CheckpointError(f"{device!r} was asked for, but {error}") from error


def _build(model: nn.Module | Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    """The model to fill, and one like it with buffers as they are computed at first."""
    if isinstance(model, nn.Module):
        try:
            return model, type(model)(model.config) if hasattr(
                type(model), "config_class"
            ) else model
        except TypeError:  # its class takes more than a configuration
            return model, model
    try:
        core = model()
        return core.eval(), core
    except Exception as error:
        text = "it is a function that builds the model, or the model itself, which helps where building needs numbers"
        raise CheckpointError(
            f"model: {text}; this one failed with {type(error).__name__}: {error}"
        ) from error


def _initialize(core: nn.Module, names: list[str]) -> None:
    """Numbers for new parameters, as the module that has them makes them; those that are tied stay tied."""
    parts, made = dict.fromkeys(core.get_submodule(name.rpartition(".")[0]) for name in names), {}
    for part in parts:
        for leaf, weight in part._parameters.items():
            if weight is not None and weight.is_meta:
                empty = torch.full_like(weight, torch.nan, device="cpu")
                part._parameters[leaf] = made.setdefault(
                    weight, nn.Parameter(empty, weight.requires_grad)
                )
    for part in parts:
        if hasattr(core, "_init_weights") or hasattr(part, "reset_parameters"):
            core._init_weights(part) if hasattr(core, "_init_weights") else part.reset_parameters()
    if left := [name for name in names if core.get_parameter(name).isnan().any()]:
        raise CheckpointError(
            f"nothing says how {_few(left)} begins: give load the model itself, built as always"
        )


def _finite(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() and tensor.numel()):
        return True
    return all(
        map(torch.isfinite, torch.aminmax(tensor.float() if tensor.itemsize == 1 else tensor))
    )


def _same(
    one: torch.Tensor, other: torch.Tensor
) -> bool:  # the first without a look at the numbers: NaN is not NaN
    return (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride()) or torch.equal(
        one, other
    )


def _misfit(name: str, value: Any, own: torch.Tensor, wanted: torch.dtype) -> list[str]:
    if not isinstance(value, torch.Tensor):
        return [f"{name} is a {type(value).__name__} in the file"]
    if value.shape != own.shape:
        return [
            f"{name} has shape {tuple(value.shape)} in the file, {tuple(own.shape)} in the model"
        ]
    integers, tiny = (
        value.is_floating_point() != own.is_floating_point(),
        value.itemsize < 2 <= own.itemsize,
    )
    if value.is_meta or integers or tiny or value.layout != torch.strided:
        what = (
            "no data"
            if value.is_meta
            else value.dtype
            if value.layout == torch.strided
            else value.layout
        )
        return [f"{name} has {what} in the file, {own.dtype} in the model"]
    if value.dtype == wanted:
        return []
    kept = _finite(value.to(wanted)) or not _finite(value)
    whole = value.is_floating_point() or torch.equal(value.to(wanted).to(value.dtype), value)
    return [f"{name} has numbers in the file that {wanted} cannot hold"] * (not (kept and whole))


def load_optimizer(path, optimizer: torch.optim.Optimizer, *, key=None, allow=()) -> None:
    """Give an optimizer, built after the model was loaded and moved, its state in a file, each on its weight's device.

    key: where in the file, if there are several. Raises CheckpointError if the state is of other weights.
    """
    saved, path = _read(Path(path), key, allow, _optimizers)[0], Path(path).name
    ours, theirs = optimizer.param_groups, saved["param_groups"]
    if [len(group["params"]) for group in ours] != [len(group["params"]) for group in theirs]:
        raise CheckpointError(f"{path}: its optimizer has other groups of weights than this one")
    added = set(theirs[0]) - set(ours[0]) - {"initial_lr", "param_names"}  # by schedulers, by names
    if added and set(ours[0]) - set(theirs[0]):
        raise CheckpointError(
            f"{path}: it is the state of another kind of optimizer, with {_few(sorted(added))}"
        )
    names = [
        [name for group in groups for name in group.get("param_names", ())]
        for groups in (ours, theirs)
    ]
    if (
        all(names)
        and len({str([name.split(".")[len(_lead(some)) :] for name in some]) for some in names}) > 1
    ):
        raise CheckpointError(
            f"{path}: its optimizer has the weights {_few(names[1])}, this one {_few(names[0])}"
        )
    numbers = [number for group in theirs for number in group["params"]]
    for mine, number in zip(
        (weight for group in ours for weight in group["params"]), numbers, strict=True
    ):
        for name, value in saved["state"].get(number, {}).items():
            if (
                isinstance(value, torch.Tensor)
                and value.dim() >= mine.dim() > 0
                and value.shape != mine.shape
            ):
                raise CheckpointError(
                    f"{name} of shape {tuple(value.shape)} belongs to no weight {tuple(mine.shape)}"
                )
    optimizer.load_state_dict(saved)
    for weight, state in optimizer.state.items():
        for name, value in state.items():  # Adam's counter has no dimension and may stay on the CPU
            if isinstance(value, torch.Tensor) and value.dim() and value.device != weight.device:
                raise CheckpointError(f"{name} is on {value.device}, its weight on {weight.device}")


def save(model: nn.Module | Mapping[str, torch.Tensor], path: str | Path) -> None:
    """Write a model's weights as safetensors, with a checksum that `load` compares; the file appears whole or never.

    Tied weights are written once, and the other names noted as safetensors' own save_model notes them. transformers
    reads the file. Raises CheckpointError for what is no tensor.
    """
    state, first, names = model.state_dict() if isinstance(model, nn.Module) else model, {}, {}
    for name, value in state.items():
        plain = (
            isinstance(value, torch.Tensor)
            and value.layout == torch.strided
            and not value.is_quantized
        )
        if not plain or value.is_meta or not isinstance(name, str):
            raise CheckpointError(
                f"{name!r} has no numbers that safetensors can hold: {type(value).__name__}"
            )
        same = (
            value.untyped_storage()._cdata,
            value.storage_offset(),
            value.shape,
            value.stride(),
            value.dtype,
        )
        names[name] = first.setdefault(same, name)
    kept = {n: state[n].detach().cpu().contiguous() for n in first.values()}
    views = Counter(value.untyped_storage()._cdata for value in kept.values())
    kept = {n: v.clone() if views[v.untyped_storage()._cdata] > 1 else v for n, v in kept.items()}
    meta = {"format": "pt", "sha256": _digest(kept)} | {
        name: other for name, other in names.items() if name != other
    }
    with files.atomic_write(path) as part:
        safetensors.torch.save_file(kept, part, meta)


def convert(path: str | Path, target: str | Path, *, key=None, allow=()) -> None:
    """Write the weights of any file that `load` reads as safetensors, under the same names, without a model."""
    save(_read(Path(path), key, allow, _states)[0], target)
