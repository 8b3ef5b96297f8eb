"""Look into a checkpoint file without running anything that it names (notebook 03)."""

import _compat_pickle
import contextlib
import io
import itertools
import json
import mmap
import pickle
import re
import textwrap
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from helpers.core import files
from helpers.recipes.load_checkpoint import is_state, read_file, read_state

import numpy as np
import torch
from torch._weights_only_unpickler import _get_allowed_globals, _get_user_allowed_globals

SIGNATURES = json.loads((files.DATA / "file_signatures.json").read_text(encoding="utf-8"))
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how torch.save began until 1.6
_CUT = "incomplete|header length|not a zip file|unexpected EOF|mmap an empty file"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used as asked; the message names the cause and the way out."""


class StoredTensor(NamedTuple):
    """What a file says of a tensor; safetensors does not say the device that it was saved from."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "-"


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found."""

    name: str  # of the file
    format: str  # "zip" (torch.save since 1.6), "legacy" (before) or "safetensors"
    size: int  # in bytes
    tensors: dict[str, StoredTensor]  # in sets of weights: by the key of the set, "/" and name
    states: dict[str, str]  # keys of sets of weights ("": all) -> what their names begin with
    nesting: dict[str, str]  # keys of the top level -> the type of what they hold
    refused: list[str]  # functions and classes that the file names and safe loading refuses
    whole: str  # the class of a pickled model, or ""
    clue: str  # what else it looks like, and how to load that, or ""

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.format}, {self.size:,} bytes, {len(self.tensors)} tensors"]
        devices = Counter(tensor.device for tensor in self.tensors.values())
        dtypes = Counter(tensor.dtype for tensor in self.tensors.values())
        lines.append(f"saved from {dict(devices)}, dtypes {dict(dtypes)}")
        lines += [f"holds {name!r}: {what}" for name, what in self.nesting.items()]
        for key, prefix in self.states.items():
            if key or prefix:
                lines.append(f"weights at {key!r}, all names begin with {prefix!r}")
        if self.whole:
            lines.append(f"a whole model of class {self.whole}")
        if self.refused:
            lines.append(f"safe loading refuses {', '.join(self.refused)}")
        if self.clue:
            lines.append(f"looks like {self.clue}")
        return "\n  ".join(lines)


class _StandIn(dict):
    """Stands for what a pickle names; takes all that unpickling does with it, and does nothing."""

    path, state = "", {}
    append = extend = add = __setitem__ = lambda self, *ignored: None
    __hash__ = object.__hash__

    def __init__(self, *args):
        super().__init__()

    def __setstate__(self, state):
        self.state = state if isinstance(state, dict) else {}

    def __call__(self, *args):
        return self


def _stored(storage, offset, size, stride, *rest) -> StoredTensor:
    # What torch's functions get that rebuild a tensor; the third version gets a dtype.
    dtype = rest[2].path.removeprefix("torch.") if len(rest) == 3 else storage[0]
    return StoredTensor(tuple(size), dtype, storage[1])


_REBUILT = {
    "collections.OrderedDict": OrderedDict,
    "torch._utils._rebuild_tensor": _stored,
    "torch._utils._rebuild_tensor_v2": _stored,
    "torch._utils._rebuild_tensor_v3": _stored,
    "torch._utils._rebuild_parameter": lambda data, *rest: data,
    "torch._tensor._rebuild_from_type_v2": lambda function, kind, args, state: function(*args),
}


class _Reader(pickle._Unpickler):
    """Reads a pickle with stand-ins for what it names: nothing of it runs, no number is read.

    In Python: one damaged byte can make pickle's C version ask for gigabytes of memory.
    """

    def __init__(self, file):
        super().__init__(file)
        self.names = {}

    def find_class(self, module: str, name: str):
        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
        path = f"{_compat_pickle.IMPORT_MAPPING.get(module, module)}.{name}"
        self.names[path] = None
        return _REBUILT.get(path) or type(name, (_StandIn,), {"path": path})

    def persistent_load(self, saved):
        if saved[0] == "module":  # a class in a legacy file, with its source
            return saved[1]
        storage = vars(torch).get(saved[1].path.rpartition(".")[2])
        return str(getattr(storage, "_dtype", torch.uint8)).removeprefix("torch."), saved[3]


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn whatever damaged bytes lead to into a CheckpointError, with the original as cause."""
    try:
        yield
    except (CheckpointError, FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:
        cut = isinstance(error, EOFError) or re.search(_CUT, str(error))
        what = "incomplete, its download or save was cut short" if cut else "corrupted"
        why = str(error).rpartition("WeightsUnpickler error:")[2].strip().partition("\n")[0]
        what += f" ({type(error).__name__}: {why})" if why else ""
        name = f"{path.name} ({path.stat().st_size:,} bytes)"
        raise CheckpointError(f"{name} is {what}. Download it again") from error


def inspect(path: str | Path) -> Inspection:
    """Look into a checkpoint without reading its numbers or running anything that it names.

    Raises:
        CheckpointError: If the content (not the name) is not a checkpoint, or is broken.
    """
    path = weights_file(Path(path))
    with explained(path), path.open("rb") as file:  # noqa: SIM117 (one line would be too long)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            form, tree, names = _parse(path, data)
    top = {"": tree}
    if type(tree) in (dict, OrderedDict) and not is_state(tree, StoredTensor):
        top = {str(key): value for key, value in tree.items()}
    states = {key: part for key, part in top.items() if is_state(part, StoredTensor)}
    tensors = {
        f"{key}/{name}".lstrip("/"): tensor
        for key, state in states.items()
        for name, tensor in state.items()
        if isinstance(tensor, StoredTensor)
    }
    models = [part for part in top.values() if "_modules" in getattr(part, "state", ())]
    allowed = _get_allowed_globals() | _get_user_allowed_globals()
    kinds = {key: getattr(part, "path", "") or type(part).__name__ for key, part in top.items()}
    clue = known("names", "\n".join(names)) or known(
        "holds", "\n".join([path.name, *kinds, *tensors])
    )
    refused = [
        name for name in names if name not in allowed or name.startswith("torch.distributed.")
    ]
    return Inspection(
        name=path.name,
        format=form,
        size=path.stat().st_size,
        tensors=tensors,
        states={
            key: "".join(f"{p}." for p in common_prefix(names)) for key, names in states.items()
        },
        nesting={key: kind for key, kind in kinds.items() if key},
        refused=refused,
        whole=models[0].path if models else "",
        clue=clue,
    )


def _parse(path: Path, data: mmap.mmap) -> tuple[str, Any, Iterable[str]]:
    start = data[:512]
    if start.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(path) as archive:
            records = {name.partition("/")[2]: name for name in archive.namelist()}
            if "data.pkl" not in records or "constants.pkl" in records:
                members = archive.namelist()
                what = known("zip", "\n".join(members)) or f"a zip archive of {few(members)}"
                raise CheckpointError(f"{path.name} is {what}")
            reader = _Reader(io.BytesIO(archive.read(records["data.pkl"])))
        return "zip", reader.load(), reader.names
    if start[8:9] == b"{":
        tensors = read_file(path).items()  # mapped: no number is read
        stored = {n: StoredTensor(tuple(t.shape), str(t.dtype)[6:]) for n, t in tensors}
        return "safetensors", stored, ()
    if start.startswith(_LEGACY):
        for _ in range(3):  # the number above, the protocol, the byte order
            _Reader(data).load()
        reader = _Reader(data)
        return "legacy", reader.load(), reader.names
    what = known("begins", start.decode("latin-1")) or known("named", path.name)
    what = what or f"not a known checkpoint format: it begins with {start[:8]}"
    raise CheckpointError(f"{path.name} ({len(data):,} bytes) is {what}")


def known(table: str, text: str) -> str:
    """Return what the first fitting row of data/file_signatures.json says, and the way out."""
    rows = (row for row in SIGNATURES[table] if re.search(row["says"], text))
    return next((f"{row['is']}: {row['do']}" for row in rows), "")


def weights_file(path: Path) -> Path:
    """Return the file of weights in a model's folder, or its index; a file as it is."""
    if not path.is_dir():
        return path
    there = {file.name for file in path.iterdir()}
    for name in ("model.safetensors", "pytorch_model.bin"):
        for file in (name, f"{name}.index.json"):
            if file in there:
                return path / file
    what = (
        known("folder", "\n".join(sorted(there)))
        or f"not a model's, it holds {few(there)}: load the file of weights"
    )
    raise CheckpointError(f"{path.name}: the folder is {what}")


def common_prefix(names: Iterable[str]) -> list[str]:
    """Return the parts with which all names begin, at most five; each keeps one part at least."""
    columns = zip(*(str(name).split(".")[:-1] for name in names), strict=False)
    same = itertools.takewhile(lambda parts: len(set(parts)) == 1, columns)
    return [parts[0] for parts in same][:5]


def few(names: Iterable[str]) -> str:
    """Write the first of some names."""
    return textwrap.shorten(", ".join(map(str, names)), 200, placeholder=" ...")


def read_shards(index: Path, key: str | None, allow_globals: Iterable) -> tuple[Any, str, str]:
    """Read all weights that an index lists from the files that it names, as `read_checked` does."""
    state, checked = {}, ""
    with explained(index):
        places = json.loads(index.read_text(encoding="utf-8-sig"))["weight_map"]
        names = sorted(set(places.values()))
    if lost := [
        name for name in names if Path(name).name != name or not (index.parent / name).is_file()
    ]:
        raise CheckpointError(f"{index.name} names {few(lost)}: not beside it, download it too")
    for name in names:
        part, checked, _ = read_checked(index.parent / name, key, allow_globals)
        state |= part
    if differ := places.keys() ^ state.keys():
        raise CheckpointError(f"{index.name} and its files differ, they are mixed: {few(differ)}")
    return state, checked, ""


def read_checked(path: Path, key: str | None, allow_globals: Iterable) -> tuple[Any, str, str]:
    """Return what is at a key (or the only weights), what checked the bytes, what it looks like."""
    allowed = list(allow_globals)
    if np.dtype in allowed:  # its instances have classes of their own
        allowed += [kind for kind in vars(np.dtypes).values() if isinstance(kind, type)]
    with torch.serialization.safe_globals(allowed):
        look = inspect(path)
        if look.refused:
            way = "If you know them and trust the sender: allow_globals=[...] for this load"
            if look.whole:
                way = f"It is a whole model: save its state_dict() where the class {look.whole} is"
            if look.clue and not look.states:
                way = f"It is {look.clue}"
            what = "names what safe loading refuses, because it could run code"
            raise CheckpointError(f"{path.name} {what}: {', '.join(look.refused)}. {way}")
        if key is None and len(look.states) == 1:
            key = next(iter(look.states))
        if key is None or key.partition("/")[0] not in {"", *look.nesting}:
            there = list(look.states) or f"none, only {few(look.nesting)}"
            what = f"weights are at {there}" + (f". It is {look.clue}" if look.clue else "")
            raise CheckpointError(f"{path.name}: say which with key=...; {what}")
        with explained(path):
            content = read_file(path)
        try:
            state = read_state(content, key)
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path.name} has nothing at key={key!r}") from error
        checked = "CRC-32" if look.format == "zip" else "nothing, the file has no checksums"
        return state, checked, look.clue
