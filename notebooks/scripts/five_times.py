"""Time PyTorch and ONNX Runtime in one process, as people do it: five_times.py FOLDER THREADS."""

import json
import statistics
import sys
import time

import onnxruntime
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
options = onnxruntime.SessionOptions()  # with its default, the threads wait busily
options.intra_op_num_threads = threads
session = onnxruntime.InferenceSession(f"{folder}/model.onnx", options, providers=["CPUExecutionProvider"])
model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
inputs = tokenizer("A film that takes its time, and some of yours as well.", return_tensors="pt")
arrays = {name: tensor.numpy() for name, tensor in inputs.items()}


def milliseconds(call):
    """Time one call."""
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


@torch.inference_mode()
def pytorch():
    """One short text through PyTorch."""
    return model(**inputs)


def runtime():
    """The same through ONNX Runtime."""
    return session.run(None, arrays)


def alone(call):
    """Median of 25 calls after 5 that do not count."""
    time.sleep(0.5)  # until no thread of the other engine is still waiting
    return statistics.median([milliseconds(call) for _ in range(30)][5:])


found = {"PyTorch, first call": milliseconds(pytorch)}
found["PyTorch, alone"], found["ONNX Runtime, alone"] = alone(pytorch), alone(runtime)
turns = [(milliseconds(pytorch), milliseconds(runtime)) for _ in range(25)]
found["PyTorch, in turn"], found["ONNX Runtime, in turn"] = map(statistics.median, zip(*turns, strict=True))
print(json.dumps(found))
