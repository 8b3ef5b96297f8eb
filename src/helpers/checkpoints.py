"""Checkpoints from another machine: look into one, load it safely, say what was done (notebook 03).

Silent success is the fault to fear: a file that "loads" and leaves random weights. So `load` takes a weight only where
name, shape and kind of number agree, reports whatever it changed, and stops where anything is left over.
"""

import _compat_pickle
import contextlib
import hashlib
import io
import itertools
import mmap
import pickle
import pkgutil
import re
import sys
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from helpers import files, machine

import safetensors.torch
import torch
from torch import nn
from torch._weights_only_unpickler import _get_allowed_globals

WRAPPERS = ("module", "_orig_mod")  # what DataParallel and torch.compile put before the names
ZIP_VERSION = 10  # the newest version of torch.save's format that torch 2.13 reads
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # a pickled number: how torch.save began until 1.6
_STORAGES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64"}
_STORAGES |= {"Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}
_SIGNATURES = {
    rb"version https://git-lfs": "a Git LFS pointer, a note in the place of a large file: `git lfs pull` gets the file",
    rb"(\xef\xbb\xbf)?\s*<": "a web page: what was saved is the page about the file, or one that asks for a login",
    rb"\s*[{\[]": "JSON: an error message, or the index of a model in several files, which are loaded one by one",
    rb"\x1f\x8b|BZh|\xfd7z|7z\xbc|\(\xb5/\xfd|Rar!|(?s:.{257})ustar": "a packed archive: unpack it first",
    rb"\x89HDF|GGUF|\x93NUMPY": "another program's (HDF5, GGUF or NumPy): torch cannot read it",
}
# Parts of Python and NumPy that only hold values. Anything else of theirs might act, and is never allowed.
_HARMLESS = re.compile(
    r"numpy\.(_?core\.(multiarray\.(scalar|_reconstruct)|numeric\._frombuffer)|ndarray|dtype|dtypes\.\w+|[a-z]+\d+)|"
    r"(collections\.(defaultdict|deque)|datetime\.\w+|decimal\.Decimal|fractions\.Fraction|uuid\.UUID)|"
    r"(argparse|types)\.\w*Namespace|pathlib\.(_local\.)?\w*Path|builtins\.(dict|float|frozenset|int|list|range|slice)"
)
_POSITIONS = re.compile(r"(^|\.)embeddings\.position_ids$")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used as asked; the message names the cause and the way out."""


class StoredTensor(NamedTuple):
    """What a file says of a tensor; `device` is where it was saved from ("-" in safetensors, which does not say)."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "-"


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found. tensors: by name, after "/" and the keys above it; states: keys that lead to a set of
    weights ("" is the file itself) -> what all its names begin with; nesting: the top level; globals: functions and
    classes the file names, refused: those that safe loading does not run; whole: the class of a pickled model;
    devices, dtypes: where tensors were saved from, and their numbers' types -> how many.
    """

    path: Path
    format: str
    size: int
    tensors: dict[str, StoredTensor]
    states: dict[str, str]
    nesting: dict[str, str]
    globals: list[str]
    refused: list[str]
    whole: str
    devices: dict[str, int]
    dtypes: dict[str, int]

    def __str__(self) -> str:
        lines = [f"{self.path.name}: {self.format}, {self.size:,} bytes, {len(self.tensors)} tensors"]
        lines.append(f"  saved from {self.devices}, numbers {self.dtypes}")
        lines += [f"  holds {name!r}: {what}" for name, what in self.nesting.items()]
        lines += [f"  weights at {key!r}, all names begin {lead!r}" for key, lead in self.states.items() if key or lead]
        lines += [f"  a whole model of class {self.whole}"] * bool(self.whole)
        return "\n".join(lines + [f"  safe loading refuses {', '.join(self.refused)}"] * bool(self.refused))


class _StandIn(dict):
    """Stands for whatever a pickle names: takes all that unpickling does with it, and does nothing."""

    path, state = "", {}
    append = extend = add = __setitem__ = lambda self, *ignored: None
    __hash__ = object.__hash__

    def __init__(self, *args):
        super().__init__()

    def __setstate__(self, state):
        self.state = state

    def __call__(self, *args):
        return self


class _Reader(pickle._Unpickler):
    """Reads a pickle with stand-ins for everything it names: nothing of it runs, and no number is read.

    In Python, since one damaged byte can make pickle's C version ask for gigabytes of memory.
    """

    def __init__(self, file):
        super().__init__(file)
        self.names, self.bytes = {}, {}

    def find_class(self, module: str, name: str):
        def stored(storage, offset, size, stride, *rest):  # what _rebuild_tensor and its later versions are given
            return StoredTensor(tuple(size), rest[2].path[6:] if len(rest) == 3 else storage[0], storage[1])

        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))  # Python 2 had other names
        self.names[path := f"{_compat_pickle.IMPORT_MAPPING.get(module, module)}.{name}"] = None
        known = {f"torch._utils._rebuild_tensor{version}": stored for version in ("", "_v2", "_v3")}
        known["torch._utils._rebuild_meta_tensor_no_storage"] = lambda d, s, *_: StoredTensor(s, d.path[6:], "meta")
        known["torch._utils._rebuild_parameter"] = lambda data, *rest: data
        known["torch._tensor._rebuild_from_type_v2"] = lambda function, kind, args, state: function(*args)
        return known.get(path) or type(name, (_StandIn,), {"path": path}) if name != "OrderedDict" else OrderedDict

    def persistent_load(self, saved):
        if saved[0] == "module":  # a class in a legacy file, with its source
            return saved[1]
        dtype = _STORAGES.get(re.sub(r".*\.|Storage$", "", saved[1].path), "uint8")
        self.bytes[saved[2]] = 8 + saved[4] * getattr(torch, dtype).itemsize
        return dtype, saved[3]


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Whatever damaged bytes lead to becomes a CheckpointError, with the original as its cause."""
    try:
        yield
    except (CheckpointError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        cut = isinstance(error, EOFError) or re.search("incomplete|header length", str(error))
        what = "incomplete, a download or save was cut short" if cut else f"damaged ({type(error).__name__})"
        why = re.sub(r"(?s).*WeightsUnpickler error:\s*", "", str(error)).partition("\n")[0] or "it ends too early"
        raise CheckpointError(f"{path.name} (size {path.stat().st_size:,}) is {what}: {why}. Get it anew") from error


def inspect(path: str | Path) -> Inspection:
    """Look into a checkpoint without reading its numbers or running anything that it names.

    Formats, told by content and not by name: "zip" (torch.save since 1.6), "legacy" (before), "safetensors" and "plain
    pickle". Raises CheckpointError, which names the cause, for anything else and for what is broken.
    """
    path = Path(path)
    if path.is_dir():
        files = ", ".join(sorted(file.name for file in path.iterdir())[:8]) or "nothing"
        raise CheckpointError(f"{path.name} is a directory that holds {files}: name the file with the weights")
    with _explained(path), path.open("rb") as file:
        if not path.stat().st_size:
            raise EOFError("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            form, tree, names = _parse(path, data, data[:512])
    states = dict(_states(tree))
    whole = next((state.path for state in states.values() if isinstance(state, _StandIn)), "")
    nesting = tree if isinstance(tree, dict) and "" not in states else {}
    nesting = {str(key): getattr(value, "path", "") or type(value).__name__ for key, value in nesting.items()}
    refused = [name for name in names if name not in _get_allowed_globals()]
    leads = {key: "".join(f"{part}." for part in _lead(state)) for key, state in states.items()}
    tensors, size = dict(_tensors(tree, "", set())), path.stat().st_size
    counts = [dict(Counter(getattr(tensor, what) for tensor in tensors.values())) for what in ("device", "dtype")]
    return Inspection(path, form, size, tensors, leads, nesting, names, refused, whole, *counts)


def _parse(path: Path, data: mmap.mmap, start: bytes) -> tuple[str, Any, list[str]]:
    """Format, content with StoredTensor in the place of tensors, and what a pickle names."""
    what = f"{path.name} ({len(data):,} bytes)"
    if len(start) < 16:
        raise EOFError("no checkpoint is that small")
    if start.startswith(b"PK\x03\x04"):
        if data.rfind(b"PK\x05\x06", max(0, len(data) - 65_557)) < 0:
            raise EOFError("the archive's directory, which is written last, is missing")
        with _zip(path) as archive:
            records = {name.partition("/")[2]: name for name in archive.namelist()}
            if "data.pkl" not in records or "constants.pkl" in records:
                kind = "a TorchScript program, for torch.jit.load" if "constants.pkl" in records else "no checkpoint"
                raise CheckpointError(f"{what} is a zip archive, but {kind}; it holds {_few(archive.namelist())}")
            if "version" in records and int(archive.read(records["version"])) > ZIP_VERSION:
                raise CheckpointError(f"{what} has a newer format than this torch reads: update torch")
            pickled = archive.read(records["data.pkl"])
        reader = _Reader(io.BytesIO(pickled))
        form = "zip" if pickled[1] == 2 else f"zip with pickle protocol {pickled[1]}"
        return form, reader.load(), list(reader.names)
    if start[8:9] == b"{" and not start.startswith(b"\x80\x02"):
        tensors = _mapped(path)[0].items()
        return "safetensors", {name: StoredTensor(tuple(t.shape), str(t.dtype)[6:]) for name, t in tensors}, []
    if meaning := next((text for pattern, text in _SIGNATURES.items() if re.match(pattern, start)), None):
        raise CheckpointError(f"{what} is {meaning}")
    if start[0] != 0x80 or start[1] > pickle.HIGHEST_PROTOCOL:
        kind = f"pickle protocol {start[1]}, newer than this Python" if 0x80 == start[0] > 16 > start[1] else start[:8]
        raise CheckpointError(f"{what} is no known checkpoint, or damaged; it begins with {kind}")
    legacy = start.startswith(_LEGACY)
    for _ in range(3 if legacy else 0):  # the number above, the protocol, the byte order
        _Reader(data).load()
    reader = _Reader(data)
    tree = reader.load()
    if legacy and _Reader(data).load() is not None and sum(reader.bytes.values()) > len(data) - data.tell():
        raise EOFError("the last weights are missing")
    return "legacy" if legacy else "plain pickle", tree, list(reader.names)


def _zip(path: Path) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(path)
    if not any(record.CRC for record in archive.infolist()):  # torch can save without checksums: all are 0
        for record in archive.infolist():
            record.CRC = None
    return archive


def _mapped(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and notes of a safetensors file. They are mapped: no number is read before it is used."""
    with safetensors.safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def _enter(thing: Any, path: str, seen: set[int]) -> bool:
    """Whether to look into a container: into each once, as it may hold itself, and not into what no weights are in."""
    fresh = id(thing) not in seen and path.count("/") < 50
    seen.add(id(thing))
    return fresh


def _tensors(tree: Any, path: str, seen: set[int]) -> Iterator[tuple[str, StoredTensor]]:
    if isinstance(tree, StoredTensor):
        yield path or "tensor", tree
    elif isinstance(inside := getattr(tree, "state", None) or tree, dict | list | tuple) and _enter(inside, path, seen):
        for name, thing in inside.items() if isinstance(inside, dict) else enumerate(inside):
            yield from _tensors(thing, f"{path}/{name}".lstrip("/"), seen)


def _states(tree: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Mapping]]:
    """The sets of weights in what a checkpoint holds, by the keys that lead there."""
    seen = set() if seen is None else seen
    if isinstance(tree, nn.Module) or "_modules" in (getattr(tree, "state", None) or ()):
        yield path, tree.state_dict() if isinstance(tree, nn.Module) else tree
    elif isinstance(tree, dict) and "param_groups" not in tree:
        named = [isinstance(n, str) and isinstance(t, torch.Tensor | StoredTensor) for n, t in tree.items()]
        if 2 * sum(named) > len(named):
            yield path, tree
        for name, thing in tree.items() if _enter(tree, path, seen) else ():
            yield from _states(thing, f"{path}/{name}".lstrip("/"), seen)


def _optimizers(tree: Any) -> Iterator[tuple[str, Mapping]]:
    for name, thing in {"": tree, **(tree if isinstance(tree, dict) else {})}.items():
        if isinstance(thing, dict) and {"state", "param_groups"} <= thing.keys():
            yield name, thing


def _lead(names: Iterable[str]) -> list[str]:
    """The parts (between dots) with which all names begin, five at most; of every name at least one part is left."""
    columns = zip(*(str(name).split(".")[:-1] for name in names), strict=False)
    return [parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, columns)][:5]


def _few(names: Iterable[str]) -> str:
    return ", ".join([*names][:5]) + f" and {len([*names]) - 5} more" * (len([*names]) > 5)


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
            raise CheckpointError(f"a pickle needs what it names, and {name} is not here: {error}") from error
        # Not where the file says it is: "my.subprocess.Popen" is Popen.
        home = str(getattr(thing, "__module__", ""))
        own = home == "__main__" or home.partition(".")[0] not in sys.stdlib_module_names | {"numpy"}
        if not _HARMLESS.fullmatch(name) and not (own and isinstance(thing, type)):
            raise CheckpointError(f"{name} can do more than hold values: it is never allowed")
        yield thing, name
        if name == "numpy.dtype":  # its instances have classes of their own
            kinds = vars(pkgutil.resolve_name("numpy.dtypes")).items()
            yield from ((kind, f"numpy.dtypes.{name}") for name, kind in kinds if isinstance(kind, type))


def _read(path: Path, key: str | None, allow: Iterable[str], find: Callable) -> tuple[Mapping, str]:
    """What `find` finds in a file, at `key` or the only one, mapped into memory; and how the bytes were checked."""
    look, allow, mapped = inspect(path), _names(allow), False
    if look.format not in ("zip", "legacy", "safetensors"):
        text = "which safe loading does not read; where it came from, torch.save(model.state_dict(), ...) makes one"
        raise CheckpointError(f"{path.name} is a {look.format}, {text}")
    if refused := [name for name in look.refused if name not in allow]:
        whole = f" It is a whole model: where its class {look.whole} is, save model.state_dict()." * bool(look.whole)
        text = f"{path.name} names what safe loading refuses, as it could be made to act: {', '.join(refused)}."
        raise CheckpointError(f"{text}{whole} Names that you know, from a sender you trust: allow=[...] for this load.")
    with _explained(path):
        checked = "nothing, the file has no checksums"
        if look.format == "safetensors":
            tree, meta = _mapped(path)
            if "sha256" in meta and meta["sha256"] != _digest(tree):
                raise ValueError("its SHA-256, which `save` wrote into it, does not agree")
            checked = "SHA-256" if "sha256" in meta else checked
            tree |= {name: tree[kept] for name, kept in meta.items() if kept in tree and name not in tree}
        else:
            if look.format == "zip":
                with _zip(path) as archive:
                    if broken := archive.testzip():
                        raise ValueError(f"the checksum of {broken} does not agree")
                    records = archive.infolist()
                checked = "CRC-32" if records[0].CRC is not None else checked
                # torch.load would believe the name, and map packed bytes as if they were numbers
                mapped = path.suffix != ".safetensors" and not any(record.compress_type for record in records)
            with torch.serialization.safe_globals(list(_allowed(allow))), path.open("rb") as file:
                tree = torch.load(path if mapped else file, map_location="cpu", weights_only=True, mmap=mapped)
    parts = dict(find(tree))
    key = next(iter(parts)) if key is None and len(parts) == 1 and "/" not in next(iter(parts)) else key
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
    for old, today in {"gamma": "weight", "beta": "bias"}.items():  # in files that came from TensorFlow
        rest = {name: re.sub(rf"(?<=LayerNorm\.){old}$", today, short) for name, short in rest.items()}
    best, most = {}, -1
    for left in range(len(lead), -1, -1):
        for kept, more in itertools.product(itertools.combinations(lead, left), range(len(ours) + 1)):
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
class Report:
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
        lines = [f"{len(self.loaded)} weights loaded into {type(self.model).__name__}; bytes checked by {self.checked}"]
        lines += [f"  new, untrained: {_few(self.missing)}"] * bool(self.missing)
        lines += [f"  dropped: {_few(self.unexpected)}"] * bool(self.unexpected)
        first = [f"{old} -> {name}" for old, name in self.renamed.items()][:1]
        lines += [f"  renamed: {len(self.renamed)}, such as {name}" for name in first]
        lines += [f"  {count} with numbers {change}" for change, count in Counter(self.dtypes.values()).items()]
        return "\n".join(lines + [f"  {note}" for note in self.notes])


def load(path, model, device="cpu", *, key=None, allow=(), new=(), drop=(), dtype=None, at_least=0.5) -> Report:
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
        raise CheckpointError(f"{_few(odd)} in the model is no tensor: use the model's own load_state_dict, strictly")
    dropped = [str(name) for name in state if _within(name, drop)]
    state = {str(name): value for name, value in state.items() if name not in dropped}
    for name in [n for n in state if _POSITIONS.search(n)] if not any(map(_POSITIONS.search, own)) else ():
        value = state[name]
        if isinstance(value, torch.Tensor) and not value.is_meta and value.ravel().tolist() == [*range(value.numel())]:
            notes.append(f"left out {name}, which newer versions compute")
            del state[name]
    names = _rename(list(state), own)
    given = {name: state[old] for old, name in names.items()}
    extra, twice = [old for old, name in names.items() if name not in own], Counter(names.values()) - Counter([*given])
    misfits = [f"not in the model: {_few(extra)}"] * bool(extra) + [f"given twice: {_few(twice)}"] * bool(twice)
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
            value = nn.Parameter(value, first.requires_grad) if isinstance(first, nn.Parameter) else value
            full |= dict.fromkeys(group, value)
            if stored.dtype != wanted:
                dtypes |= dict.fromkeys(group, f"{stored.dtype} -> {wanted}".replace("torch.", ""))
    if lost := [name for name in missing if not _within(name, new)]:
        misfits.append(f"not in the file: {_few(lost)}")
    share = sum(own[name].numel() for name in full) / max(1, sum(value.numel() for value in own.values()))
    if misfits or share < at_least:
        misfits = misfits or [f"only {share:.0%} of the numbers would be loaded"]
        depth = len(_lead(names))
        parts = [_few(dict.fromkeys(n.split(".")[i] for n in group)) for group, i in ((names, depth), (own, 0))]
        raise CheckpointError(
            f"{path.name} does not fit {type(core).__name__}, {len(set(given) & set(own))} of whose {len(own)} weights "
            f"it has: {'; '.join(misfits)}. Parts of the file: {parts[0]}; of the model: {parts[1]}. Say which are "
            "to be new=[...], as the file lacks them, and which to drop=[...]"
        )
    for name, buffer in twin.named_buffers() if twin is not core else ():
        mine, (place, _, leaf) = core.get_buffer(name), name.rpartition(".")
        same = mine.is_meta or mine.shape != buffer.shape or torch.equal(mine.cpu(), buffer.to(mine.dtype))
        if name not in own and (mine.is_meta or not same):
            core.get_submodule(place)._buffers[leaf] = buffer.to(device if mine.is_meta else mine)
            notes.append(f"computed the buffer {name} anew")
    _initialize(core, [name for name in missing if own[name].is_meta])
    if empty := [n for n, t in (*core.named_parameters(), *core.named_buffers()) if t.is_meta and n not in full]:
        raise CheckpointError(
            f"{_few(empty)} would stay on meta, without data: give load a function that builds the model"
        )
    core.load_state_dict(full, strict=False, assign=True)
    renamed = {old: name for old, name in names.items() if old != name}
    return Report(core.to(device), list(full), missing, dropped, renamed, dtypes, notes, checked)


def _check_options(device: Any, dtype: torch.dtype | None) -> None:
    """Before anything is changed: a device that exists, numbers that can be weights."""
    if not getattr(dtype or torch.float32, "is_floating_point", False):
        raise CheckpointError(f"dtype={dtype!r}: weights are floating-point numbers, such as torch.float32")
    try:
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(machine.cuda_status().reason)
        if torch.empty(0, device=device).is_meta:
            raise RuntimeError("nothing has numbers there")
    except (RuntimeError, AssertionError) as error:
        raise CheckpointError(f"{device!r} was asked for, but {error}") from error


def _build(model: nn.Module | Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    """The model to fill, and one like it with buffers as they are computed at first."""
    if isinstance(model, nn.Module):
        try:
            return model, type(model)(model.config) if hasattr(type(model), "config_class") else model
        except TypeError:  # its class takes more than a configuration
            return model, model
    try:
        core = model()
        return core.eval(), core
    except Exception as error:
        text = "it is a function that builds the model, or the model itself, which helps where building needs numbers"
        raise CheckpointError(f"model: {text}; this one failed with {type(error).__name__}: {error}") from error


def _initialize(core: nn.Module, names: list[str]) -> None:
    """Numbers for new parameters, as the module that has them makes them; those that are tied stay tied."""
    parts, made = dict.fromkeys(core.get_submodule(name.rpartition(".")[0]) for name in names), {}
    for part in parts:
        for leaf, weight in part._parameters.items():
            if weight is not None and weight.is_meta:
                empty = torch.full_like(weight, torch.nan, device="cpu")
                part._parameters[leaf] = made.setdefault(weight, nn.Parameter(empty, weight.requires_grad))
    for part in parts:
        if hasattr(core, "_init_weights") or hasattr(part, "reset_parameters"):
            core._init_weights(part) if hasattr(core, "_init_weights") else part.reset_parameters()
    if left := [name for name in names if core.get_parameter(name).isnan().any()]:
        raise CheckpointError(f"nothing says how {_few(left)} begins: give load the model itself, built as always")


def _finite(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() and tensor.numel()):
        return True
    return all(map(torch.isfinite, torch.aminmax(tensor.float() if tensor.itemsize == 1 else tensor)))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:  # the first without a look at the numbers: NaN is not NaN
    return (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride()) or torch.equal(one, other)


def _misfit(name: str, value: Any, own: torch.Tensor, wanted: torch.dtype) -> list[str]:
    if not isinstance(value, torch.Tensor):
        return [f"{name} is a {type(value).__name__} in the file"]
    if value.shape != own.shape:
        return [f"{name} has shape {tuple(value.shape)} in the file, {tuple(own.shape)} in the model"]
    integers, tiny = value.is_floating_point() != own.is_floating_point(), value.itemsize < 2 <= own.itemsize
    if value.is_meta or integers or tiny or value.layout != torch.strided:
        what = "no data" if value.is_meta else value.dtype if value.layout == torch.strided else value.layout
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
        raise CheckpointError(f"{path}: it is the state of another kind of optimizer, with {_few(sorted(added))}")
    names = [[name for group in groups for name in group.get("param_names", ())] for groups in (ours, theirs)]
    if all(names) and len({str([name.split(".")[len(_lead(some)) :] for name in some]) for some in names}) > 1:
        raise CheckpointError(f"{path}: its optimizer has the weights {_few(names[1])}, this one {_few(names[0])}")
    numbers = [number for group in theirs for number in group["params"]]
    for mine, number in zip((weight for group in ours for weight in group["params"]), numbers, strict=True):
        for name, value in saved["state"].get(number, {}).items():
            if isinstance(value, torch.Tensor) and value.dim() >= mine.dim() > 0 and value.shape != mine.shape:
                raise CheckpointError(f"{name} of shape {tuple(value.shape)} belongs to no weight {tuple(mine.shape)}")
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
        plain = isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized
        if not plain or value.is_meta or not isinstance(name, str):
            raise CheckpointError(f"{name!r} has no numbers that safetensors can hold: {type(value).__name__}")
        same = (value.untyped_storage()._cdata, value.storage_offset(), value.shape, value.stride(), value.dtype)
        names[name] = first.setdefault(same, name)
    kept = {n: state[n].detach().cpu().contiguous() for n in first.values()}
    views = Counter(value.untyped_storage()._cdata for value in kept.values())
    kept = {n: v.clone() if views[v.untyped_storage()._cdata] > 1 else v for n, v in kept.items()}
    meta = {"format": "pt", "sha256": _digest(kept)} | {name: other for name, other in names.items() if name != other}
    with files.whole(path) as part:
        safetensors.torch.save_file(kept, part, meta)


def convert(path: str | Path, target: str | Path, *, key=None, allow=()) -> None:
    """Write the weights of any file that `load` reads as safetensors, under the same names, without a model."""
    save(_read(Path(path), key, allow, _states)[0], target)
