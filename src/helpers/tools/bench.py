"""The benchmark behind `python -m helpers bench`: each lesson adds a part.

A part measures its arms in processes of their own and returns a table to read and ratios to keep. Absolute times of a
shared machine mean little; what the tutorial states are ratios and peaks taken in one run of a part.
"""

import datetime
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from helpers.core import files, machine, processes
from helpers.lessons import onnx_inference, quantize_torch
from helpers.models import batching, datasets
from helpers.tools import measure
from helpers.tools.notebooks import lessons

import pandas

RECORDED = (
    files.DATA / "bench.json"
)  # whole runs on the development machine: `bench --json` to this path


@dataclass(frozen=True)
class Part:
    """What one part measured: a table to show, and the numbers by name that the tutorial speaks of."""

    table: pandas.DataFrame
    ratios: dict[str, float] = field(default_factory=dict)


def notebooks(quick: bool) -> Part:
    """Run every lesson from a fresh kernel: seconds, and the peak memory of the kernel and its children (GiB)."""
    found = lessons()
    chosen = [min(found, key=lambda lesson: lesson.seconds)] if quick else found
    rows = []
    for lesson in chosen:
        run = measure.measure(
            [sys.executable, "-m", "jupyter", "execute", str(lesson.path)], cwd=lesson.path.parent
        )
        if run.status:
            raise RuntimeError(f"{lesson.path.name} failed:\n{run.output[-2000:]}")
        rows.append(
            (
                lesson.path.stem,
                run.seconds,
                lesson.seconds,
                run.peak / 2**30,
                lesson.gigabytes * 1e9 / 2**30,
            )
        )
    columns = ["notebook", "seconds", "stated seconds", "peak GiB", "stated GiB"]
    table = pandas.DataFrame(rows, columns=columns).set_index("notebook")
    worst = {
        "notebook_seconds_worst": table["seconds"].max(),
        "notebook_peak_gib_worst": table["peak GiB"].max(),
    }
    return Part(table, {name: round(float(value), 3) for name, value in worst.items()})


def _drawn(rng: random.Random, base: bool) -> tuple:
    """One random training or inference, tiny or BERT-base: (config, batch, length, options of `predict_peak`)."""
    from transformers import BertConfig

    hidden = rng.choice([32, 64, 128, 192, 256, 384, 512, 768])
    drawn = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=rng.randint(1, 12),
        num_attention_heads=max(1, hidden // rng.choice([32, 64])),
        intermediate_size=hidden * rng.choice([2, 3, 4]),
        vocab_size=rng.choice([500, 5000, 30522]),
        attention_probs_dropout_prob=rng.choice([0.0, 0.1, 0.1]),
    )
    config = BertConfig() if base else drawn
    options = {"padded": rng.random() < 0.7, "attention": rng.choice(["sdpa", "sdpa", "eager"])}
    options["mode"] = rng.choice(["inference", "training", "training", "training"])
    kind = rng.choice(["float32", "float32", "bfloat16", "mixed"])
    options |= {"mixed_precision": True} if kind == "mixed" else {"dtype": kind}
    if options["mode"] == "training":
        options |= {"optimizer": rng.choice(["adamw", "sgd"]), "accumulate": rng.choice([1, 1, 4])}
        options |= {"checkpointing": rng.random() < 0.3}
        lever = rng.choice(["", "", "embeddings", "body", "layers", "lora"])
        if lever == "lora":
            options["lora"] = rng.choice([2, 8])
        elif lever:
            options["freeze"] = (
                rng.randint(0, config.num_hidden_layers) if lever == "layers" else lever
            )
    return config, rng.randint(1, 16), rng.randint(4, 512), options


LARGE = """
import json, sys, time
from helpers.core import processes
from helpers.lessons import memory
from helpers.models import assets
large = assets.config("bert-large")
start = time.perf_counter()
peak = memory.predict_peak(large, 32, 512, **json.loads(sys.argv[1]))
print(json.dumps([peak.total, time.perf_counter() - start, processes.process_peak()]))
"""


def memory(quick: bool, seed: int = 0) -> Part:
    """Predicted against measured CPU peaks and largest batches, and what a prediction itself takes.

    The errors are fractions: 0.01 is 1 %. BERT-large is predicted in processes of their own, whose whole memory counts.
    """
    from helpers.core.tensors import GIB, MIB
    from helpers.lessons.memory import largest_batch, measure_peak, predict_peak
    from helpers.lessons.training_step import Step

    def measured(config, batch, length, **options) -> int:
        step = Step(config, batch, length, **options)
        return measure_peak(step.run, step.model, step.optimizer, step.inputs).allocated

    def described(config, length, options) -> str:
        named = [f"{name}={value}" for name, value in options.items()]
        return ", ".join(
            [f"{config.num_hidden_layers} x {config.hidden_size}", f"{length} tokens", *named]
        )

    rng, rows, count = random.Random(seed), [], 6 if quick else 40
    while len(rows) < count:
        config, batch, length, options = _drawn(rng, base=not quick and len(rows) >= count - 5)
        # What would take too long or too much memory to run for real is left out before it is measured.
        if batch * length * config.num_hidden_layers * config.hidden_size**2 > (
            1e9 if quick else 8e9
        ):
            continue
        start = time.perf_counter()
        predicted = predict_peak(config, batch, length, **options).total
        seconds = time.perf_counter() - start
        if predicted > (400 if quick else 3000) * MIB:
            continue
        found = measured(config, batch, length, **options)
        row = {
            "configuration": described(config, length, options),
            "batch": batch,
            "seconds": seconds,
        }
        row |= {
            "predicted MiB": predicted / MIB,
            "measured MiB": found / MIB,
            "error": abs(predicted / found - 1),
        }
        rows.append(row)
    off_by = []
    for options in ({}, {"mode": "inference"}, {"checkpointing": True, "lora": 4})[
        : 1 if quick else 3
    ]:
        config, _, length, _ = _drawn(rng, base=False)
        config.hidden_size, config.num_attention_heads, config.num_hidden_layers = 128, 2, 4
        budget = predict_peak(config, rng.randint(8, 24), length, **options).total * rng.uniform(
            1.0, 1.1
        )
        best = true = largest_batch(config, length, budget / GIB, margin=0, **options)
        while measured(config, true + 1, length, **options) <= budget:
            true += 1
        while true and measured(config, true, length, **options) > budget:
            true -= 1
        what = f"largest batch: {described(config, length, options)}, {budget / MIB:.0f} MiB"
        rows.append({"configuration": what, "batch": best, "true batch": true})
        off_by.append(abs(best - true))
    for options in ({}, {"accumulate": 4}, {"lora": 8, "checkpointing": True, "device": "cuda"}):
        command = [sys.executable, "-c", LARGE, json.dumps(options)]
        predicted, seconds, taken = json.loads(
            subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        )
        what = ", ".join(
            ["BERT-large", "512 tokens", *(f"{name}={value}" for name, value in options.items())]
        )
        row = {"configuration": what, "batch": 32, "seconds": seconds, "process GiB": taken / GIB}
        rows.append(row | {"predicted MiB": predicted / MIB})
    table = pandas.DataFrame(rows).set_index("configuration")
    ratios = {
        "memory_error_median": table["error"].median(),
        "memory_error_worst": table["error"].max(),
        "largest_batch_off_by": max(off_by),
        "memory_prediction_seconds_worst": table["seconds"].max(),
        "memory_prediction_gib_worst": table["process GiB"].max(),
    }
    return Part(table, {name: round(float(value), 6) for name, value in ratios.items()})


def sentences_with(way: str, count: int):
    """A set-up for `timing.compare`: SciBERT's architecture on scientific sentences with `embed`, or as pasted."""
    from helpers.lessons import embedding
    from helpers.models import assets

    import torch

    model, tokenizer = assets.model("scibert"), assets.tokenizer("scibert")
    texts = datasets.science_sentences()["text"].tolist()[:: 300 // count]

    def pasted(texts):
        rows = []
        with torch.no_grad():
            for text in texts:
                inputs = tokenizer(
                    text, padding="max_length", truncation=True, max_length=128, return_tensors="pt"
                )
                hidden = model(**inputs).last_hidden_state
                rows.append(embedding.mean_pool(hidden, inputs["attention_mask"]))
        return torch.cat(rows).numpy()

    def embedded(texts):
        return embedding.embed(texts, model, tokenizer, precision="float32").vectors

    call = {"pasted": pasted, "embed": embedded}[way]
    return call, {"texts": texts}, call(texts).tolist()


def embedding(quick: bool) -> Part:
    """`embed` against the pasted loop (padded to 128, one at a time), and the memory that 100,000 short texts take."""
    from helpers.core import timing
    from helpers.lessons.embedding import stream
    from helpers.models import assets

    import numpy
    from transformers import BertConfig, BertModel

    count = 10 if quick else 300
    arms = {
        way: ("helpers.tools.bench:sentences_with", {"way": way, "count": count})
        for way in ("pasted", "embed")
    }
    took = timing.compare(arms, rounds=6, warmup=1, threads=2, isolate=True, items=count)
    difference = float(numpy.abs(numpy.subtract(*took.extra.values())).max())
    if difference > 1e-4:
        raise RuntimeError(f"embed and the pasted loop differ by {difference:.1e}")
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    texts = (f"text number {number} of a corpus" for number in range(20_000 if quick else 100_000))
    memory, done = [], 0
    for chunk in stream(texts, BertModel(config), assets.tokenizer("minilm"), precision="float32"):
        done += len(chunk)
        memory += [processes.process_memory()] if done >= 10_000 else []
    growth = (memory[-1] - memory[0]) / 1e6
    rows = took.table[["arm", "median ms", "items/s"]].to_dict("records")
    rows.append(
        {
            "arm": f"tiny model, 10,000 to {done:,} texts: {growth:+.1f} MB",
            "median ms": None,
            "items/s": None,
        }
    )
    ratios = {
        "embed_over_pasted": took.ratio("pasted", "embed").value,
        "embed_difference": difference,
    }
    return Part(
        pandas.DataFrame(rows).set_index("arm"), ratios | {"embed_memory_growth_mb": growth}
    )


_LOADING = """
import sys
from helpers.core import processes
from helpers.lessons import checkpoints
import torch
from transformers import BertConfig, BertModel
config = BertConfig(vocab_size=int(sys.argv[3]), num_hidden_layers=int(sys.argv[4]))

def pasted():
    model = BertModel(config)
    model.load_state_dict(torch.load(sys.argv[2], map_location="cpu"))
    return model

ways = {"pasted": pasted, "checkpoints.load": lambda: checkpoints.load(sys.argv[2], lambda: BertModel(config)).model}
BertModel(BertConfig(num_hidden_layers=1, vocab_size=10))  # what is imported late belongs to the baseline
before = processes.process_memory()
weights = list(ways[sys.argv[1]]().state_dict().values())
[float(weight.sum()) for weight in weights]  # else mapped weights would not be in memory yet
print((processes.process_peak() - before) / sum(weight.nbytes for weight in weights))
"""


def checkpoints(quick: bool) -> Part:
    """Peak memory of a fresh process that loads BERT-base from a file, above its baseline and in copies of the weights.

    The weights are random, which memory does not notice. A quick run takes a model of a third of the size.
    """
    import torch
    from transformers import BertConfig, BertModel

    sizes, rows = (10_000, 4) if quick else (30_522, 12), {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pth"
        torch.save(
            BertModel(BertConfig(vocab_size=sizes[0], num_hidden_layers=sizes[1])).state_dict(),
            path,
        )
        for way in ("pasted", "checkpoints.load"):
            command = [sys.executable, "-c", _LOADING, way, str(path), *map(str, sizes)]
            rows[way] = float(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout
            )
    table = pandas.DataFrame({"peak, in copies of the weights": rows}).rename_axis("loading")
    return Part(table, {"checkpoint_peak_over_weights": round(rows["checkpoints.load"], 4)})


def engine(way: str, name: str, path: str, batch: int, length: int):
    """A set-up for `timing.compare`: a padded batch through PyTorch ("eager", "sdpa") or through ONNX Runtime.

    The threads of both engines sleep while they wait, as everywhere in this package.
    """

    import numpy

    inputs = batching.two_segments(batch, length, 30_000, numpy.random.default_rng(0))
    if way == "onnx":
        session = onnx_inference.session(path, threads=2)

        def call(**inputs):
            return session.run(None, inputs)[0]

    else:
        import torch

        model = _engine_model(name)
        model.set_attn_implementation(way)

        @torch.inference_mode()
        def call(**inputs):
            return model(**{key: torch.from_numpy(value) for key, value in inputs.items()})[
                0
            ].numpy()

    return call, inputs, call(**inputs).reshape(batch, -1)[:, :768].tolist()


def _engine_model(name: str):
    from helpers.lessons import sentiment
    from helpers.models import assets

    return sentiment.teacher() if name == "classifier" else assets.model(name)


def _export(name: str, path: str) -> None:
    from helpers.lessons import onnx_export

    onnx_export.export(_engine_model(name), path)


def _exported(name: str, folder: str) -> Path:
    """The ONNX file of a model, made in a process of its own: what that takes is no part of what is measured."""
    path = Path(folder) / f"{name}.onnx"
    processes.run_in_subprocess(_export, name, path)
    return path


def engines(quick: bool) -> Part:
    """ONNX Runtime against PyTorch, two threads each, float32: how many times as long a batch takes (1 is equal).

    A ratio takes the quicker of PyTorch's two ways for that batch. A quick run takes one batch of the small model.
    """
    from helpers.core import timing

    import numpy

    names = ["classifier"] if quick else ["classifier", "bert-base"]
    shapes = (
        [(8, 16)] if quick else [(batch, length) for batch in (1, 8) for length in (16, 128, 512)]
    )
    rows, ratios = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = str(_exported(name, folder))
            for batch, length in shapes:
                request = {"name": name, "path": path, "batch": batch, "length": length}
                arms = {
                    way: ("helpers.tools.bench:engine", {"way": way, **request})
                    for way in ("eager", "sdpa", "onnx")
                }
                took = timing.compare(
                    arms,
                    rounds=6,
                    warmup=1,
                    threads=2,
                    isolate=True,
                    passes=1 if quick else 2,
                    items=batch,
                )
                expected, _, got = (numpy.array(value) for value in took.extra.values())
                if (difference := float(numpy.abs(expected - got).max())) > 1e-3:
                    raise RuntimeError(
                        f"{name}, {batch} x {length}: the engines differ by {difference:.1e}"
                    )
                median = took.table.set_index("arm")["median ms"]
                ratio = took.ratio("onnx", median.drop("onnx").idxmin())
                row = {"batch": f"{name}, {batch} x {length}"} | {
                    f"{way} ms": median[way] for way in median.index
                }
                row |= {"onnx / best torch": ratio.value, "low": ratio.low, "high": ratio.high}
                rows.append(row | {"difference": difference})
                ratios[f"onnx_over_torch_{name}_{batch}x{length}".replace("-", "_")] = round(
                    ratio.value, 3
                )
    return Part(
        pandas.DataFrame(rows).set_index("batch"),
        ratios | {"onnx_over_torch_worst": max(ratios.values())},
    )


INT8 = {  # options of quantize_onnx.onnx_dynamic
    "ONNX Runtime, int8": {},
    "ONNX Runtime, int8, products only": {"operators": ("MatMul", "Gemm")},
    "ONNX Runtime, int8, one scale a matrix": {"per_channel": False},
    "ONNX Runtime, int8, reduced range": {"reduced_range": True},
    "ONNX Runtime, uint8": {"weights": "uint8"},
}
ORDERS = 8  # of the test snippets, for accuracies
TORCH = (
    "PyTorch, float32",
    "PyTorch, bfloat16",
    "torch dynamic",
    "torchao, weights only",
    "torchao, activations too",
)


def quantized(way: str, path: str, texts: list[str], every: list[str]):
    """A set-up for `timing.compare`: the classifier in one number format; its extra: bytes, labels of `every` text.

    path: the ONNX file of those formats that are one. Of files the labels are given `ORDERS` times: int8 takes its
    ranges from whole batches, so in another order a text has other neighbours and may get another answer.
    """
    from helpers.lessons import sentiment
    from helpers.models import assets

    import torch

    if way in TORCH:
        model = sentiment.teacher()
        if way in TORCH[2:]:
            make = (
                quantize_torch.torch_dynamic
                if way == "torch dynamic"
                else quantize_torch.torchao_int8
            )
            report = make(model, **({"activations": True} if way == TORCH[-1] else {}))
            model, size = report.model, sum(report.after.values())
        else:
            model = model.to(torch.bfloat16) if way == "PyTorch, bfloat16" else model
            size = sum(parameter.nbytes for parameter in model.parameters())

        def call(texts):
            return sentiment.logits(model, texts)

    else:
        tokenizer, session, size = (
            assets.tokenizer("minilm"),
            onnx_inference.session(path, threads=2),
            Path(path).stat().st_size,
        )

        def call(texts):
            return onnx_inference.predict(session, tokenizer, texts)

    labels = []
    for number in range(1 if way in TORCH else ORDERS):
        order = random.Random(number).sample(range(len(every)), len(every))
        found = dict(
            zip(order, call([every[row] for row in order]).argmax(1).tolist(), strict=True)
        )
        labels.append([found[row] for row in range(len(every))])
    return call, (texts,), {"bytes": size, "labels": labels}


def quantization(quick: bool) -> Part:
    """The classifier in all number formats: speed on test snippets, bytes, and accuracy in pairs with float32.

    Points are means over `ORDERS` orders of the snippets, `worst` and `best` those of single orders. Two threads each.
    BERT-base is exported and quantized as well, for its bytes. A quick run takes two formats and 200 of the snippets,
    and no BERT-base.
    """
    from helpers.core import metrics, timing
    from helpers.lessons import sentiment
    from helpers.lessons.quantize_onnx import onnx_dynamic

    test = sentiment.sentences("test").sample(frac=1, random_state=0)
    test = test[:200] if quick else test
    exact, fast = "ONNX Runtime, float32", "ONNX Runtime, int8"
    names = [exact, fast] if quick else [exact, *INT8, *TORCH]
    texts = {"texts": test["text"].tolist()[: 64 if quick else 512], "every": test["text"].tolist()}
    length = len(texts["texts"])
    with tempfile.TemporaryDirectory() as folder:
        paths = {exact: _exported("classifier", folder)}
        for number, name in enumerate(way for way in names if way in INT8):
            paths[name] = onnx_dynamic(
                paths[exact], Path(folder) / f"{number}.onnx", **INT8[name]
            ).path
        arms = {}
        for name in names:
            arms[name] = (
                "helpers.tools.bench:quantized",
                {"way": name, "path": str(paths.get(name, "")), **texts},
            )
        took = timing.compare(
            arms, rounds=6, warmup=1, threads=2, isolate=True, passes=2, items=length
        )
        base = None if quick else _exported("bert-base", folder)
        base_ratio = base and onnx_dynamic(base, Path(folder) / "base8.onnx").ratio
    labels, rows, reference = test["label"].tolist(), [], took.extra[exact]["labels"][0]
    for name in names:
        extra, ratio = took.extra[name], took.ratio(exact, name)
        pairs = [metrics.paired(labels, reference, found) for found in extra["labels"]]
        points = pandas.DataFrame([(pair.difference, pair.low, pair.high) for pair in pairs]) * 100
        row = {
            "format": name,
            "MB": extra["bytes"] / 1e6,
            "times as fast": ratio.value,
            "low": ratio.low,
        }
        row |= {"high": ratio.high, "accuracy": str(metrics.accuracy(labels, extra["labels"][0]))}
        row |= dict(zip(("points", "from", "to"), points.mean(), strict=True))
        rows.append(row | {"worst": points[0].min(), "best": points[0].max()})
    table = pandas.DataFrame(rows).set_index("format")
    best = table.loc[fast]
    ratios = {"int8_over_float32": best["times as fast"], "int8_points": best["points"]}
    ratios["int8_bytes_over_float32"] = best["MB"] / table.loc[exact, "MB"]
    if not quick:
        ratios["int8_bytes_over_float32_bert_base"] = base_ratio
    return Part(table, {name: round(float(value), 4) for name, value in ratios.items()})


# The steps of notebook 08: what answers (a model, or a file made of one), and how the texts reach it.
PIPELINE = {
    "as pasted": ("bert-base", "padded"),
    "no padding": ("bert-base", "one by one"),
    "smaller model": ("teacher", "one by one"),
    "ONNX Runtime": ("teacher.onnx", "one by one"),
    "distilled": ("three-layers.onnx", "one by one"),
    "int8": ("three-layers.int8.onnx", "one by one"),
    "batches": ("three-layers.int8.onnx", "batches"),
    "a thread a batch": ("three-layers.int8.onnx", "workers"),
    "smallest student": ("two-layers.int8.onnx", "workers"),
}


def _pipeline_files(folder: str) -> None:
    """Write the files of `PIPELINE` into a folder: teacher and students, float32 and int8."""
    from helpers.lessons import quantize_onnx, sentiment

    narrow = not machine.has_int8_dot_product()
    for name in ("teacher", *sentiment.LAYERS):
        path = Path(folder) / f"{name}.onnx"
        processes.run_in_subprocess(sentiment.export, name, path)
        target = path.with_suffix(".int8.onnx")
        processes.run_in_subprocess(quantize_onnx.onnx_dynamic, path, target, reduced_range=narrow)


def pipeline_step(step: str, folder: str, texts: list[str], every: list[str]):
    """A set-up for `timing.compare`: one step of `PIPELINE`; its extra: MB, the first logits, the labels of `every`."""
    from helpers.lessons import sentiment
    from helpers.models import assets

    import numpy
    import torch
    from transformers import BertForSequenceClassification

    source, way = PIPELINE[step]
    tokenizer = assets.tokenizer("minilm")  # its vocabulary is BERT-base's
    options = {
        "padding": "max_length" if way == "padded" else False,
        "truncation": True,
        "max_length": 128,
    }
    if source.endswith(".onnx"):
        path = Path(folder) / source
        session, size = (
            onnx_inference.session(path, threads=1 if way == "workers" else 2),
            path.stat().st_size,
        )

        def logits(texts):
            if way == "one by one":
                return numpy.concatenate(
                    [onnx_inference.run(session, tokenizer([text], **options)) for text in texts]
                )
            return onnx_inference.predict(
                session, tokenizer, texts, max_tokens=512, workers=2 if way == "workers" else 1
            )

    else:
        model = (
            sentiment.teacher()
            if source == "teacher"
            else assets.model(source, BertForSequenceClassification)
        )
        size = sum(parameter.nbytes for parameter in model.parameters())

        @torch.inference_mode()
        def logits(texts):
            return numpy.concatenate(
                [model(**tokenizer(text, return_tensors="pt", **options))[0] for text in texts]
            )

    if way == "padded":  # would take minutes; the same model without padding answers for it
        labels = []
    else:  # one by one, BERT-base would take minutes, too; in batches it gives the same
        labels = (
            (sentiment.logits(model, every) if source == "bert-base" else logits(every))
            .argmax(1)
            .tolist()
        )
    return (
        logits,
        (texts,),
        {"MB": size / 1e6, "logits": logits(texts[:8]).tolist(), "labels": labels},
    )


def pipeline(quick: bool) -> Part:
    """From the code people paste to the best that these cores can do: every step's speed, and what it costs.

    Two threads each; accuracy on all test snippets, in pairs with the teacher. A quick run takes 16 snippets to time
    and 200 to answer.
    """
    from helpers.core import metrics, timing
    from helpers.lessons import sentiment

    import numpy

    test = sentiment.sentences("test").sample(frac=1, random_state=0)
    test = test[:200] if quick else test
    every, labels = test["text"].tolist(), test["label"].tolist()
    texts = every[:16] if quick else every[:256]
    with tempfile.TemporaryDirectory() as folder:
        _pipeline_files(folder)
        request = {"folder": folder, "texts": texts, "every": every}
        arms = {
            step: ("helpers.tools.bench:pipeline_step", {"step": step, **request})
            for step in PIPELINE
        }
        took = timing.compare(arms, rounds=6, warmup=1, threads=2, isolate=True, items=len(texts))
    extra = took.extra
    if not numpy.allclose(extra["as pasted"]["logits"], extra["no padding"]["logits"], atol=1e-4):
        raise RuntimeError("padding changes the answers of BERT-base")
    extra["as pasted"]["labels"] = extra["no padding"]["labels"]
    rows, before = [], "as pasted"
    for step in PIPELINE:
        answers, ratio = extra[step]["labels"], took.ratio("as pasted", step)
        score, pair = (
            metrics.accuracy(labels, answers),
            metrics.paired(labels, extra["smaller model"]["labels"], answers),
        )
        row = {
            "step": step,
            "texts/s": len(texts) / numpy.median(took.seconds[step]),
            "times as pasted": ratio.value,
        }
        row |= {
            "low": ratio.low,
            "high": ratio.high,
            "times before": took.ratio(before, step).value,
        }
        row |= {
            "MB": extra[step]["MB"],
            "accuracy": score.value,
            "from": score.low,
            "to": score.high,
        }
        row |= {
            "points": 100 * pair.difference,
            "points from": 100 * pair.low,
            "points to": 100 * pair.high,
        }
        rows.append(row)
        before = step
    table = pandas.DataFrame(rows).set_index("step")
    ratios = {}
    for name, step in (("final", "a thread a batch"), ("smallest", "smallest student")):
        ratios[f"{name}_over_pasted"] = table.loc[step, "times as pasted"]
        ratios[f"{name}_share_of_accuracy"] = (
            table.loc[step, "accuracy"] / table.loc["smaller model", "accuracy"]
        )
    return Part(table, {name: round(float(value), 4) for name, value in ratios.items()})


PARTS: dict[str, Callable[[bool], Part]] = {
    "notebooks": notebooks,
    "memory": memory,
    "checkpoints": checkpoints,
    "embedding": embedding,
    "engines": engines,
    "quantization": quantization,
    "pipeline": pipeline,
}


def load(target: Path = RECORDED) -> dict:
    """A report that `main` wrote; without a path, the one in this package, of whole runs of all parts.

    Raises ValueError if the file is none of these reports.
    """
    try:
        report = json.loads(target.read_text(encoding="utf-8"))
        for part in report["parts"].values():
            part["rows"], part["ratios"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{target} is no report of this benchmark: choose another name, or remove it"
        ) from None
    return report


def main(quick: bool, only: list[str] | None, target: Path | None) -> int:
    """Run the chosen parts in turn, print their tables, and write everything to target (JSON) if one is given.

    A report has `parts`: each with its date, machine, whether it was quick, the table's rows and its ratios. It is
    written anew after every part, so a part that fails or is interrupted costs only itself, and parts that are in the
    file and not in this run stay there. Raises ValueError as `load`.
    """
    report = load(target) if target and target.exists() else {"parts": {}}
    print(machine.describe_machine(), flush=True)
    for name in only or PARTS:
        part = PARTS[name](quick)
        print(f"\n{name}\n{part.table.round(3).to_string()}", flush=True)
        print("\n".join(f"{name:35} {value:g}" for name, value in part.ratios.items()), flush=True)
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        rows = json.loads(part.table.reset_index().to_json(orient="records"))
        report["parts"][name] = {
            "date": date,
            "machine": machine.describe_machine(),
            "quick": quick,
            "rows": rows,
        }
        report["parts"][name]["ratios"] = part.ratios
        if target:
            write(target, report)
    return 0


def write(target: Path, report: dict) -> None:
    """Write a report as JSON, whole or not at all."""
    with files.atomic_write(target) as part:
        part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
