"""int8 models made with PyTorch and torchao, what they cannot do, and a file to keep one in."""

import copy
import functools
from pathlib import Path

from helpers.core import files
from helpers.core.quiet import quiet
from helpers.core.tensors import is_packed, nbytes
from helpers.lessons.quantize_onnx import QuantizationReport
from helpers.models import inspection

import torch
import transformers
from torch import nn
from torchao import quantization  # needed by torch.load for files with its tensors

_REFUSALS = {
    "cuda": "it has int8 kernels for the CPU only: quantize the float model anew for the GPU, or "
    "stay on the CPU",
    "training": "int8 weights get no gradient: train the float model and quantize it afterwards, "
    "or train adapters (LoRA) on torchao's int8 weights with float activations",
    "export": "the exporter fails on them or writes floats: export the float model, then use "
    "onnx_dynamic",
}


def torch_dynamic(model: nn.Module) -> QuantizationReport:
    """Copy a float32 model on the CPU with int8 linear layers (torch.ao); embeddings stay float.

    The function is deprecated and still in PyTorch 2.13; this is the one place that calls it.
    Raises ValueError if nothing was replaced.
    """
    with quiet():
        from torch.ao.quantization import quantize_dynamic

        made = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return _report(model, made, "torch_dynamic")


def torchao_int8(model: nn.Module, activations: bool = False) -> QuantizationReport:
    """Copy a float model with int8 weights in its linear layers (torchao).

    With `activations` they are int8 as well; otherwise it computes in float, which saves memory
    only. Without torch.compile, int8 can be many times slower than float32. Raises ValueError if
    nothing was replaced.
    """
    made = copy.deepcopy(model)
    config = quantization.Int8WeightOnlyConfig
    if activations:
        config = quantization.Int8DynamicActivationInt8WeightConfig
    with quiet():
        quantization.quantize_(made, config())
    return _report(model, made, "torchao_dynamic" if activations else "torchao_weights")


WAYS = {
    "torch_dynamic": torch_dynamic,
    "torchao_weights": torchao_int8,
    "torchao_dynamic": functools.partial(torchao_int8, activations=True),
}


def _report(model: nn.Module, made: nn.Module, way: str) -> QuantizationReport:
    replaced = set(inspection.int8_modules(made)) - set(inspection.int8_modules(model))
    if not replaced:
        raise ValueError("nothing was quantized: only torch.nn.Linear in float is replaced")
    # Without gradients for the rest as well, a training raises instead of leaving layers out.
    made.eval().requires_grad_(False)
    made.quantized_by = way
    return QuantizationReport(tuple(sorted(replaced)), _bytes(model), _bytes(made), model=made)


def _bytes(model: nn.Module) -> dict[str, int]:
    """Bytes of a model's weights by group; what two modules share counts once."""
    groups = {"embeddings": 0, "linear": 0, "other": 0}
    seen: dict[int, torch.Tensor] = {}
    for module in model.modules():
        packed = is_packed(module)
        group = "linear" if packed or isinstance(module, nn.Linear) else "other"
        if isinstance(module, nn.Embedding):
            group = "embeddings"
        held = list(module.parameters(recurse=False))
        if packed:
            held = [tensor for tensor in (module.weight(), module.bias()) if tensor is not None]
            groups[group] += 8  # the scale and the zero point of its matrix
        groups[group] += sum(nbytes(tensor) for tensor in held if id(tensor) not in seen)
        seen |= {id(tensor): tensor for tensor in held}
    return groups


def check_use(model: nn.Module, use: str) -> None:
    """Raise RuntimeError if int8 modules forbid a use: "cuda", "training" or "export".

    Torchao's weights work on CUDA, and adapters (LoRA) can be trained on top of them as long as
    activations stay float: no gradient flows through int8 activations.
    """
    layers = [model.get_submodule(name) for name in inspection.int8_modules(model)]
    packed = any(is_packed(layer) for layer in layers)
    if not layers or (use == "cuda" and not packed):
        return
    floating = all(getattr(layer.weight, "act_quant_kwargs", None) is None for layer in layers)
    named = model.named_parameters()
    adapters = any("lora_" in name and tensor.requires_grad for name, tensor in named)
    if use == "training" and adapters and floating and not packed:
        return
    raise RuntimeError(f"{len(layers)} modules of this model are int8: {_REFUSALS[use]}")


def save(model: nn.Module, path: str | Path) -> None:
    """Write a model of `torch_dynamic` or `torchao_int8` as one file that `load` reads.

    Raises:
        RuntimeError: If the file gives other logits than the model; then it is not kept.
    """
    kept = {"way": model.quantized_by, "class": type(model).__name__}
    kept |= {"config": model.config.to_dict(), "state": model.state_dict()}
    ids = torch.arange(16).reshape(2, 8) % model.config.vocab_size
    with files.atomic_write(path) as part, inspection.eval_mode(model), torch.inference_mode():
        torch.save(kept, part)
        if not torch.equal(model(ids)[0], load(part)(ids)[0]):
            raise RuntimeError(
                "the saved copy gives other logits than the model, whose config does not tell all "
                "about it: export the float model, then use onnx_dynamic"
            )


def load(path: str | Path) -> nn.Module:
    """Return the model that `save` wrote, on the CPU in eval mode: built as int8, then loaded."""
    with quiet():  # torch remarks on how it stored its own packed weights
        kept = torch.load(path, weights_only=True)
    model_class = getattr(transformers, kept["class"])
    skeleton = model_class(model_class.config_class.from_dict(kept["config"]))
    model = WAYS[kept["way"]](skeleton).model
    model.load_state_dict(kept["state"], assign=kept["way"] != "torch_dynamic")
    return model
