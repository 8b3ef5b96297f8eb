"""int8 models made with PyTorch and torchao, with a report; notebook 05 shows the calls."""

import copy

from helpers.core.quiet import quiet
from helpers.core.tensors import is_packed, nbytes
from helpers.lessons.quantize_onnx import QuantizationReport
from helpers.models import inspection

import torch
from torch import nn
from torchao import quantization


def torch_dynamic(model: nn.Module, per_channel: bool = False) -> QuantizationReport:
    """Copy a float32 model on the CPU with int8 linear layers (torch.ao); embeddings stay float.

    The function is deprecated and still in PyTorch 2.13. Raises ValueError if nothing was replaced.
    """
    with quiet():
        from torch.ao import quantization as ao

        if torch.backends.quantized.engine == "none":  # macOS: no engine is chosen
            engines = set(torch.backends.quantized.supported_engines) - {"none"}
            torch.backends.quantized.engine = min(engines)
        scheme = ao.per_channel_dynamic_qconfig if per_channel else ao.default_dynamic_qconfig
        made = ao.quantize_dynamic(model, {nn.Linear: scheme})
    return _report(model, made)


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
    return _report(model, made)


def _report(model: nn.Module, made: nn.Module) -> QuantizationReport:
    replaced = set(inspection.int8_modules(made)) - set(inspection.int8_modules(model))
    if not replaced:
        raise ValueError("nothing was quantized: only torch.nn.Linear in float is replaced")
    # Without gradients for the rest as well, a training raises instead of leaving layers out.
    made.eval().requires_grad_(False)
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
            scales = 1 if held[0].qscheme() == torch.per_tensor_affine else len(held[0])
            groups[group] += 8 * scales  # and zero points
        groups[group] += sum(nbytes(tensor) for tensor in held if id(tensor) not in seen)
        seen |= {id(tensor): tensor for tensor in held}
    return groups
