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


def read_file(path: str | Path) -> Any:
    """Read a file of `torch.save` or safetensors into CPU memory, and run nothing of it."""
    with Path(path).open("rb") as file:
        if file.read(9)[8:] == b"{":  # safetensors, whatever the file is called
            return safetensors.torch.load_file(path)
    mmap = False  # older files cannot be mapped, compressed ones would be taken for numbers
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            mmap = not any(record.compress_type for record in archive.infolist())
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
    """Take wrappers out of names, where all names below the same module have them."""
    paths, below = [name.split(".") for name in names], {}
    for parts in paths:
        for at, part in enumerate(parts):
            below.setdefault(tuple(parts[:at]), set()).add(part)

    def stays(parts: list[str], at: int) -> bool:
        return parts[at] not in WRAPPERS or len(below[tuple(parts[:at])]) > 1

    return [".".join(part for at, part in enumerate(p) if stays(p, at)) for p in paths]


def strip_wrappers(state: Mapping[str, torch.Tensor], model: nn.Module) -> dict[str, torch.Tensor]:
    """Name weights as the model does, whichever of the two is wrapped, in whole or in part."""
    own = list(model.state_dict())
    names = dict(zip(unwrapped(own), own, strict=True))
    named = zip(unwrapped(state), state.values(), strict=True)
    return {names.get(name, name): value for name, value in named}


def tied_names(model: nn.Module) -> dict[torch.Tensor, list[str]]:
    """List all names of each weight: files often keep only one of them."""
    names: dict[torch.Tensor, list[str]] = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        names.setdefault(weight, []).append(name)
    return names


def load_strictly(model: nn.Module, state: Mapping[str, torch.Tensor]) -> nn.Module:
    """Fill a model with the file's tensors, in the model's dtypes, or raise; eval mode."""
    filled, used = dict(state), set()
    for weight, names in tied_names(model).items():
        given = [state[name] for name in names if name in state]
        if not given:
            continue
        if any(one.data_ptr() != given[0].data_ptr() and (one != given[0]).any() for one in given):
            raise ValueError(f"{', '.join(names)} are tied in the model, not in the file")
        kinds = {(one.is_floating_point(), one.itemsize == 1) for one in (weight, *given)}
        if len(kinds) > 1 or (given[0].itemsize == 1 and given[0].dtype != weight.dtype):
            raise TypeError(f"{names[0]} is {given[0].dtype} in the file, {weight.dtype} here")
        value = given[0].detach().to(weight.dtype).contiguous()
        if value.untyped_storage().data_ptr() in used:
            value = value.clone()  # or training would change both
        used.add(value.untyped_storage().data_ptr())
        if isinstance(weight, nn.Parameter):
            value = nn.Parameter(value, weight.requires_grad)
        filled |= dict.fromkeys(names, value)
    model.load_state_dict(filled, strict=True, assign=True)
    return model.eval()


def load_checkpoint(
    path: str | Path, build: Callable[[], nn.Module], device: str = "cpu", key: str | None = None
) -> nn.Module:
    """Build a model and load a checkpoint; on the CPU its weights stay mapped to the file."""
    model = build()
    return load_strictly(model, strip_wrappers(read_state(read_file(path), key), model)).to(device)


def main(argv: list[str] | None = None) -> None:
    """Load a checkpoint into the model that a folder describes, and say what was loaded."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", help="the folder with the model's config.json")
    parser.add_argument("--class", dest="name", default="AutoModelForSequenceClassification")
    parser.add_argument("--key", help="where in the file the weights are, if in several places")
    parser.add_argument("--save", metavar="OUT.safetensors", help="write them without a pickle")
    given = parser.parse_args(argv)
    if given.save and Path(given.save).resolve() == given.checkpoint.resolve():
        parser.error("save to another file: the weights are mapped to this one")
    config = transformers.AutoConfig.from_pretrained(given.folder)
    kind = getattr(transformers, given.name)
    build = getattr(kind, "from_config", kind)  # automatic classes are not called
    model = load_checkpoint(given.checkpoint, lambda: build(config), key=given.key)
    print(f"all {len(model.state_dict())} tensors of {type(model).__name__} loaded")
    if given.save:
        safetensors.torch.save_model(model, given.save, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
