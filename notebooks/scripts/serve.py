"""Classify texts with ONNX Runtime, without PyTorch: serve.py TEXT ...

It lies beside model.onnx (and model.onnx.data, if there is one) and tokenizer.json, and needs
three packages: onnxruntime, tokenizers, numpy.
"""

import os
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

HERE, LABELS = Path(__file__).parent, ("negative", "positive")
FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}

tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
tokenizer.enable_truncation(128)
tokenizer.enable_padding()  # to the longest of a batch; give pad_id if yours is not 0
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(os.environ.get("THREADS", "1"))  # in a container, its share of CPUs
session = onnxruntime.InferenceSession(HERE / "model.onnx", options, providers=["CPUExecutionProvider"])
names = [entry.name for entry in session.get_inputs()]


def classify(texts):
    """Return logits, float32 (texts, labels)."""
    rows = tokenizer.encode_batch(texts)
    return session.run(None, {name: np.array([getattr(row, FIELDS[name]) for row in rows]) for name in names})[0]


if __name__ == "__main__":
    for text, logits in zip(sys.argv[1:], classify(sys.argv[1:]), strict=True):
        print(LABELS[logits.argmax()], "|", text)
    print("parts of torch loaded:", sum(name.split(".")[0] == "torch" for name in sys.modules))
