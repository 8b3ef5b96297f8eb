"""Make an ONNX file int8, and measure what that costs in accuracy (notebook 05).

python int8.py model.onnx model.int8.onnx TOKENIZER_FOLDER texts.tsv
"""

import argparse
import csv
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic

# Not "Attention": of opset 23's operator the quantizer makes a file that cannot be opened.
OPERATORS = ["MatMul", "Gemm", "Gather"]


def has_int8_dot_product() -> bool:
    """Whether this CPU adds products of bytes in 32 bits; False where nobody can tell.

    Others (AVX2, AVX-512 without VNNI) add pairs of them in 16 bits, which cuts large sums off
    without an error. They need weights of 7 bits.
    """
    path = Path("/proc/cpuinfo")
    if path.exists():
        known = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}
        return bool(known & set(path.read_text().split()))
    return (platform.system(), platform.machine()) == ("Darwin", "arm64")


def quantize(
    source: str | Path, target: str | Path, reduced_range: bool | None = None, **changes
) -> None:
    """Write an ONNX file with int8 weights, one scale for each output channel.

    Activations get their scale anew in each call, from the whole batch: a text's answer can
    depend on its neighbours.

    Args:
        source: A float32 file.
        target: The file to write.
        reduced_range: Weights of 7 bits; by default where this CPU needs them.
        changes: Other options of `quantize_dynamic`, in place of these.
    """
    if reduced_range is None:
        reduced_range = not has_int8_dot_product()
    options = {
        "op_types_to_quantize": OPERATORS,
        "per_channel": True,
        "reduce_range": reduced_range,
        "weight_type": QuantType.QInt8,
    }
    quantize_dynamic(str(source), str(target), **options | changes)


def batches(texts: Sequence[str], tokenizer, size: int = 16) -> Iterator[dict]:
    """Yield the texts as padded batches of token ids, in their order."""
    for start in range(0, len(texts), size):
        chunk = list(texts[start : start + size])
        yield tokenizer(chunk, padding=True, truncation=True, max_length=128, return_tensors="np")


def logits(path: str | Path, texts: Sequence[str], tokenizer) -> np.ndarray:
    """Return what a classifier's file answers, of shape (texts, classes)."""
    options = onnxruntime.SessionOptions()
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())
    options.intra_op_num_threads = len(cpus)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    if "attention_mask" not in names:
        raise ValueError("the file has no attention_mask: it would read the padding as text")
    rows = []
    for batch in batches(texts, tokenizer):
        batch.setdefault("token_type_ids", np.zeros_like(batch["input_ids"]))  # RoBERTa has none
        feed = {name: batch[name].astype(np.int64) for name in names}
        rows.append(session.run(None, feed)[0])
    return np.concatenate(rows)


def compare(exact: np.ndarray, made: np.ndarray, labels: Sequence[int]) -> dict[str, float]:
    """Compare two files' logits on the same texts, in pairs.

    A difference of accuracies alone hides how many answers changed in both directions.
    """
    right = exact.argmax(1) == np.asarray(labels)
    right_now = made.argmax(1) == np.asarray(labels)
    return {
        "accuracy before": right.mean(),
        "accuracy after": right_now.mean(),
        "only before right": (right & ~right_now).sum(),
        "only after right": (right_now & ~right).sum(),
        "same answer": (exact.argmax(1) == made.argmax(1)).mean(),
        "largest logit difference": np.abs(exact - made).max(),
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
    with Path(given.table).open(encoding="utf-8", newline="") as file:
        texts, labels = zip(*csv.reader(file, delimiter="\t"), strict=True)
    tokenizer = AutoTokenizer.from_pretrained(given.tokenizer)
    exact, made = (logits(path, texts, tokenizer) for path in (given.source, given.target))
    for name, value in compare(exact, made, [int(label) for label in labels]).items():
        print(f"{name:25} {value:.4g}")
    sizes = []
    for path in map(Path, (given.source, given.target)):  # large weights lie in a second file
        sizes.append(sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*")) / 1e6)
    print(f"{'megabytes':25} {sizes[0]:.1f} -> {sizes[1]:.1f}")


if __name__ == "__main__":
    main()
