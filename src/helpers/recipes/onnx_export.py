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
import transformers
from transformers import AutoTokenizer, PreTrainedModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
PAIRS = [("A short text.", "Another."), ("This one is a good deal longer than that.", "No!")]
OPSET, OLDER = 23, 20  # 23 is the first with an Attention operator, which joins many


def example_inputs(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return a batch (2, 8) by name, of the inputs that the model's `forward` names."""
    names = [name for name in INPUTS if name in inspect.signature(model.forward).parameters]
    example = {n: torch.ones(2, 8, dtype=torch.int64, device=model.device) for n in names}
    if "token_type_ids" in example:
        example["token_type_ids"].zero_()  # RoBERTa has a single segment, 0
    return example


def to_program(
    model: PreTrainedModel, example: Mapping, opset: int = OPSET, optimize: bool = True
) -> torch.onnx.ONNXProgram:
    """Trace a model by name: by position, mask and segment ids would be swapped in silence."""
    model.eval()
    model.set_attn_implementation("sdpa")
    # Each is cloned: one tensor under two names would become a single input of the file.
    example = {name: example[name].clone() for name in example_inputs(model)}
    if any(value.shape[0] < 2 or value.shape[1] < 8 for value in example.values()):
        raise ValueError("give at least 2 texts of 8 tokens: sizes 0 and 1 would stay fixed")
    with torch.inference_mode():
        outputs = [name for name, value in model(**example).items() if torch.is_tensor(value)]
        free = {name: {0: "batch", 1: "length"} for name in example}
        options = {"opset_version": opset, "optimize": optimize, "dynamo": True, "verbose": False}
        options |= {"dynamic_shapes": free, "output_names": outputs}
        return torch.onnx.export(model, kwargs=example, **options)


def export(model: PreTrainedModel, path: str | Path, tokenizer) -> Path:
    """Write a model as an ONNX file of any batch and length, whose large weights lie beside it.

    It is compared before it is handed over: of ModernBERT, OPSET's file fails on a second text.
    """
    path = Path(path)
    cause = None
    for opset in (OPSET, OLDER):
        Path(f"{path}.data").unlink(missing_ok=True)  # of an earlier export
        to_program(model, example_inputs(model), opset).save(path)
        try:
            if parity(model, open_session(path, 1), tokenizer) < 1e-3:
                return path
        except Exception as error:  # ONNX Runtime's kinds have no common base
            cause = error
    path.unlink()
    raise RuntimeError(f"no ONNX file computes what this {type(model).__name__} does") from cause


def open_session(
    path: str | Path, threads: int, provider: str = "CPUExecutionProvider"
) -> onnxruntime.InferenceSession:
    """Open an ONNX file on the provider that is asked for, or raise RuntimeError.

    ONNX Runtime itself falls back to the CPU. Threads that spin would slow down the process.
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
    if "attention_mask" not in names or set(encoding) - {*INPUTS, *names}:
        raise ValueError(f"the file takes {names}: it would ignore some of {list(encoding)}")
    given, feed = {"token_type_ids": np.zeros_like(encoding["input_ids"]), **encoding}, {}
    for name in names:  # decimal ids would be cut off in silence, hence the casting
        feed[name] = np.asarray(given[name]).astype(np.int64, casting="same_kind")
    return session.run(None, feed)[0]


def parity(model: PreTrainedModel, session: onnxruntime.InferenceSession, tokenizer) -> float:
    """Return the largest difference of the first output on padded pairs of texts, and on one pair.

    Padding and two segments matter: with ones everywhere, a swapped mask looks right. Outputs at
    padding do not: a kernel may leave anything there.
    """
    worst = []
    for pairs in (PAIRS, PAIRS[:1]):
        encoding = tokenizer(*zip(*pairs, strict=True), padding=True, return_tensors="pt")
        known = {n: encoding[n].to(model.device) for n in example_inputs(model) if n in encoding}
        with torch.inference_mode():
            expected = model.eval()(**known)[0].float().cpu().numpy()
        apart = np.abs(run(session, encoding) - expected)
        if apart.ndim == 3:  # of each token
            apart = apart[encoding["attention_mask"].numpy() == 1]
        worst.append(apart.max())
    return float(np.max(worst))


def main(argv: list[str] | None = None) -> None:
    """Export the model of a folder and compare the file with it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="a model folder, or a name on the Hugging Face hub")
    parser.add_argument("target", help="the .onnx file to write")
    parser.add_argument("--class", dest="kind", default="AutoModelForSequenceClassification")
    given = parser.parse_args(argv)
    load = getattr(transformers, given.kind).from_pretrained
    model, about = load(given.folder, dtype=torch.float32, output_loading_info=True)
    if missing := [name for name in about["missing_keys"] if "pooler" not in name]:
        raise ValueError(f"{missing[0]} would be random: for an encoder, take --class AutoModel")
    tokenizer = AutoTokenizer.from_pretrained(given.folder)
    path = export(model, given.target, tokenizer)
    for file in sorted(path.parent.glob(f"{path.name}*")):
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
    print(f"largest difference: {parity(model, open_session(path, 1), tokenizer):.1e}")


if __name__ == "__main__":
    main()
