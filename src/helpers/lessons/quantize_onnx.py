"""int8 models: made with ONNX Runtime, with PyTorch or with torchao, and what became of every byte.

Notebook 05 teaches it, 08 uses it. Scheme: q = round(x / scale) + zero point; the ways differ in what gets a scale of
its own and in when the activations get theirs (Jacob et al., arXiv:1712.05877).
"""

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from helpers.core import files
from helpers.core.quiet import quiet

import numpy as np

# What may hold weights. Attention is left out on purpose: ONNX Runtime's quantizer turns opset 23's operator of that
# name into its own QAttention, which has other attributes, and writes a file that cannot be opened.
OPERATORS = ("MatMul", "Gemm", "Gather")
_THROUGH = {"DequantizeLinear", "QuantizeLinear", "Transpose", "Cast", "Reshape", "Identity"}


@dataclass(frozen=True)
class QuantizationReport:
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
            f"{name} {self.before[name] / 1e6:.1f} -> {self.after[name] / 1e6:.1f}"
            for name in self.after
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
) -> QuantizationReport:
    """Writes an ONNX file whose weights are int8; activations get their scale anew at each call.

    source, target: .onnx files. weights: "int8" or "uint8". per_channel: a scale for every output column instead of one
    a matrix. reduced_range: 7 bits, for CPUs that add products of bytes in 16 bits (AVX2 and AVX-512 without VNNI).
    operators: whose weights, some of `OPERATORS`; "Gather" means the tables of embeddings (here always uint8: they are
    in no product). Raises FileNotFoundError if there is no source, ValueError for another operator or type of weights,
    for a source that is no ONNX file or not in float32, and if nothing was replaced.
    """
    from onnxruntime.quantization import quantize_dynamic

    options = _options(source, weights, per_channel, reduced_range, operators)
    with quiet(), files.atomic_write(target) as part:
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
) -> QuantizationReport:
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
            self.feeds = (
                {name: np.asarray(array) for name, array in feed.items()} for feed in feeds
            )

        def get_next(self):
            return next(self.feeds, None)

    with quiet(), files.atomic_write(target) as part:
        quantization.quantize_static(
            str(source), str(part), Reader(), activation_type=options["weight_type"], **options
        )
        return _report(source, part, Path(target))


def _options(
    source, weights: str, per_channel: bool, reduced_range: bool, operators: Iterable[str]
) -> dict:
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
    if {tensor.data_type for tensor in _graph(source).initializer} & {
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
    }:
        raise ValueError(
            f"{source.name} holds 16-bit floats, and the quantizer takes float32: export model.float() first"
        )
    return {
        "weight_type": QuantType.QInt8 if weights == "int8" else QuantType.QUInt8,
        "per_channel": per_channel,
        "reduce_range": reduced_range,
        "op_types_to_quantize": operators,
    }


def _report(source: str | Path, made: Path, target: Path) -> QuantizationReport:
    old, new = _tensors(Path(source)), _tensors(made)
    replaced = tuple(
        sorted(name for name, (_, _, eight) in new.items() if eight and name not in old)
    )
    if not replaced:
        raise ValueError(
            f"no weight of {Path(source).name} was quantized: it has none of the operators asked for, "
            "or is int8 already"
        )
    return QuantizationReport(replaced, _grouped(old), _grouped(new), path=target)


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
