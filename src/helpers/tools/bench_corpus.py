"""Benchmark parts that run a corpus (notebook 07), the pipelines of notebook 08, and notebooks."""

import sys
import tempfile

from helpers.core import metrics, timing
from helpers.lessons import pipelines, sentiment
from helpers.models import assets, datasets
from helpers.recipes import embed_corpus
from helpers.tools import measure
from helpers.tools.bench_report import Part, rounded
from helpers.tools.notebooks import lessons

import numpy
import pandas
import torch


def notebooks(quick: bool) -> Part:
    """Run every notebook from a fresh kernel: seconds, and peak memory with its children (GiB)."""
    found = lessons()
    chosen = [min(found, key=lambda lesson: lesson.seconds)] if quick else found
    rows = []
    for lesson in chosen:
        command = [sys.executable, "-m", "jupyter", "execute", str(lesson.path)]
        run = measure.measure(command, cwd=lesson.path.parent)
        if run.status:
            raise RuntimeError(f"{lesson.path.name} failed:\n{run.output[-2000:]}")
        rows.append(
            {
                "notebook": lesson.path.stem,
                "seconds": run.seconds,
                "stated seconds": lesson.seconds,
                "peak GiB": run.peak / 2**30,
                "stated GiB": lesson.gigabytes * 1e9 / 2**30,
            }
        )
    table = pandas.DataFrame(rows).set_index("notebook")
    worst = {
        "notebook_seconds_worst": table["seconds"].max(),
        "notebook_peak_gib_worst": table["peak GiB"].max(),
    }
    return Part(table, rounded(worst, 3))


def sentences_with(way: str, count: int):
    """Set up one arm: SciBERT's architecture on scientific sentences, sorted or as pasted."""
    model, tokenizer = assets.model("scibert"), assets.tokenizer("scibert")
    texts = datasets.science_sentences()["text"].tolist()[:: 300 // count]
    padded = {"padding": "max_length", "truncation": True, "max_length": 128}

    def pasted(texts):
        rows = []
        with torch.no_grad():
            for text in texts:
                inputs = tokenizer(text, **padded, return_tensors="pt")
                hidden = model(**inputs).last_hidden_state
                rows.append(embed_corpus.mean_pool(hidden, inputs["attention_mask"]))
        return torch.cat(rows).numpy()

    def embedded(texts):
        return embed_corpus.embed_sorted(texts, model, tokenizer, max_tokens=1024)

    call = {"pasted": pasted, "embed": embedded}[way]
    return call, {"texts": texts}, call(texts).tolist()


def embedding(quick: bool) -> Part:
    """Compare `embed_sorted` with the pasted loop (single texts, padded to 128)."""
    count, arms = (10 if quick else 300), {}
    for way in ("pasted", "embed"):
        arms[way] = ("helpers.tools.bench_corpus:sentences_with", {"way": way, "count": count})
    took = timing.compare(arms, rounds=6, warmup=1, threads=2, isolate=True, items=count)
    difference = float(numpy.abs(numpy.subtract(*took.extra.values())).max())
    if difference > 1e-4:
        raise RuntimeError(f"embed and the pasted loop differ by {difference:.1e}")
    table = took.table[["arm", "median ms", "items/s"]].set_index("arm")
    ratio = took.ratio("pasted", "embed").value
    return Part(table, {"embed_over_pasted": ratio, "embed_difference": difference})


def _step_row(step: str, before: str, took, labels: list[int], count: int) -> dict:
    extra, ratio = took.extra[step], took.ratio("as pasted", step)
    score = metrics.accuracy(labels, extra["labels"])
    pair = metrics.paired(labels, took.extra["smaller model"]["labels"], extra["labels"])
    return {
        "step": step,
        "texts/s": count / numpy.median(took.seconds[step]),
        "times as pasted": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "times before": took.ratio(before, step).value,
        "times plain loop": took.ratio("smaller model", step).value,
        "MB": extra["MB"],
        "accuracy": score.value,
        "from": score.low,
        "to": score.high,
        "points": 100 * pair.difference,
        "points from": 100 * pair.low,
        "points to": 100 * pair.high,
    }


def pipeline(quick: bool) -> Part:
    """Measure every step of notebook 08 and what stands beside them, with two threads each.

    Accuracy on all test snippets, in pairs with the teacher; 16 and 200 snippets in a quick run.
    """
    test = sentiment.sentences("test").sample(frac=1, random_state=0)
    test = test[:200] if quick else test
    every, labels = test["text"].tolist(), test["label"].tolist()
    texts, arms = every[:16] if quick else every[:256], {}
    steps = [*pipelines.STEPS, *pipelines.BESIDE]
    with tempfile.TemporaryDirectory() as folder:
        pipelines.write_files(folder)
        request = {"folder": folder, "texts": texts, "every": every}
        for step in steps:
            arms[step] = ("helpers.lessons.pipelines:step", {"name": step, **request})
        took = timing.compare(arms, rounds=6, warmup=1, threads=2, isolate=True, items=len(texts))
    if not numpy.allclose(*(took.extra[step]["logits"] for step in steps[:2]), atol=1e-4):
        raise RuntimeError("padding changes the answers of BERT-base")
    before = dict(zip(steps[1:], steps, strict=False)) | {steps[0]: steps[0]}
    before |= dict.fromkeys(pipelines.BESIDE, "smaller model")
    rows = [_step_row(step, before[step], took, labels, len(texts)) for step in steps]
    table = pandas.DataFrame(rows).set_index("step")
    ratios, names = {}, {"a thread a batch": "final", "smallest student": "smallest"}
    for step in (*names, *pipelines.RIGHT, "baseline"):
        name = names.get(step, step.replace(" ", "_"))
        share = table.loc[step, "accuracy"] / table.loc["smaller model", "accuracy"]
        ratios[f"{name}_over_pasted"] = table.loc[step, "times as pasted"]
        ratios[f"{name}_share_of_accuracy"] = share
    ratios["cascade_over_competent"] = took.ratio("competent PyTorch", "cascade").value
    return Part(table, rounded(ratios))
