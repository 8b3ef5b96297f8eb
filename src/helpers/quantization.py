"""int8 models: made with ONNX Runtime, with PyTorch or with torchao, and what became of every byte.

Notebook 05 teaches it, 08 uses it. Scheme: q = round(x / scale) + zero point; the ways differ in what gets a scale of
its own and in when the activations get theirs (Jacob et al., arXiv:1712.05877).
"""

import contextlib
import copy
import functools
import json
import logging
import math
import pickle
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import files

# What may hold weights. Attention is left out on purpose: ONNX Runtime's quantizer turns opset 23's operator of that
# name into its own QAttention, which has other attributes, and writes a file that cannot be opened.
OPERATORS = ("MatMul", "Gemm", "Gather")
_THROUGH = {"DequantizeLinear", "QuantizeLinear", "Transpose", "Cast", "Reshape", "Identity"}
_MARKER = "quantized.json"
_FILES = (_MARKER, "config.json", "weights.pt")  # of a saved model


class QuantizedError(RuntimeError):
    """A quantized model was asked for what it cannot do; the message says what it is for."""


@dataclass(frozen=True)
class Report:
    """What a quantization did.

    replaced: names of the weights (ONNX) or modules (PyTorch) that are int8 now
    before, after: bytes of weights by group: embeddings, linear, other
    path, model: what it made: a file, or a module
    """

    replaced: tuple[str, ...]
    before: dict[str, int]
    after: dict[str, int]
    path: Path | None = None
    model: object = None

    @property
    def ratio(self) -> float:
        """Bytes after, as a share of those before."""
        return sum(self.after.values()) / sum(self.before.values())

    def __str__(self) -> str:
        groups = ", ".join(
            f"{name} {self.before[name] / 1e6:.1f} -> {self.after[name] / 1e6:.1f}" for name in self.after
        )
        return f"{len(self.replaced)} weights in int8; MB: {groups}; in all {self.ratio:.0%} of the bytes"


# ONNX Runtime --------------------------------------------------------------------------------------------------------


def onnx_dynamic(
    source: str | Path,
    target: str | Path,
    *,
    weights: str = "int8",
    per_channel: bool = True,
    reduced_range: bool = False,
    operators: Iterable[str] = OPERATORS,
) -> Report:
    """Writes an ONNX file whose weights are int8; activations get their scale anew at each call.

    source, target: .onnx files. weights: "int8" or "uint8". per_channel: a scale for every output column instead of one
    a matrix. reduced_range: 7 bits, for CPUs that add products of bytes in 16 bits (AVX2 and AVX-512 without VNNI).
    operators: whose weights, some of `OPERATORS`; "Gather" means the tables of embeddings (here always uint8: they are
    in no product). Raises FileNotFoundError if there is no source, ValueError for another operator or type of weights,
    for a source that is no ONNX file or not in float32, and if nothing was replaced.
    """
    from onnxruntime.quantization import quantize_dynamic

    options = _options(source, weights, per_channel, reduced_range, operators)
    with quiet(), files.whole(target) as part:
        quantize_dynamic(str(source), str(part), **options)
        return _report(source, part, Path(target))


def onnx_static(
    source: str | Path,
    target: str | Path,
    feeds: Iterable[Mapping],
    *,
    weights: str = "int8",
    per_channel: bool = True,
    reduced_range: bool = False,
    operators: Iterable[str] = OPERATORS,
) -> Report:
    """Writes an ONNX file in which activations are int8 with fixed scales, too, as they were for the calibration texts.

    feeds: what the session takes (arrays by name), some dozens of batches of texts that are *not* the test set; the
    rest as in :func:`onnx_dynamic`. The file is in QDQ format, its activations are of the weights' type (ONNX Runtime
    takes no int8 activations with uint8 weights). Raises ValueError if there are no feeds, too.
    """
    from onnxruntime import quantization

    options = _options(source, weights, per_channel, reduced_range, operators)
    feeds = list(feeds)
    if not feeds or not all(isinstance(feed, Mapping) for feed in feeds):
        raise ValueError(
            "static quantization needs batches to calibrate with: give a list of some dozens, each what the session "
            "takes (arrays by name)"
        )

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.feeds = ({name: np.asarray(array) for name, array in feed.items()} for feed in feeds)

        def get_next(self):
            return next(self.feeds, None)

    with quiet(), files.whole(target) as part:
        quantization.quantize_static(
            str(source), str(part), Reader(), activation_type=options["weight_type"], **options
        )
        return _report(source, part, Path(target))


def _options(source, weights: str, per_channel: bool, reduced_range: bool, operators: Iterable[str]) -> dict:
    """What both of ONNX Runtime's functions take, once it is clear that it makes a file that can be opened."""
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType

    source = Path(source)
    if not source.is_file():
        raise FileNotFoundError(f"there is no file {source.name} in {source.parent.absolute()}")
    if weights not in ("int8", "uint8"):
        raise ValueError(f'weights are "int8" or "uint8", not {weights!r}')
    operators = list(operators)
    if not operators or set(operators) - set(OPERATORS):
        raise ValueError(f"operators are some of {', '.join(OPERATORS)}, not {operators}")
    if {tensor.data_type for tensor in _graph(source).initializer} & {TensorProto.FLOAT16, TensorProto.BFLOAT16}:
        raise ValueError(
            f"{source.name} holds 16-bit floats, and the quantizer takes float32: export model.float() first"
        )
    return {
        "weight_type": QuantType.QInt8 if weights == "int8" else QuantType.QUInt8,
        "per_channel": per_channel,
        "reduce_range": reduced_range,
        "op_types_to_quantize": operators,
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps the quantizers' advice off the page (ONNX Runtime's goes to the root logger), and their warnings."""
    before, handler = logging.root.manager.disable, logging.NullHandler()
    logging.disable(logging.WARNING)
    logging.root.addHandler(handler)  # without one, the first remark would set up a handler that stays
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.removeHandler(handler)
        logging.disable(before)


def _report(source: str | Path, made: Path, target: Path) -> Report:
    old, new = _tensors(Path(source)), _tensors(made)
    replaced = tuple(sorted(name for name, (_, _, eight) in new.items() if eight and name not in old))
    if not replaced:
        raise ValueError(
            f"no weight of {Path(source).name} was quantized: it has none of the operators asked for, "
            "or is int8 already"
        )
    return Report(replaced, _grouped(old), _grouped(new), path=target)


def _grouped(tensors: dict[str, tuple[str, int, bool]]) -> dict[str, int]:
    groups = {"embeddings": 0, "linear": 0, "other": 0}
    for group, size, _ in tensors.values():
        groups[group] += size
    return groups


def _graph(path: Path):
    """The graph in an ONNX file, without weights that lie in a second file."""
    import onnx
    from google.protobuf.message import DecodeError

    file = onnx.ModelProto()
    with contextlib.suppress(DecodeError):
        file = onnx.load(path, load_external_data=False)
    if not file.graph.node:  # some bytes that are no model are read without an error
        raise ValueError(f"{path.name} is no ONNX file, or not whole: export or copy it again")
    return file.graph


def _tensors(path: Path) -> dict[str, tuple[str, int, bool]]:
    """For each stored tensor of an ONNX file its group, its bytes, and whether it is a matrix of 8-bit numbers."""
    import onnx

    graph = _graph(path)
    users: dict[str, list] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            users.setdefault(name, []).append((node, place))

    def group(name: str) -> str:
        found = "other"
        for node, place in users.get(name, ()):
            if node.op_type == "Gather" and place == 0:
                return "embeddings"
            if "MatMul" in node.op_type or "Gemm" in node.op_type:
                found = "linear"
            elif node.op_type in _THROUGH and (further := group(node.output[0])) != "other":
                found = further
        return found

    tensors = {}
    for tensor in graph.initializer:
        count = math.prod(tensor.dims)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        eight = dtype.itemsize == 1 and dtype.kind in "iu" and len(tensor.dims) == 2
        tensors[tensor.name] = (group(tensor.name), count * dtype.itemsize, eight)
    return tensors


# PyTorch -------------------------------------------------------------------------------------------------------------


def torch_dynamic(model) -> Report:
    """A copy of a model on the CPU whose linear layers are int8 (torch.ao's dynamic quantization); embeddings are not.

    It is deprecated and still in PyTorch 2.13; this is the one place that calls it. The copy refuses, with a sentence,
    what it cannot do (see :func:`require`). Raises ValueError if nothing was replaced or the weights are not float32,
    QuantizedError on other devices, ImportError if PyTorch has dropped it.
    """
    import torch

    if {parameter.device.type for parameter in model.parameters()} - {"cpu"}:
        raise QuantizedError("PyTorch's dynamic quantization has kernels for the CPU only: move the model there first")
    _require_float(model)
    if {parameter.dtype for parameter in model.parameters()} - {torch.float32}:
        raise ValueError("PyTorch's dynamic quantization computes with float32 around it: quantize model.float()")
    with quiet():
        try:
            from torch.ao.quantization import quantize_dynamic
        except ImportError as error:
            raise ImportError(
                f"torch {torch.__version__} has no quantize_dynamic any more: quantize with ONNX Runtime (onnx_dynamic)"
            ) from error
        made = quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8).eval()
    return _torch_report(model, made, "torch_dynamic")


def torchao_int8(model, activations: bool = False) -> Report:
    """A copy of a model whose linear layers hold int8 weights (torchao): "weight only", or activations int8 as well.

    Weight-only computes in float: it saves memory. With activations it computes in int8, which in eager mode, without
    torch.compile, can be many times slower than float32. Raises ValueError if nothing was replaced.
    """
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    _require_float(model)
    made = copy.deepcopy(model).eval()
    with quiet():
        quantize_(made, Int8DynamicActivationInt8WeightConfig() if activations else Int8WeightOnlyConfig())
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
        raise ValueError(f"{len(found)} modules of this model are int8 already: quantize the float model")


def _is_int8(module) -> bool:
    return _packed(module) or bool(_parts(module))


def _packed(module) -> bool:
    """Whether it is a linear layer of torch.ao, whose weight is a function and not a parameter."""
    return type(module).__module__.startswith("torch.ao.nn.quantized") and callable(getattr(module, "weight", None))


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
            scales = weight.q_per_channel_scales().nbytes if weight.qscheme() == torch.per_channel_affine else 8
            groups["linear"] += weight.numel() + scales + (0 if bias is None else bias.nbytes)
            continue
        kind = "embeddings" if isinstance(module, torch.nn.Embedding) else "linear" if _linear(module) else "other"
        parts = _parts(module)
        own = {id(t): t for t in module.parameters(recurse=False) if not (parts and t is module.weight)}
        for key, tensor in own.items():
            groups[kind] += 0 if key in seen else tensor.nbytes
        groups[kind] += sum(part.nbytes for part in parts)
        seen |= own.keys()
    return groups


def _linear(module) -> bool:
    import torch

    return isinstance(module, torch.nn.Linear)


def _torch_report(model, made, way: str) -> Report:
    replaced = tuple(quantized_modules(made))
    if not replaced:
        import torch

        odd = sorted({type(m).__name__ for m in model.modules() if _linear(m) and type(m) is not torch.nn.Linear})
        cause = f"its linear layers are of another class ({', '.join(odd)})" if odd else "it has no linear layer"
        raise ValueError(f"nothing was quantized: {cause}, and only torch.nn.Linear is replaced")
    made.__class__ = _refusing(type(model))
    made.quantized_by = way
    return Report(replaced, _bytes(model), _bytes(made), model=made)


def require(model, use: str) -> None:
    """Raises QuantizedError if a model with int8 modules cannot be used for "cuda", "training", "export" or "saving".

    Models of this module ask it by themselves where such a use begins, but for "export": :func:`helpers.onnx.export`
    has its own sentence. torchao's weights work on CUDA, and adapters (LoRA) can be trained on top of them as long as
    the activations stay float: through int8 activations no gradient flows.
    """
    sentences = {
        "cuda": "it has int8 kernels for the CPU only: quantize the float model anew for the GPU, or stay on the CPU",
        "training": "int8 weights get no gradient: train the float model and quantize it afterwards, or train adapters "
        "(LoRA) on torchao's int8 weights with float activations",
        "export": "the exporter fails on them or writes floats: export the float model, then use onnx_dynamic",
        "saving": "save_pretrained and from_pretrained know nothing of them: use quantization.save and .load",
    }
    if use not in sentences:
        raise ValueError(f"use is one of {', '.join(sentences)}, not {use!r}")
    found = quantized_modules(model)
    torchao = [module.weight for module in model.modules() if _parts(module)]
    adapters = any("lora_" in name and p.requires_grad for name, p in model.named_parameters())
    trainable = adapters and all(getattr(weight, "act_quant_kwargs", None) is None for weight in torchao)
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
        raise ValueError("this model was not quantized here; a float model is saved with save_pretrained")
    folder = Path(folder)
    if model.device.type != "cpu":
        raise ValueError("the copy is compared with the model on the CPU: move the model there first")
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
                odd = [(n, type(m).__name__) for n, m in model.named_modules() if type(m).__name__ != kinds.get(n)]
                cause = ": {} is a {}, which config.json does not tell".format(*odd[0]) if odd else ""
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
        raise ValueError(f"{folder} has no {missing[0]}: it was not written by quantization.save, or is not whole")
    try:
        marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
        way, name = str(marker["way"]), str(marker["class"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / _MARKER} was not written by quantization.save") from error
    cls = getattr(transformers, name, None)
    if way not in _WAYS or not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ValueError(
            f"{folder / _MARKER} names the class {name} and the way {way}; known are the models of transformers "
            f"{transformers.__version__} and the ways {', '.join(_WAYS)}"
        )
    skeleton = _WAYS[way](cls(cls.config_class.from_pretrained(folder)).eval()).model
    try:
        with quiet():  # torch remarks on how it stored its own packed weights
            state = torch.load(folder / "weights.pt", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"{folder / 'weights.pt'} is not whole: copy or save the model again") from error
    skeleton.load_state_dict(state, assign=way != "torch_dynamic")
    return skeleton
