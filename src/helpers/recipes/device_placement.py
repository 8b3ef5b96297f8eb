"""Put a model and its inputs on one device, and prove it (notebook 01).

python device_placement.py MODEL_FOLDER --device auto "A text." "Another text."
python device_placement.py MODEL_FOLDER --device-map auto --save vectors.npy "A text."
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer


def resolve_device(name: str = "auto") -> torch.device:
    """Return the device of a name; "auto" takes the accelerator that is here, or the CPU.

    A device that is not here, or for which PyTorch has no code, is an error.
    """
    if name == "auto":
        name = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    # Computes now, and not in the middle of the work; and tells the index that "cuda" leaves out.
    return torch.ones(1, device=name).device


def move_to(value: Any, device: torch.device) -> Any:
    """Return a value with its tensors on a device: use what is returned.

    A module moves in place; tensors, dicts (a tokenizer's answer too), lists and tuples come
    back as new ones.
    """
    if isinstance(value, nn.Module | torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: move_to(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        moved = [move_to(item, device) for item in value]
        return value._make(moved) if hasattr(value, "_make") else type(value)(moved)
    return value


def tensors_of(module: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield name, kind and tensor of what PyTorch registered, and of attributes, lists, dicts."""
    saved = module.state_dict().keys()
    for name, parameter in module.named_parameters():
        yield name, "parameter", parameter
    for name, buffer in module.named_buffers():
        yield name, "buffer" if name in saved else "non-persistent buffer", buffer
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            several = isinstance(value, dict | list | tuple) and name[0] != "_"  # PyTorch's own
            items = value.values() if several and isinstance(value, dict) else value
            for item in items if several else [value]:
                if isinstance(item, torch.Tensor):
                    yield f"{prefix}.{name}".lstrip("."), "plain attribute", item


def left_behind(module: nn.Module, device: torch.device) -> list[str]:
    """Return the names of the tensors that are not on a device, such as plain attributes."""
    return [name for name, _, tensor in tensors_of(module) if tensor.device != device]


def run_on_model_device(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Call a model with inputs that follow it, whatever device it is on."""
    device = next(model.parameters()).device
    if hasattr(model, "hf_device_map") and device.type == "meta":
        device = torch.device("cpu")  # a spread model's hooks take the inputs on from there
    with torch.inference_mode():
        return model(**move_to(inputs, device))


def encode(model: nn.Module, tokenizer: Any, texts: Sequence[str]) -> np.ndarray:
    """Return a vector for each text, the mean over its real tokens: (texts, hidden), float32."""
    options = {"padding": True, "padding_side": "right", "truncation": True}
    inputs = tokenizer(list(texts), **options, return_tensors="pt")
    hidden = run_on_model_device(model, inputs).last_hidden_state.float().cpu()
    mask = inputs["attention_mask"].unsqueeze(-1)
    return ((hidden * mask).sum(1) / mask.sum(1)).numpy()


def load(folder: str, device: str = "auto", device_map: str | None = None) -> nn.Module:
    """Load a model on one device, or spread as a map says: "auto", or JSON of part and place."""
    if not device_map:
        return move_to(AutoModel.from_pretrained(folder), resolve_device(device))
    places = json.loads(device_map) if "{" in device_map else device_map
    return AutoModel.from_pretrained(folder, device_map=places)


def main(argv: list[str] | None = None) -> None:
    """Load a model folder, place it, encode texts, and print where everything is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="a model folder, or a name on the Hugging Face hub")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda:0, mps (default: auto)")
    parser.add_argument("--device-map", help='instead: auto, or {"encoder": "disk", ...}')
    parser.add_argument("--save", help="write the vectors to this .npy file")
    given = parser.parse_args(argv)
    model = load(given.folder, given.device, given.device_map)
    vectors = encode(model, AutoTokenizer.from_pretrained(given.folder), given.texts)
    placed = Counter(str(tensor.device) for _, _, tensor in tensors_of(model))
    print(f"{type(model).__name__}: {dict(placed)}")
    if hasattr(model, "hf_device_map"):
        print("spread as", model.hf_device_map, "(meta: fetched when its turn comes)")
    else:
        print("left behind:", ", ".join(left_behind(model, model.device)) or "nothing")
    print(f"vectors: {vectors.shape} {vectors.dtype}")
    if given.save:
        np.save(given.save, vectors)


if __name__ == "__main__":
    main()
