"""Open an ONNX file with ONNX Runtime, feed it, run it: without torch (notebooks 04, 05 and 08)."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from helpers.core import machine
from helpers.core.quiet import quiet
from helpers.models import batching

import numpy as np
import onnxruntime

_DTYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


class ProviderError(RuntimeError):
    """ONNX Runtime would compute somewhere else than asked; the message says where."""


def session(
    path: str | Path,
    *,
    threads: int | None = None,
    spinning: bool = False,
    providers: str | Sequence = "CPUExecutionProvider",
) -> onnxruntime.InferenceSession:
    """Open an ONNX file so that it computes where it was asked to.

    Args:
        path: The file, or what `onnx_export.export` returned.
        threads: By default the usable CPUs; ONNX Runtime looks past a container's limit.
        spinning: Keep threads busy while they wait: they start sooner, and all else in this
            process gets slow, PyTorch included.
        providers: One, or several in order of preference.

    Raises:
        ProviderError: If a provider is not in use at the end.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or machine.usable_cpus()
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    options.log_severity_level = 3  # errors are raised as well; warnings would be on stderr
    providers = [providers] if isinstance(providers, str) else list(providers)
    path = str(getattr(path, "path", path))
    with quiet(stdout=True):  # a missing provider is an error below
        opened = onnxruntime.InferenceSession(path, options, providers=providers)
    for provider in providers:
        name = provider if isinstance(provider, str) else provider[0]
        if name not in opened.get_providers():
            raise ProviderError(
                f"{name} was asked for and is not in use: ONNX Runtime would compute with "
                f"{', '.join(opened.get_providers())}. Its build has "
                f"{', '.join(onnxruntime.get_available_providers())}; for CUDA, install "
                "onnxruntime-gpu without onnxruntime beside it, and CUDA's libraries"
            )
    return opened


def feed(session: onnxruntime.InferenceSession, inputs: Mapping) -> dict[str, np.ndarray]:
    """Return what a session's `run` takes, from lists, arrays or tensors by name.

    Names that the file does not know are dropped; segment ids that nobody gave are zeros.

    Raises:
        TypeError: For numbers that are not integers.
        ValueError: For a missing input, padding where the file takes no mask, negative numbers,
            and shapes that differ (they would be broadcast).
    """
    made = {}
    for entry in session.get_inputs():
        if entry.name in inputs:
            array = np.asarray(inputs[entry.name])
            if array.dtype.kind not in "iub":
                raise TypeError(f"{entry.name} holds {array.dtype}; the file takes integers")
            if array.min(initial=0) < 0:
                raise ValueError(f"{entry.name} holds {array.min()}: a row from the table's end")
            made[entry.name] = array.astype(_DTYPES[entry.type])
        elif entry.name == "token_type_ids":
            made[entry.name] = np.zeros(np.shape(inputs["input_ids"]), _DTYPES[entry.type])
        else:
            raise ValueError(f"the file needs {entry.name}, which is not among {list(inputs)}")
    if "attention_mask" not in made and not np.all(inputs.get("attention_mask", 1)):
        raise ValueError("the file has no attention_mask and would read the padding as text")
    shapes = {name: array.shape for name, array in made.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"shapes differ: {shapes}")
    return made


def run(session: onnxruntime.InferenceSession, inputs: Mapping) -> np.ndarray:
    """Return the first output: logits (texts, labels) or hidden states, float32."""
    return session.run([session.get_outputs()[0].name], feed(session, inputs))[0]


def predict(
    session: onnxruntime.InferenceSession,
    tokenizer,
    texts: Sequence,
    max_tokens: int = 1024,
    workers: int = 1,
) -> np.ndarray:
    """Return a classifier's logits, float32 (texts, labels), in the given order.

    Args:
        session: Of `session`; with one thread for each of several workers.
        tokenizer: Cuts texts (or pairs) at 128 tokens.
        texts: Sorted by length into batches.
        max_tokens: Of a batch, with padding.
        workers: Batches that are computed at the same time.

    Raises:
        ValueError: For a file that does not classify whole texts.
    """
    output = session.get_outputs()[0]
    if len(output.shape) != 2:
        raise ValueError(f"{output.name} has shape {output.shape}: predict classifies whole texts")
    encoded, lengths = batching.encode(tokenizer, texts)
    groups = batching.batches(lengths, max_tokens=max_tokens)

    def answer(rows: list[int]) -> np.ndarray:
        return run(session, batching.pad(tokenizer, encoded, rows, "np"))

    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(answer, groups))
    return np.stack(batching.restore(results, groups))
