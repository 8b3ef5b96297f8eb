"""Benchmark parts of notebooks 04 and 05: ONNX Runtime against PyTorch, and all number formats."""

import random
import shutil
import tempfile
from pathlib import Path

from helpers.core import metrics, processes, timing
from helpers.lessons import onnx_inference
from helpers.models import assets, batching
from helpers.tools.bench_report import Part, rounded

import numpy
import pandas

INT8 = {  # options of quantize_onnx.onnx_dynamic
    "ONNX Runtime, int8": {},
    "ONNX Runtime, int8, one scale a matrix": {"per_channel": False},
    "ONNX Runtime, int8, reduced range": {"reduced_range": True},
    "ONNX Runtime, uint8": {"weights": "uint8"},
}
TORCH = (
    "PyTorch, float32",
    "PyTorch, bfloat16",
    "torch dynamic",
    "torch dynamic, per channel",
    "torchao, weights only",
    "torchao, activations too",
)
WAYS = {"sdpa": 1e-3, "compiled": 1e-3, "bfloat16": 0.1, "onnx": 1e-3}  # how far apart is right
ORDERS = 8  # of the test snippets, for accuracies


def _model(name: str):
    from helpers.lessons import sentiment  # torch: no arm of ONNX Runtime alone should load it

    return sentiment.teacher() if name == "classifier" else assets.model(name)


def export(name: str, folder: str) -> Path:
    """Export "classifier" or a model of the catalogue; in a process of its own, nothing stays."""
    from helpers.lessons import onnx_export

    return onnx_export.export(_model(name), Path(folder) / f"{name}.onnx")


def engine(way: str, name: str, path: str, batch: int, length: int):
    """Set up one arm: a padded batch through ONNX Runtime ("onnx") or PyTorch (the rest of `WAYS`).

    The threads of both engines sleep while they wait, as everywhere in this package.
    """
    inputs = batching.two_segments(batch, length, 30_000, numpy.random.default_rng(0))
    if way == "onnx":
        session = onnx_inference.session(path, threads=2)

        def call(**inputs):
            return session.run(None, inputs)[0]

    else:
        import torch

        model = _model(name).to(torch.bfloat16 if way == "bfloat16" else torch.float32)
        model = torch.compile(model) if way == "compiled" else model

        @torch.inference_mode()
        def call(**inputs):
            tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
            return model(**tensors)[0].float().numpy()

    return call, inputs, call(**inputs).reshape(batch, -1)[:, :768].tolist()


def _race(name: str, path: Path, batch: int, length: int, passes: int) -> dict:
    """Time both engines on one batch shape; `torch.compile` needs a compiler."""
    request = {"name": name, "path": str(path), "batch": batch, "length": length}
    arms, compiler = {}, shutil.which("g++") or shutil.which("cl")
    for way in WAYS:
        if way != "compiled" or compiler:
            arms[way] = ("helpers.tools.bench_engines:engine", {"way": way, **request})
    took = timing.compare(arms, rounds=6, warmup=1, threads=2, isolate=True, passes=passes)
    for way, found in took.extra.items():
        difference = numpy.abs(numpy.subtract(found, took.extra["sdpa"])).max()
        if not difference < WAYS[way]:
            raise RuntimeError(f"{name}, {batch} x {length}: {way} differs by {difference:.1e}")
    median = took.table.set_index("arm")["median ms"]
    ratio = took.ratio("onnx", median.drop(["onnx", "bfloat16"]).idxmin())
    return {
        "batch": f"{name}, {batch} x {length}",
        **{f"{way} ms": median[way] for way in median.index},
        "onnx / best torch": ratio.value,  # in float32, as ONNX Runtime itself
        "low": ratio.low,
        "high": ratio.high,
        "onnx / bfloat16": took.ratio("onnx", "bfloat16").value,
    }


def engines(quick: bool) -> Part:
    """Compare ONNX Runtime in float32 with PyTorch, two threads each; a ratio of 1 is equal.

    "Best torch" is float32, compiled or not; bfloat16 has its own ratio. Quick: a single batch.
    """
    names = ["classifier"] if quick else ["classifier", "bert-base"]
    shapes = [(8, 16)] if quick else [(b, n) for b in (1, 8) for n in (16, 128, 512)]
    rows, ratios = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = processes.run_in_subprocess(export, name, folder)
            for batch, length in shapes:
                row = _race(name, path, batch, length, passes=1 if quick else 2)
                rows.append(row)
                key = f"onnx_over_torch_{name}_{batch}x{length}".replace("-", "_")
                ratios[key] = row["onnx / best torch"]
    ratios["onnx_over_torch_worst"] = max(ratios.values())
    ratios["onnx_over_bfloat16_worst"] = max(row["onnx / bfloat16"] for row in rows)
    return Part(pandas.DataFrame(rows).set_index("batch"), rounded(ratios, 3))


def _torch_format(way: str):
    """Return the classifier in one of the formats of `TORCH`, and the bytes of its weights."""
    from helpers.lessons import quantize_torch, sentiment

    import torch

    model = sentiment.teacher()
    if way.startswith("torch dynamic"):
        report = quantize_torch.torch_dynamic(model, per_channel=way.endswith("channel"))
    elif way.startswith("torchao"):
        report = quantize_torch.torchao_int8(model, activations=way.endswith("too"))
    else:
        model = model.to(torch.bfloat16) if way == "PyTorch, bfloat16" else model
        return model, sum(parameter.nbytes for parameter in model.parameters())
    return report.model, sum(report.after.values())


def quantized(way: str, path: str, texts: list[str], every: list[str]):
    """Set up one arm: the classifier in a format of `TORCH`, or as the ONNX file at a path.

    `texts` are timed. Its extra holds the bytes, and the labels of `every` text. Labels of ONNX
    files are given `ORDERS` times: int8 takes its ranges from whole batches, so in another order a
    text has other neighbours and may get another answer.
    """
    from helpers.lessons import sentiment

    if way in TORCH:
        model, size = _torch_format(way)

        def call(texts):
            return sentiment.logits(model, texts)

    else:
        tokenizer = assets.tokenizer("minilm")
        session = onnx_inference.session(path, threads=2)
        size = Path(path).stat().st_size

        def call(texts):
            return onnx_inference.predict(session, tokenizer, texts)

    labels = []
    for number in range(1 if way in TORCH else ORDERS):
        order = random.Random(number).sample(range(len(every)), len(every))
        answers = call([every[row] for row in order]).argmax(1).tolist()
        found = dict(zip(order, answers, strict=True))
        labels.append([found[row] for row in range(len(every))])
    return call, (texts,), {"bytes": size, "labels": labels}


def _format_row(name: str, extra: dict, ratio, labels: list[int], reference: list[int]) -> dict:
    pairs = [metrics.paired(labels, reference, found) for found in extra["labels"]]
    points = 100 * numpy.array([(pair.difference, pair.low, pair.high) for pair in pairs])
    middle, low, high = points.mean(axis=0)
    return {
        "format": name,
        "MB": extra["bytes"] / 1e6,
        "times as fast": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "accuracy": str(metrics.accuracy(labels, extra["labels"][0])),
        "points": middle,
        "from": low,
        "to": high,
        "worst": points[:, 0].min(),
        "best": points[:, 0].max(),
    }


def quantization(quick: bool) -> Part:
    """Measure the classifier in all number formats: speed, bytes, accuracy against float32.

    Points are means over `ORDERS` orders of the snippets, `worst` and `best` those of one order.
    BERT-base's bytes are counted. A quick run: three formats, 200 snippets and no BERT-base.
    """
    from helpers.lessons import sentiment
    from helpers.lessons.quantize_onnx import onnx_dynamic

    test = sentiment.sentences("test").sample(frac=1, random_state=0)
    test = test[:200] if quick else test
    exact, fast = "ONNX Runtime, float32", "ONNX Runtime, int8"
    torch_int8 = "torch dynamic, per channel"
    names = [exact, fast, torch_int8] if quick else [exact, *INT8, *TORCH]
    every = test["text"].tolist()
    texts = every[: 64 if quick else 512]
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {exact: processes.run_in_subprocess(export, "classifier", folder)}
        for number, name in enumerate(way for way in names if way in INT8):
            target = Path(folder) / f"{number}.onnx"
            paths[name] = onnx_dynamic(paths[exact], target, **INT8[name]).path
        arms = {}
        for name in names:
            given = {"path": str(paths.get(name, "")), "texts": texts, "every": every}
            arms[name] = ("helpers.tools.bench_engines:quantized", {"way": name, **given})
        settings = {"rounds": 6, "warmup": 1, "threads": 2, "isolate": True, "passes": 2}
        took = timing.compare(arms, **settings, items=len(texts))
        if not quick:
            base = processes.run_in_subprocess(export, "bert-base", folder)
            ratio = onnx_dynamic(base, Path(folder) / "base8.onnx").ratio
            ratios["int8_bytes_over_float32_bert_base"] = ratio
    labels, reference = test["label"].tolist(), took.extra[exact]["labels"][0]
    rows = []
    for name in names:
        ratio = took.ratio(exact, name)
        rows.append(_format_row(name, took.extra[name], ratio, labels, reference))
    table = pandas.DataFrame(rows).set_index("format")
    ratios["int8_over_float32"] = table.loc[fast, "times as fast"]
    ratios["int8_points"] = table.loc[fast, "points"]
    ratios["torch_per_channel_points"] = table.loc[torch_int8, "points"]
    ratios["int8_bytes_over_float32"] = table.loc[fast, "MB"] / table.loc[exact, "MB"]
    return Part(table, rounded(ratios))
