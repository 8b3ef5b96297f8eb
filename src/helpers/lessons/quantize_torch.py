"""int8 models made with PyTorch and torchao."""

import copy
import functools
import json
import pickle
import tempfile
from pathlib import Path

from helpers.lessons.quantize_onnx import QuantizationReport, quiet

_MARKER = "quantized.json"


_FILES = (_MARKER, "config.json", "weights.pt")  # of a saved model


class QuantizedError(RuntimeError):
    """A quantized model was asked for what it cannot do; the message says what it is for."""


def torch_dynamic(model) -> QuantizationReport:
    """A copy of a model on the CPU whose linear layers are int8 (torch.ao's dynamic quantization); embeddings are not.

    It is deprecated and still in PyTorch 2.13; this is the one place that calls it. The copy refuses, with a sentence,
    what it cannot do (see :func:`require`). Raises ValueError if nothing was replaced or the weights are not float32,
    QuantizedError on other devices, ImportError if PyTorch has dropped it.
    """
    import torch

    if {parameter.device.type for parameter in model.parameters()} - {"cpu"}:
        raise QuantizedError(
            "PyTorch's dynamic quantization has kernels for the CPU only: move the model there first"
        )
    _require_float(model)
    if {parameter.dtype for parameter in model.parameters()} - {torch.float32}:
        raise ValueError(
            "PyTorch's dynamic quantization computes with float32 around it: quantize model.float()"
        )
    with quiet():
        try:
            from torch.ao.quantization import quantize_dynamic
        except ImportError as error:
            raise ImportError(
                f"torch {torch.__version__} has no quantize_dynamic any more: quantize with ONNX Runtime (onnx_dynamic)"
            ) from error
        made = quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8).eval()
    return _torch_report(model, made, "torch_dynamic")


def torchao_int8(model, activations: bool = False) -> QuantizationReport:
    """A copy of a model whose linear layers hold int8 weights (torchao): "weight only", or activations int8 as well.

    Weight-only computes in float: it saves memory. With activations it computes in int8, which in eager mode, without
    torch.compile, can be many times slower than float32. Raises ValueError if nothing was replaced.
    """
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        quantize_,
    )

    _require_float(model)
    made = copy.deepcopy(model).eval()
    with quiet():
        quantize_(
            made, Int8DynamicActivationInt8WeightConfig() if activations else Int8WeightOnlyConfig()
        )
    return _torch_report(model, made, "torchao_dynamic" if activations else "torchao_weights")


_WAYS = {
    "torch_dynamic": torch_dynamic,
    "torchao_weights": torchao_int8,
    "torchao_dynamic": functools.partial(torchao_int8, activations=True),
}


def quantized_modules(model) -> list[str]:
    """Names of the modules of a model that hold int8 weights of torch.ao or torchao."""
    return [name for name, module in model.named_modules() if _is_int8(module)]


def _require_float(model) -> None:
    if found := quantized_modules(model):
        raise ValueError(
            f"{len(found)} modules of this model are int8 already: quantize the float model"
        )


def _is_int8(module) -> bool:
    return _packed(module) or bool(_parts(module))


def _packed(module) -> bool:
    """Whether it is a linear layer of torch.ao, whose weight is a function and not a parameter."""
    return type(module).__module__.startswith("torch.ao.nn.quantized") and callable(
        getattr(module, "weight", None)
    )


def _parts(module) -> list:
    """The plain tensors inside a module's torchao weight; none if it has no such weight."""
    weight = getattr(module, "weight", None)
    if not type(weight).__module__.startswith("torchao"):
        return []
    return [getattr(weight, name) for name in weight.__tensor_flatten__()[0]]


def _bytes(model) -> dict[str, int]:
    """Bytes of a model's weights by group; what two modules share counts once."""
    import torch

    groups, seen = {"embeddings": 0, "linear": 0, "other": 0}, set()
    for module in model.modules():
        if _packed(module):
            weight, bias = module.weight(), module.bias()
            scales = (
                weight.q_per_channel_scales().nbytes
                if weight.qscheme() == torch.per_channel_affine
                else 8
            )
            groups["linear"] += weight.numel() + scales + (0 if bias is None else bias.nbytes)
            continue
        kind = (
            "embeddings"
            if isinstance(module, torch.nn.Embedding)
            else "linear"
            if _linear(module)
            else "other"
        )
        parts = _parts(module)
        own = {
            id(t): t for t in module.parameters(recurse=False) if not (parts and t is module.weight)
        }
        for key, tensor in own.items():
            groups[kind] += 0 if key in seen else tensor.nbytes
        groups[kind] += sum(part.nbytes for part in parts)
        seen |= own.keys()
    return groups


def _linear(module) -> bool:
    import torch

    return isinstance(module, torch.nn.Linear)


def _torch_report(model, made, way: str) -> QuantizationReport:
    replaced = tuple(quantized_modules(made))
    if not replaced:
        import torch

        odd = sorted(
            {
                type(m).__name__
                for m in model.modules()
                if _linear(m) and type(m) is not torch.nn.Linear
            }
        )
        cause = (
            f"its linear layers are of another class ({', '.join(odd)})"
            if odd
            else "it has no linear layer"
        )
        raise ValueError(f"nothing was quantized: {cause}, and only torch.nn.Linear is replaced")
    made.__class__ = _refusing(type(model))
    made.quantized_by = way
    return QuantizationReport(replaced, _bytes(model), _bytes(made), model=made)


def require(model, use: str) -> None:
    """Raises QuantizedError if a model with int8 modules cannot be used for "cuda", "training", "export" or "saving".

    Models of this module ask it by themselves where such a use begins, but for "export": `onnx_export.export`
    has its own sentence. torchao's weights work on CUDA, and adapters (LoRA) can be trained on top of them as long as
    the activations stay float: through int8 activations no gradient flows.
    """
    sentences = {
        "cuda": "it has int8 kernels for the CPU only: quantize the float model anew for the GPU, or stay on the CPU",
        "training": "int8 weights get no gradient: train the float model and quantize it afterwards, or train adapters "
        "(LoRA) on torchao's int8 weights with float activations",
        "export": "the exporter fails on them or writes floats: export the float model, then use onnx_dynamic",
        "saving": "save_pretrained and from_pretrained know nothing of them: use quantize_torch.save and .load",
    }
    if use not in sentences:
        raise ValueError(f"use is one of {', '.join(sentences)}, not {use!r}")
    found = quantized_modules(model)
    torchao = [module.weight for module in model.modules() if _parts(module)]
    adapters = any("lora_" in name and p.requires_grad for name, p in model.named_parameters())
    trainable = adapters and all(
        getattr(weight, "act_quant_kwargs", None) is None for weight in torchao
    )
    if found and not (torchao and (use == "cuda" or (use == "training" and trainable))):
        raise QuantizedError(f"{len(found)} modules of this model are int8: {sentences[use]}")


@functools.cache
def _refusing(cls: type) -> type:
    """A model's class, with sentences in place of the errors (or of the silence) that its int8 modules would give."""
    import torch

    def to(self, *args, **kwargs):
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        if device is not None and device.type != "cpu":
            require(self, "cuda")
        return cls.to(self, *args, **kwargs)

    def train(self, mode: bool = True):
        if mode:
            require(self, "training")
        return cls.train(self, mode)

    def cuda(self, *args, **kwargs):
        require(self, "cuda")
        return cls.cuda(self, *args, **kwargs)

    def save_pretrained(self, *_, **__):
        require(self, "saving")

    return type(cls.__name__, (cls,), {f.__name__: f for f in (to, train, cuda, save_pretrained)})


def save(model, folder: str | Path) -> None:
    """Writes a model of :func:`torch_dynamic` or :func:`torchao_int8` with what it takes to build it again.

    The folder is whole or not there; what was in it before is kept if the copy, loaded again, gives other outputs.
    Raises ValueError for a model that is not from here or not on the CPU, for one of a class that transformers does not
    have (a model with adapters), and for a folder that holds other files, QuantizedError for other outputs.
    """
    import torch

    if (way := getattr(model, "quantized_by", None)) is None:
        raise ValueError(
            "this model was not quantized here; a float model is saved with save_pretrained"
        )
    folder = Path(folder)
    if model.device.type != "cpu":
        raise ValueError(
            "the copy is compared with the model on the CPU: move the model there first"
        )
    if folder.exists() and {path.name for path in folder.iterdir()} not in (set(), set(_FILES)):
        raise ValueError(f"{folder} holds other files: give a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        fresh = Path(scratch) / "model"
        fresh.mkdir()
        model.config.save_pretrained(fresh)
        torch.save(model.state_dict(), fresh / "weights.pt")
        marker = {"way": way, "class": type(model).__name__}
        (fresh / _MARKER).write_text(json.dumps(marker), encoding="utf-8")
        ids = torch.arange(16).reshape(2, 8) % model.config.vocab_size
        with torch.inference_mode():
            copied = load(fresh)
            if not torch.equal(model(ids)[0], copied(ids)[0]):
                kinds = {name: type(module).__name__ for name, module in copied.named_modules()}
                odd = [
                    (n, type(m).__name__)
                    for n, m in model.named_modules()
                    if type(m).__name__ != kinds.get(n)
                ]
                cause = (
                    ": {} is a {}, which config.json does not tell".format(*odd[0]) if odd else ""
                )
                raise QuantizedError(
                    f"the saved copy gives other outputs than the model, so it was not kept{cause}. Export the float "
                    "model, and use onnx_dynamic"
                )
        if folder.exists():
            folder.replace(Path(scratch) / "old")
        fresh.replace(folder)


def load(folder: str | Path):
    """The model that :func:`save` wrote, on the CPU, in eval mode, with the same outputs.

    Raises ValueError for a folder that :func:`save` did not write, or that is not whole.
    """
    import torch
    import transformers

    folder = Path(folder)
    if missing := [name for name in _FILES if not (folder / name).is_file()]:
        raise ValueError(
            f"{folder} has no {missing[0]}: it was not written by quantize_torch.save, or is not whole"
        )
    try:
        marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
        way, name = str(marker["way"]), str(marker["class"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / _MARKER} was not written by quantize_torch.save") from error
    cls = getattr(transformers, name, None)
    if way not in _WAYS or not (
        isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    ):
        raise ValueError(
            f"{folder / _MARKER} names the class {name} and the way {way}; known are the models of transformers "
            f"{transformers.__version__} and the ways {', '.join(_WAYS)}"
        )
    skeleton = _WAYS[way](cls(cls.config_class.from_pretrained(folder)).eval()).model
    try:
        with quiet():  # torch remarks on how it stored its own packed weights
            state = torch.load(folder / "weights.pt", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"{folder / 'weights.pt'} is not whole: copy or save the model again"
        ) from error
    skeleton.load_state_dict(state, assign=way != "torch_dynamic")
    return skeleton
