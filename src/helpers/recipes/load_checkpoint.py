"""Load a checkpoint from a GPU machine on any machine: every weight, or an error (notebook 03).

python load_checkpoint.py model.pth folder_with_config_json --save model.safetensors
"""

import argparse
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from torch import nn

# What DataParallel, torch.compile, FSDP and activation checkpointing put into names.
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}  # may be converted


def read_file(path: str | Path) -> Any:
    """Read a file of `torch.save` or safetensors into CPU memory, and run nothing of it."""
    with Path(path).open("rb") as file:
        if (start := file.read(9))[8:] == b"{":  # safetensors, whatever the file is called
            return safetensors.torch.load_file(path)
    if start.startswith((b"<", b"version h")):
        raise ValueError(f"{path} is a web page or a Git LFS pointer: download the file itself")
    mmap = False  # older files cannot be mapped, compressed ones would be taken for numbers
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            mmap = not any(record.compress_type for record in archive.infolist())
            if damaged := archive.testzip():  # torch.load compares no checksums
                raise ValueError(f"the checksum of {damaged} in {path} is wrong or left out")
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def is_state(value: Any, kind: type = torch.Tensor) -> bool:
    """Whether something is a set of weights: mostly tensors, by name."""
    if not isinstance(value, Mapping):
        return False
    named = [isinstance(name, str) and isinstance(item, kind) for name, item in value.items()]
    return 2 * sum(named) > len(named)


def read_state(content: Any, key: str | None = None) -> Mapping[str, torch.Tensor]:
    """Return what is at a key ("a/b": two levels) of a file's content, or the only weights."""
    for part in key.split("/") if key else []:
        content = content[int(part) if isinstance(content, list) else part]
    if key is not None or is_state(content):
        return content
    found = [name for name, value in content.items() if is_state(value)]
    if len(found) != 1:
        raise KeyError(f"weights are at {found} of {list(content)}: say which with key=")
    return content[found[0]]


def unwrapped(names: Iterable[str]) -> list[str]:
    """Take wrappers out of names, unless two names would become one."""
    names = list(names)
    short = [".".join(p for p in name.split(".") if p not in WRAPPERS) for name in names]
    return short if len(set(short)) == len(names) else names


def load_weights(model: nn.Module, state: Mapping[str, torch.Tensor]) -> nn.Module:
    """Fill a model with weights from a file, whatever wrapped either: all, or an error."""
    own = model.state_dict(keep_vars=True)
    names = dict(zip(unwrapped(own), own, strict=True))  # without wrappers -> in the model
    named = zip(unwrapped(state), state.values(), strict=True)
    given = {names.get(name, name): value for name, value in named}
    for name in [name for name in given.keys() - own.keys() if name.endswith(".position_ids")]:
        places = given[name].flatten().tolist()
        if places == list(range(len(places))):  # a buffer that newer versions compute
            del given[name]
    tied = {weight: given[name] for name, weight in own.items() if name in given}
    given |= {n: tied[w] for n, w in own.items() if w in tied and n not in given}
    for name in own.keys() & given.keys():
        value, weight = given[name], own[name]
        if value.dtype != weight.dtype and not {value.dtype, weight.dtype} <= FLOATS:
            raise TypeError(f"{name} is {value.dtype} in the file, {weight.dtype} in the model")
        if value is not tied[weight] and not torch.equal(value, tied[weight]):
            raise ValueError(f"{name} and others are tied in the model, not in the file")
    model.load_state_dict(given)  # strict: an error if a name is missing or left over
    return model.eval()  # dropout off


def load_checkpoint(path, build: Callable[[], nn.Module], device="cpu", key=None) -> nn.Module:
    """Build a model on the CPU, load all weights of a file into it, and move it to a device."""
    return load_weights(build(), read_state(read_file(path), key)).to(device)


def main(argv: list[str] | None = None) -> None:
    """Load a checkpoint into the model that a folder describes, and say what was loaded."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", help="the folder with the model's config.json")
    parser.add_argument("--class", dest="name", default="AutoModelForSequenceClassification")
    parser.add_argument("--key", help="where in the file the weights are, if in several places")
    parser.add_argument("--save", metavar="OUT.safetensors", help="write them without a pickle")
    given = parser.parse_args(argv)
    config = transformers.AutoConfig.from_pretrained(given.folder)
    config.dtype = torch.float32  # a model of 16 bits would round what the file holds
    kind = getattr(transformers, given.name)
    build = getattr(kind, "from_config", kind)  # automatic classes are not called
    model = load_checkpoint(given.checkpoint, lambda: build(config), key=given.key)
    print(f"all {len(model.state_dict())} tensors of {type(model).__name__} loaded")
    if given.save:
        safetensors.torch.save_model(model, given.save, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
