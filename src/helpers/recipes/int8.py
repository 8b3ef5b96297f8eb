"""Make an ONNX file int8, and measure what that costs in accuracy (notebook 05).

python int8.py model.onnx model.int8.onnx TOKENIZER_FOLDER texts.tsv
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic

# Not "Attention": of opset 23's operator the quantizer makes a file that cannot be opened.
OPERATORS = ["MatMul", "Gemm", "Gather"]


def has_int8_dot_product() -> bool:
    """Whether this CPU adds products of bytes in 32 bits.

    Others, x86 without VNNI, add pairs in 16 bits, which cuts large sums off without an error.
    """
    units = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "dot", "i8mm"}
    path = Path("/proc/cpuinfo")
    if path.exists():
        return bool(units & set(path.read_text().split()))
    import torch  # asks the CPU itself: Windows and macOS name too little

    return any(torch.cpu.get_capabilities().get(unit) for unit in units)


def int8_weights(path: str | Path) -> set[str]:
    """Return the names of a file's matrices of 8-bit integers."""
    stored = onnx.load(path, load_external_data=False).graph.initializer
    eight = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
    return {tensor.name for tensor in stored if tensor.data_type in eight and len(tensor.dims) == 2}


def quantize(
    source: str | Path, target: str | Path, reduced_range: bool | None = None, **changes
) -> set[str]:
    """Write an ONNX file with int8 weights, one scale for each output channel; return their names.

    Activations get their scale anew in each call, from the whole batch: a text's answer can
    depend on its neighbours. A reduced range, weights of 7 bits, is the default where this CPU
    needs it; `changes` are other options of `quantize_dynamic`. ValueError if nothing became int8.
    """
    if reduced_range is None:
        reduced_range = not has_int8_dot_product()
    options = {"op_types_to_quantize": OPERATORS, "weight_type": QuantType.QInt8}
    options |= {"per_channel": True, "reduce_range": reduced_range}
    part = Path(f"{target}.part")  # a failure leaves an earlier target, which may be the source
    quantize_dynamic(str(source), str(part), **options | changes)
    made = int8_weights(part) - int8_weights(source)
    if not made:
        part.unlink()
        raise ValueError(f"no weight of {source} became int8: it has no such operators, or is int8")
    part.replace(target)
    return made


def logits(path: str | Path, texts: Sequence[str], tokenizer) -> np.ndarray:
    """Return what a classifier's file answers, of shape (texts, classes)."""
    options = onnxruntime.SessionOptions()
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())
    options.intra_op_num_threads = len(cpus)  # its default counts the host's
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    if "attention_mask" not in names:
        raise ValueError("the file has no attention_mask: it would read the padding as text")
    cut = {"padding_side": "right", "truncation": True, "max_length": 128, "return_tensors": "np"}
    rows = []
    for start in range(0, len(texts), 16):
        batch = tokenizer(list(texts[start : start + 16]), padding=True, **cut)
        batch.setdefault("token_type_ids", np.zeros_like(batch["input_ids"]))  # RoBERTa has none
        rows.append(session.run(None, {name: batch[name].astype(np.int64) for name in names})[0])
    return np.concatenate(rows)


def compare(exact: np.ndarray, made: np.ndarray, labels: Sequence[int]) -> dict[str, float]:
    """Compare two files' logits in pairs: changes in both directions can hide each other."""
    labels = np.asarray(labels)
    if exact.shape[1] < 2 or not set(labels.tolist()) <= set(range(exact.shape[1])):
        raise ValueError(f"labels {set(labels)} are no numbers of the {exact.shape[1]} classes")
    right, right_now = exact.argmax(1) == labels, made.argmax(1) == labels
    return {
        "accuracy before": right.mean(),
        "accuracy after": right_now.mean(),
        "only before right": (right & ~right_now).sum(),
        "only after right": (right_now & ~right).sum(),
        "same answer": (exact.argmax(1) == made.argmax(1)).mean(),
    }


def main(argv: list[str] | None = None) -> None:
    """Quantize a file, and compare both on labelled texts."""
    from transformers import AutoTokenizer  # brings PyTorch, which quantizing does without

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="a float32 .onnx file of a classifier")
    parser.add_argument("target", help="the int8 .onnx file to write")
    parser.add_argument("tokenizer", help="a folder, or a name on the Hugging Face hub")
    parser.add_argument("table", help="tab-separated: a text and its label (0, 1, ...)")
    given = parser.parse_args(argv)
    quantize(given.source, given.target)
    lines = Path(given.table).read_text("utf-8-sig").split("\n")
    texts, labels = zip(*(line.rsplit("\t", 1) for line in lines if line.strip()), strict=True)
    tokenizer = AutoTokenizer.from_pretrained(given.tokenizer)
    exact, made = (logits(path, texts, tokenizer) for path in (given.source, given.target))
    for name, value in compare(exact, made, [int(label) for label in labels]).items():
        print(f"{name:25} {value:.4g}")


if __name__ == "__main__":
    main()
