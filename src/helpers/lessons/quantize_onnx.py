"""int8 ONNX files, and what became of every byte (notebooks 05 and 08).

A level q stands for (q - zero point) * scale. The settings differ in what gets a scale of its own,
and in when the activations get theirs (Jacob et al., arXiv:1712.05877).
"""

import contextlib
import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from helpers.core import files
from helpers.core.quiet import quiet
from helpers.lessons.device_errors import known
from helpers.recipes.int8 import OPERATORS, quantize

import onnx
from onnxruntime import quantization
from onnxruntime.quantization.registry import IntegerOpsRegistry

_TYPES = {"int8": quantization.QuantType.QInt8, "uint8": quantization.QuantType.QUInt8}


@dataclass(frozen=True)
class QuantizationReport:
    """What is int8 now, and the bytes of weights by group (embeddings, linear, other).

    `replaced` names weights (ONNX) or modules (PyTorch); made was a file, or a module.
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
            f"{name} {self.before[name] / 1e6:.1f} -> {size / 1e6:.1f}"
            for name, size in self.after.items()
        )
        count = f"{len(self.replaced)} weights in int8"
        return f"{count}; MB: {groups}; in all {self.ratio:.0%} of the bytes"


def onnx_dynamic(
    source: str | Path,
    target: str | Path,
    *,
    weights: str = "int8",
    per_channel: bool = True,
    reduced_range: bool = False,
    operators: Iterable[str] = OPERATORS,
) -> QuantizationReport:
    """Write an ONNX file whose weights are int8; activations get their scale anew at each call.

    Args:
        source: A file in float32.
        target: The file to write.
        weights: "int8" or "uint8".
        per_channel: One scale for each output column instead of one for a matrix.
        reduced_range: 7 bits, for CPUs that add products of bytes in 16 bits.
        operators: Whose weights. "Gather" means the embeddings' tables, which become uint8.

    Raises:
        ValueError: If nothing was replaced.
    """
    options = {"weight_type": _TYPES[weights], "per_channel": per_channel}
    operators, kinds = list(operators), set()
    if others := set(operators) - set(OPERATORS):  # a small model's file is read with its weights
        kinds = {node.op_type for node in onnx.load(source, load_external_data=False).graph.node}
    if not operators or others - (IntegerOpsRegistry.keys() & kinds):
        raise ValueError(f"{Path(source).name} has no {operators} that can become int8")
    options["op_types_to_quantize"] = operators
    with quiet(), _regular(source) as whole, files.atomic_write(target) as part:
        names = quantize(whole, part, reduced_range, **options)
        before, after = _weights(whole), _weights(part)
        return QuantizationReport(tuple(sorted(names)), before, after, path=Path(target))


@contextlib.contextmanager
def _regular(source: str | Path) -> Iterator[Path]:
    """Yield a file whose weights lie beside it, not behind the links of the hub's cache."""
    source = Path(source)
    parts = [source, *source.parent.glob(f"{source.name}[._]data")]
    with tempfile.TemporaryDirectory() as folder:
        if any(part.is_symlink() for part in parts):
            for part in parts:
                shutil.copy(part, folder)
            source = Path(folder) / source.name
        try:
            yield source
        except onnx.checker.ValidationError as error:
            raise FileNotFoundError(known(str(error)) or str(error)) from error


def _weights(path: str | Path) -> dict[str, int]:
    """The bytes that a file stores by group: embeddings are looked up, linear other matrices."""
    graph = onnx.load(path, load_external_data=False).graph
    tables = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    groups = {"embeddings": 0, "linear": 0, "other": 0}
    for tensor in graph.initializer:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        matrix = len(tensor.dims) == 2 and dtype.itemsize <= 4
        group = "linear" if matrix else "other"
        if tensor.name in tables:
            group = "embeddings"
        groups[group] += math.prod(tensor.dims) * dtype.itemsize
    return groups
