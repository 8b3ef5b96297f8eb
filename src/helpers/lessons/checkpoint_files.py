"""Look into a checkpoint file without running anything in it."""

import _compat_pickle
import contextlib
import io
import itertools
import mmap
import pickle
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import nn
from torch._weights_only_unpickler import _get_allowed_globals

ZIP_VERSION = 10  # the newest version of torch.save's format that torch 2.13 reads


_LEGACY = (
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # a pickled number: how torch.save began until 1.6
)


_STORAGES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
}


_STORAGES |= {"Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}


_SIGNATURES = {
    rb"version https://git-lfs": "a Git LFS pointer, a note in the place of a large file: `git lfs pull` gets the file",
    rb"(\xef\xbb\xbf)?\s*<": "a web page: what was saved is the page about the file, or one that asks for a login",
    rb"\s*[{\[]": "JSON: an error message, or the index of a model in several files, which are loaded one by one",
    rb"\x1f\x8b|BZh|\xfd7z|7z\xbc|\(\xb5/\xfd|Rar!|(?s:.{257})ustar": "a packed archive: unpack it first",
    rb"\x89HDF|GGUF|\x93NUMPY": "another program's (HDF5, GGUF or NumPy): torch cannot read it",
}


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
        lines = [
            f"{self.path.name}: {self.format}, {self.size:,} bytes, {len(self.tensors)} tensors"
        ]
        lines.append(f"  saved from {self.devices}, numbers {self.dtypes}")
        lines += [f"  holds {name!r}: {what}" for name, what in self.nesting.items()]
        lines += [
            f"  weights at {key!r}, all names begin {lead!r}"
            for key, lead in self.states.items()
            if key or lead
        ]
        lines += [f"  a whole model of class {self.whole}"] * bool(self.whole)
        return "\n".join(
            lines + [f"  safe loading refuses {', '.join(self.refused)}"] * bool(self.refused)
        )


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
        def stored(
            storage, offset, size, stride, *rest
        ):  # what _rebuild_tensor and its later versions are given
            return StoredTensor(
                tuple(size), rest[2].path[6:] if len(rest) == 3 else storage[0], storage[1]
            )

        module, name = _compat_pickle.NAME_MAPPING.get(
            (module, name), (module, name)
        )  # Python 2 had other names
        self.names[path := f"{_compat_pickle.IMPORT_MAPPING.get(module, module)}.{name}"] = None
        known = {f"torch._utils._rebuild_tensor{version}": stored for version in ("", "_v2", "_v3")}
        known["torch._utils._rebuild_meta_tensor_no_storage"] = lambda d, s, *_: StoredTensor(
            s, d.path[6:], "meta"
        )
        known["torch._utils._rebuild_parameter"] = lambda data, *rest: data
        known["torch._tensor._rebuild_from_type_v2"] = lambda function, kind, args, state: function(
            *args
        )
        return (
            known.get(path) or type(name, (_StandIn,), {"path": path})
            if name != "OrderedDict"
            else OrderedDict
        )

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
        what = (
            "incomplete, a download or save was cut short"
            if cut
            else f"damaged ({type(error).__name__})"
        )
        why = (
            re.sub(r"(?s).*WeightsUnpickler error:\s*", "", str(error)).partition("\n")[0]
            or "it ends too early"
        )
        raise CheckpointError(
            f"{path.name} (size {path.stat().st_size:,}) is {what}: {why}. Get it anew"
        ) from error


def inspect(path: str | Path) -> Inspection:
    """Look into a checkpoint without reading its numbers or running anything that it names.

    Formats, told by content and not by name: "zip" (torch.save since 1.6), "legacy" (before), "safetensors" and "plain
    pickle". Raises CheckpointError, which names the cause, for anything else and for what is broken.
    """
    path = Path(path)
    if path.is_dir():
        files = ", ".join(sorted(file.name for file in path.iterdir())[:8]) or "nothing"
        raise CheckpointError(
            f"{path.name} is a directory that holds {files}: name the file with the weights"
        )
    with _explained(path), path.open("rb") as file:
        if not path.stat().st_size:
            raise EOFError("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            form, tree, names = _parse(path, data, data[:512])
    states = dict(_states(tree))
    whole = next((state.path for state in states.values() if isinstance(state, _StandIn)), "")
    nesting = tree if isinstance(tree, dict) and "" not in states else {}
    nesting = {
        str(key): getattr(value, "path", "") or type(value).__name__
        for key, value in nesting.items()
    }
    refused = [name for name in names if name not in _get_allowed_globals()]
    leads = {key: "".join(f"{part}." for part in _lead(state)) for key, state in states.items()}
    tensors, size = dict(_tensors(tree, "", set())), path.stat().st_size
    counts = [
        dict(Counter(getattr(tensor, what) for tensor in tensors.values()))
        for what in ("device", "dtype")
    ]
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
                kind = (
                    "a TorchScript program, for torch.jit.load"
                    if "constants.pkl" in records
                    else "no checkpoint"
                )
                raise CheckpointError(
                    f"{what} is a zip archive, but {kind}; it holds {_few(archive.namelist())}"
                )
            if "version" in records and int(archive.read(records["version"])) > ZIP_VERSION:
                raise CheckpointError(
                    f"{what} has a newer format than this torch reads: update torch"
                )
            pickled = archive.read(records["data.pkl"])
        reader = _Reader(io.BytesIO(pickled))
        form = "zip" if pickled[1] == 2 else f"zip with pickle protocol {pickled[1]}"
        return form, reader.load(), list(reader.names)
    if start[8:9] == b"{" and not start.startswith(b"\x80\x02"):
        tensors = _mapped(path)[0].items()
        return (
            "safetensors",
            {name: StoredTensor(tuple(t.shape), str(t.dtype)[6:]) for name, t in tensors},
            [],
        )
    if meaning := next(
        (text for pattern, text in _SIGNATURES.items() if re.match(pattern, start)), None
    ):
        raise CheckpointError(f"{what} is {meaning}")
    if start[0] != 0x80 or start[1] > pickle.HIGHEST_PROTOCOL:
        kind = (
            f"pickle protocol {start[1]}, newer than this Python"
            if 0x80 == start[0] > 16 > start[1]
            else start[:8]
        )
        raise CheckpointError(f"{what} is no known checkpoint, or damaged; it begins with {kind}")
    legacy = start.startswith(_LEGACY)
    for _ in range(3 if legacy else 0):  # the number above, the protocol, the byte order
        _Reader(data).load()
    reader = _Reader(data)
    tree = reader.load()
    if (
        legacy
        and _Reader(data).load() is not None
        and sum(reader.bytes.values()) > len(data) - data.tell()
    ):
        raise EOFError("the last weights are missing")
    return "legacy" if legacy else "plain pickle", tree, list(reader.names)


def _zip(path: Path) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(path)
    if not any(
        record.CRC for record in archive.infolist()
    ):  # torch can save without checksums: all are 0
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
    elif isinstance(inside := getattr(tree, "state", None) or tree, dict | list | tuple) and _enter(
        inside, path, seen
    ):
        for name, thing in inside.items() if isinstance(inside, dict) else enumerate(inside):
            yield from _tensors(thing, f"{path}/{name}".lstrip("/"), seen)


def _states(
    tree: Any, path: str = "", seen: set[int] | None = None
) -> Iterator[tuple[str, Mapping]]:
    """The sets of weights in what a checkpoint holds, by the keys that lead there."""
    seen = set() if seen is None else seen
    if isinstance(tree, nn.Module) or "_modules" in (getattr(tree, "state", None) or ()):
        yield path, tree.state_dict() if isinstance(tree, nn.Module) else tree
    elif isinstance(tree, dict) and "param_groups" not in tree:
        named = [
            isinstance(n, str) and isinstance(t, torch.Tensor | StoredTensor)
            for n, t in tree.items()
        ]
        if 2 * sum(named) > len(named):
            yield path, tree
        for name, thing in tree.items() if _enter(tree, path, seen) else ():
            yield from _states(thing, f"{path}/{name}".lstrip("/"), seen)


def _lead(names: Iterable[str]) -> list[str]:
    """The parts (between dots) with which all names begin, five at most; of every name at least one part is left."""
    columns = zip(*(str(name).split(".")[:-1] for name in names), strict=False)
    return [parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, columns)][
        :5
    ]


def _few(names: Iterable[str]) -> str:
    return ", ".join([*names][:5]) + f" and {len([*names]) - 5} more" * (len([*names]) > 5)
