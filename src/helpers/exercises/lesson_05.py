"""Checks for the exercises of notebook 05 (quantization), and the files they are about."""

from pathlib import Path

from helpers.exercises import exercise
from helpers.exercises.tiny_models import tiny_bert
from helpers.lessons import onnx_export, onnx_inference, quantize_torch
from helpers.models import inspection

import torch
from torch import nn
from transformers import BertForSequenceClassification

LARGEST_SHARE, LARGEST_DIFFERENCE = 0.5, 0.12  # of the float file's bytes, and of logits


def outlier_model() -> BertForSequenceClassification:
    """Build a small classifier in which one row of a matrix is far larger than the others."""
    model = tiny_bert(1, BertForSequenceClassification, vocab_size=2000, initializer_range=0.2)
    with torch.no_grad():
        model.bert.pooler.dense.weight[0] *= 20
    return model


def write_files(folder: str | Path) -> tuple[Path, Path]:
    """Write model.onnx, in float32, and int8.pth, the state of its int8 copy (torch.ao)."""
    state = quantize_torch.torch_dynamic(outlier_model()).model.state_dict()
    torch.save(state, Path(folder) / "int8.pth")
    path = onnx_export.export(outlier_model(), Path(folder) / "model.onnx")
    return path, Path(folder) / "int8.pth"


@exercise
def check_05_1(answer: str | Path) -> str | None:
    """Check the path of an int8 file, beside the float one, that is small and agrees with it."""
    path = Path(answer)
    share = path.stat().st_size / path.with_name("model.onnx").stat().st_size
    if share > LARGEST_SHARE:
        return f"it has {share:.0%} of the float file's bytes: are the embeddings in it (Gather)?"
    session = onnx_inference.session(path)
    found = onnx_export.parity(outlier_model(), session, batches=(4,), lengths=(40,)).difference
    if not found <= LARGEST_DIFFERENCE:
        return f"its logits are {found:.2f} off: one large row makes a matrix's only scale coarse"
    return None


@exercise
def check_05_2(answer: nn.Module) -> str | None:
    """Check the model that was loaded from int8.pth."""
    if not isinstance(answer, nn.Module):
        return f"the answer is the loaded model, not a {type(answer).__name__}"
    if not inspection.int8_modules(answer):
        return "its linear layers are float: make a new model int8 in the same way, then load"
    right, ids = quantize_torch.torch_dynamic(outlier_model()).model, torch.arange(24)[None]
    with torch.inference_mode():
        off = float((answer.eval()(ids).logits - right(ids).logits).abs().max())
    return f"its logits are {off:.2f} off: was everything loaded, strictly?" if off else None
