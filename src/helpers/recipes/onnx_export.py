"""Export a BERT-family model to ONNX, open it, and prove that it computes the same (notebook 04).

python onnx_export.py MODEL_FOLDER model.onnx
"""

import argparse
import inspect
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
PAIRS = [("A short text.", "Another."), ("This one is a good deal longer than that.", "No!")]


def example_inputs(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a batch that names the model's inputs.

    It has 2 rows of 8 tokens: sizes 0 and 1 are special to the exporter, which would fix them.
    """
    names = [name for name in INPUTS if name in inspect.signature(model.forward).parameters]
    return {name: torch.ones(2, 8, dtype=torch.int64) for name in names}


def export(model: nn.Module, path: str | Path) -> Path:
    """Write a model as an ONNX file that takes batches of any size and length.

    Inputs go by name: by position, mask and segment ids would be swapped in silence. From opset
    23 on, PyTorch's fused attention becomes one operator.
    """
    model.eval()
    model.set_attn_implementation("sdpa")
    example = example_inputs(model)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=512)}
    with torch.inference_mode():
        program = torch.onnx.export(
            model,
            kwargs=example,
            dynamic_shapes=dict.fromkeys(example, axes),
            output_names=["logits"],
            opset_version=23,
            dynamo=True,
            verbose=False,
        )
    program.save(path, external_data=False)  # one file; beyond 2 GB it has to be two
    return Path(path)


def open_session(
    path: str | Path, threads: int = 2, provider: str = "CPUExecutionProvider"
) -> onnxruntime.InferenceSession:
    """Open an ONNX file on the provider that is asked for, or raise RuntimeError.

    ONNX Runtime itself would fall back to the CPU with a warning. Its threads sleep while they
    wait: spinning ones slow down everything else in the process.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), options, providers=[provider])
    if provider not in session.get_providers():
        raise RuntimeError(f"{provider} is not in use, but {session.get_providers()}")
    return session


def run(session: onnxruntime.InferenceSession, encoding: Mapping) -> np.ndarray:
    """Return the first output for a tokenizer's answer; the file takes the inputs it declares."""
    names = [entry.name for entry in session.get_inputs()]
    feed = {name: np.asarray(encoding[name], dtype=np.int64) for name in names}
    return session.run(None, feed)[0]


def parity(model: nn.Module, session: onnxruntime.InferenceSession, tokenizer) -> float:
    """Return the largest difference of the logits on padded pairs of texts.

    Padding and two segments matter: with ones everywhere, a swapped mask looks right.
    """
    encoding = tokenizer(*zip(*PAIRS, strict=True), padding=True, return_tensors="pt")
    encoding = {name: value for name, value in encoding.items() if name in example_inputs(model)}
    with torch.inference_mode():
        expected = model.eval()(**encoding).logits.numpy()
    return float(np.abs(run(session, encoding) - expected).max())


def main(argv: list[str] | None = None) -> None:
    """Export the classifier of a folder and compare the file with it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="a model folder, or a name on the Hugging Face hub")
    parser.add_argument("target", help="the .onnx file to write")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    given = parser.parse_args(argv)
    model = AutoModelForSequenceClassification.from_pretrained(given.folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(given.folder)
    path = export(model, given.target)
    difference = parity(model, open_session(path, given.threads), tokenizer)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, largest difference {difference:.1e}")


if __name__ == "__main__":
    main()
