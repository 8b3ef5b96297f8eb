"""Classify many texts on a CPU as fast as it can: int8, batches, threads, cascade (notebook 08).

python fast_pipeline.py model.int8.onnx TOKENIZER_FOLDER texts.txt --labelled train.tsv
"""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime


def open_session(path, threads=1, provider="CPUExecutionProvider") -> onnxruntime.InferenceSession:
    """Open an ONNX file whose threads sleep while they wait; RuntimeError without the provider."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), options, providers=[provider])
    if provider not in session.get_providers():
        raise RuntimeError(f"{provider} is not in use, but {session.get_providers()}")
    return session


def batches(lengths: Sequence[int], max_tokens: int = 512) -> Iterator[list[int]]:
    """Yield positions of texts in batches of like length: at most so many tokens with padding."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    while order:
        count = max(1, max_tokens // lengths[order[-1]])
        yield order[-count:]
        del order[-count:]


def pad(encoded: dict[str, list], rows: list[int], fill: int) -> dict[str, np.ndarray]:
    """Return some rows of an encoding as int64 arrays, padded to the longest of them."""
    longest = max(len(encoded["input_ids"][row]) for row in rows)
    padded = {}
    for name, values in encoded.items():
        padded[name] = np.full((len(rows), longest), fill if name == "input_ids" else 0, np.int64)
        for place, row in enumerate(rows):
            padded[name][place, : len(values[row])] = values[row]
    return padded


def classify(
    texts: Sequence[str], session: onnxruntime.InferenceSession, tokenizer, workers: int
) -> np.ndarray:
    """Return the logits (texts, classes) in the order of the texts, each cut at 128 tokens."""
    encoded = dict(tokenizer(list(texts), truncation=True, max_length=128))
    encoded.setdefault("token_type_ids", [[0] * len(ids) for ids in encoded["input_ids"]])
    names = [entry.name for entry in session.get_inputs()]
    if "attention_mask" not in names:
        raise ValueError("the file has no attention_mask: it would read padding as text")
    groups = list(batches([len(ids) for ids in encoded["input_ids"]]))

    def answer(rows: list[int]) -> np.ndarray:
        batch = pad(encoded, rows, tokenizer.pad_token_id)
        return session.run(None, {name: batch[name] for name in names})[0]

    with ThreadPoolExecutor(workers) as pool:
        answers = np.concatenate(list(pool.map(answer, groups)))
    if answers.ndim != 2 or answers.shape[1] < 2:
        raise ValueError(f"logits (texts, 2 classes or more) are needed, not {answers.shape}")
    return answers[np.argsort(np.concatenate(groups))]  # in the order of the texts


def sure_from(held_out: np.ndarray, labels: Sequence[int], wanted: float = 0.9) -> float:
    """Return from which of the probabilities (texts, classes) on they are right often enough."""
    if set(labels) != set(range(held_out.shape[1])):
        raise ValueError("number the labels from 0, in the order of BERT's classes")
    sure, right = held_out.max(1), held_out.argmax(1) == np.asarray(labels)
    levels, place = np.unique(-sure, return_inverse=True)  # the surest first
    weight = 1 / np.bincount(labels)[labels]  # a rare class counts as much as a frequent one
    right_of, all_of = (np.bincount(place, part).cumsum() for part in (weight * right, weight))
    return -max(levels[right_of / all_of >= wanted], default=-np.inf)


def train_baseline(texts: Sequence[str], labels: Sequence[int], wanted: float = 0.9):
    """Return TF-IDF with logistic regression, fitted, and from where on it is sure."""
    from sklearn import linear_model, model_selection, pipeline  # what answers needs none of it
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    baseline = pipeline.make_pipeline(words, linear_model.LogisticRegression(C=10, max_iter=300))
    held_out = model_selection.cross_val_predict(baseline, texts, labels, method="predict_proba")
    return baseline.fit(texts, labels), sure_from(held_out, labels, wanted)


def cascade(texts: Sequence[str], baseline, threshold: float, answer_rest) -> np.ndarray:
    """Return logits (texts, classes): the baseline's where it is sure, else `answer_rest`'s."""
    logits = baseline.predict_log_proba(texts)
    unsure = np.flatnonzero(np.exp(logits.max(1)) < threshold)
    if len(unsure):
        logits[unsure] = answer_rest([texts[row] for row in unsure])
    return logits


def main(argv: list[str] | None = None) -> None:
    """Classify the lines of a file; print a label for each, and the speed."""
    from transformers import AutoTokenizer  # brings PyTorch, which the rest does without

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a classifier's .onnx file, float or int8")
    parser.add_argument("tokenizer", help="a folder, or a name on the Hugging Face hub")
    parser.add_argument("texts", type=Path, help="a text file, one text a line")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: all CPUs")
    parser.add_argument("--labelled", type=Path, help="for a cascade: lines of text, tab, label")
    given = parser.parse_args(argv)
    tokenizer, session = AutoTokenizer.from_pretrained(given.tokenizer), open_session(given.model)
    answer = partial(classify, session=session, tokenizer=tokenizer, workers=given.workers)
    if given.labelled:
        lines = given.labelled.read_text("utf-8-sig").split("\n")
        known, labels = zip(*(line.rsplit("\t", 1) for line in lines if line.strip()), strict=True)
        baseline, threshold = train_baseline(known, [int(label) for label in labels])
        answer = partial(cascade, baseline=baseline, threshold=threshold, answer_rest=answer)
    texts = [line for line in given.texts.read_text("utf-8-sig").split("\n") if line.strip()]
    start = time.perf_counter()
    logits = answer(texts)
    seconds = time.perf_counter() - start
    for text, label in zip(texts, logits.argmax(1), strict=True):
        print(f"{label}\t{text}")
    print(f"{len(texts)} texts, {len(texts) / seconds:,.0f} a second, {given.workers} workers")


if __name__ == "__main__":
    main()
