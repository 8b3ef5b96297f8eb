"""embedding: the vectors of the plain loop, whatever the batches, lengths, processes and kills."""

import contextlib
import copy
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers.lessons import embedding, students
from helpers.lessons.embedding import EmbeddingReport, check_casing, embed, stream
from helpers.models import datasets
from helpers.models.download import Provenance
from helpers.tools import embed_corpus
from helpers.tools.embed_corpus import collect, embed_shards

import numpy as np
import pandas as pd
import peft
import pytest
import safetensors
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{number}" for number in range(80)]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
TINY = BertConfig(**SIZES, vocab_size=100, max_position_embeddings=64)


def save_vocabulary(folder: Path, words: list[str]) -> Path:
    """A folder as SciBERT's repository was: a vocabulary and a config, no tokenizer settings."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *words]), encoding="utf-8")
    TINY.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(
        save_vocabulary(tmp_path_factory.mktemp("vocabulary"), WORDS)
    )


@pytest.fixture
def model():
    torch.manual_seed(0)
    return BertModel(TINY).eval()


def texts_of(count: int, longest: int = 40, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(count)]


def one_at_a_time(texts, model, tokenizer, **options) -> np.ndarray:
    rows = []
    with torch.inference_mode():
        for text in texts:
            inputs = tokenizer(text, return_tensors="pt", **options)
            hidden, mask = model(**inputs).last_hidden_state[0], inputs["attention_mask"][0]
            rows.append(hidden[mask == 1].mean(0))
    return torch.stack(rows).numpy()


# The vectors


def test_case_81_same_vectors_as_padding_to_the_limit_in_the_given_order(model, tokenizer):
    texts = ["", *texts_of(50), "w1"]
    done = embed(texts, model, tokenizer, max_tokens=200, precision="float32")
    np.testing.assert_allclose(done.vectors, one_at_a_time(texts, model, tokenizer), atol=1e-5)
    padded = one_at_a_time(texts, model, tokenizer, padding="max_length", max_length=64)
    np.testing.assert_allclose(done.vectors, padded, atol=1e-5)
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]
    assert done.report.tokens == sum(lengths)
    assert done.report.padding < 0.15 * sum(lengths) < 64 * len(texts) - sum(lengths)
    assert done.vectors.dtype == np.float32
    assert done.vectors.shape == (52, 32)


def test_chunks_do_not_change_the_vectors(model, tokenizer, monkeypatch):
    texts = texts_of(53)
    whole = embed(texts, model, tokenizer, precision="float32").vectors
    monkeypatch.setattr(embedding, "CHUNK", 10)
    report = EmbeddingReport()
    parts = list(
        stream((text for text in texts), model, tokenizer, report=report, precision="float32")
    )
    assert [len(part) for part in parts] == [10, 10, 10, 10, 10, 3]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-5)
    assert report.texts == 53


def test_only_two_chunks_are_read_ahead(model, tokenizer, monkeypatch):
    """Results come as they are made: a corpus is never read whole."""
    monkeypatch.setattr(embedding, "CHUNK", 5)
    taken = []
    texts = (taken.append(text) or text for text in texts_of(100))
    next(stream(texts, model, tokenizer))
    assert len(taken) == 10


def test_no_texts(model, tokenizer):
    assert embed([], model, tokenizer).vectors.shape == (0, 32)


@pytest.mark.parametrize("long", ["truncate", "window"])
def test_texts_beyond_the_limit(model, tokenizer, long):
    counts = [3, 62, 63, 125, 200]  # the limit is 64 with [CLS] and [SEP]
    texts = [" ".join(random.Random(n).choices(WORDS, k=n)) for n in counts]
    done = embed(texts, model, tokenizer, long=long, precision="float32")
    report = done.report
    if long == "truncate":
        assert (report.cut_texts, report.cut_tokens, report.windowed_texts) == (3, 1 + 63 + 138, 0)
        wanted = one_at_a_time(texts, model, tokenizer, truncation=True, max_length=64)
    else:
        assert (report.cut_texts, report.cut_tokens, report.windowed_texts) == (0, 0, 3)
        sizes = [[3], [62], [32, 31], [42, 42, 41], [50] * 4]
        wanted = []
        for text, parts in zip(texts, sizes, strict=True):
            words, vectors = text.split(), []
            for size in parts:
                vectors += [
                    one_at_a_time([" ".join(words[:size])], model, tokenizer)[0] * (size + 2)
                ]
                words = words[size:]
            wanted.append(sum(vectors) / sum(size + 2 for size in parts))
    np.testing.assert_allclose(done.vectors, wanted, atol=1e-5)


def test_a_lower_limit(model, tokenizer):
    done = embed(["w1 w2 w3 w4"], model, tokenizer, max_length=4, precision="float32")
    np.testing.assert_allclose(done.vectors, one_at_a_time(["w1 w2"], model, tokenizer), atol=1e-5)
    assert str(done.report).endswith("2 tokens of 1 texts cut off, 0 texts windowed")


def test_the_model_is_left_as_it_was(tokenizer):
    """Dropout is off inside, and each module's own mode is as before.

    A frozen body stays in eval mode.
    """
    model = BertForSequenceClassification(TINY).train()
    model.bert.encoder.layer[0].eval()
    modes = [module.training for module in model.modules()]
    texts = texts_of(5)
    first, second = (embed(texts, model, tokenizer, precision="float32").vectors for _ in range(2))
    assert np.array_equal(first, second)
    assert [module.training for module in model.modules()] == modes
    np.testing.assert_allclose(
        first, embed(texts, model.bert, tokenizer, precision="float32").vectors, atol=1e-6
    )  # no head
    with pytest.raises(TypeError):
        embed(["w1", None], model, tokenizer)
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()


def test_no_graph_and_no_inference_mode_outside(model, tokenizer):
    for _ in stream(texts_of(3), model, tokenizer):
        assert not torch.is_inference_mode_enabled()
        assert model.embeddings.word_embeddings.weight.requires_grad


def test_case_84_the_first_call_names_the_device(model, tokenizer, capsys, monkeypatch):
    embed(["w1"], model, tokenizer, precision="float32")
    embed(["w1"], model, tokenizer, precision="float32")
    assert capsys.readouterr().out == "BertModel embeds on cpu in float32\n"
    monkeypatch.setattr(embedding.machine, "devices", lambda: ["cuda:0", "cpu"])
    embed(["w1"], BertModel(TINY), tokenizer)
    assert "cpu" in (said := capsys.readouterr().out)
    assert "while cuda:0 stands idle: model.to('cuda:0') would use it" in said


def test_case_01_the_device_is_the_models(model, tokenizer, monkeypatch):
    """Never a global default.

    A model on the CPU computes there although a better device is named first.
    """
    monkeypatch.setattr(embedding.machine, "devices", lambda: ["meta", "cpu"])
    assert embed(["w1"], model, tokenizer).report.device == "cpu"
    with pytest.raises(ValueError, match="holds no numbers"):
        embed(["w1"], BertModel(TINY).to("meta"), tokenizer)


def test_sixteen_bit(model, tokenizer, monkeypatch):
    texts, before = texts_of(20), copy.deepcopy(model.state_dict())
    exact, half = (
        embed(texts, model, tokenizer, precision=kind).vectors for kind in ("float32", "bfloat16")
    )
    assert 1e-5 < np.abs(exact - half).max() < 0.1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.embeddings.word_embeddings.weight.requires_grad
    for units, wanted in {
        ("avx2",): exact,
        ("amx_bf16",): half,
        ("avx2", "avx512_bf16"): half,
    }.items():
        monkeypatch.setattr(
            embedding.machine, "cpu_features", lambda units=units: dict.fromkeys(units, True)
        )
        assert np.array_equal(embed(texts, model, tokenizer).vectors, wanted)
    for capability, dtype in {
        (6, 1): torch.float32,
        (7, 5): torch.float16,
        (9, 0): torch.bfloat16,
    }.items():
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda device, capability=capability: capability
        )
        assert embedding.choose_dtype(torch.device("cuda")) == dtype
    already = embed(texts, copy.deepcopy(model).bfloat16(), tokenizer)
    assert already.report.dtype == "bfloat16"


@pytest.mark.filterwarnings(
    "ignore:torch.ao.quantization:DeprecationWarning", "ignore:torch.quantize_per:UserWarning"
)
@pytest.mark.parametrize("kind", ["LoRA", "compiled", "compiled with head", "quantised"])
def test_models_in_wrappers(kind, model, tokenizer, monkeypatch):
    """Their own vectors, whatever units the CPU has, and never the answers of a head."""
    monkeypatch.setattr(
        embedding.machine, "cpu_features", lambda: {"avx512_bf16": kind == "quantised"}
    )
    texts, whole = texts_of(5), BertForSequenceClassification(TINY).eval()
    body = whole.bert
    if kind == "LoRA":
        settings = peft.LoraConfig(
            task_type="SEQ_CLS", r=2, target_modules="all-linear", init_lora_weights=False
        )
        plain = one_at_a_time(texts, body, tokenizer)
        whole = peft.get_peft_model(whole, settings).eval()
        assert (
            np.abs(plain - one_at_a_time(texts, body, tokenizer)).max() > 1e-3
        )  # the adapter is in it
    elif kind == "quantised":
        whole = torch.ao.quantization.quantize_dynamic(body, {torch.nn.Linear})
    else:
        whole = torch.compile(whole if "head" in kind else body, backend="eager")
    wanted = one_at_a_time(texts, whole if kind == "quantised" else body, tokenizer)
    atol = 0.05 if kind == "quantised" else 1e-5  # each batch has its own range of int8
    np.testing.assert_allclose(embed(texts, whole, tokenizer).vectors, wanted, atol=atol)


def test_case_01_a_default_device_plays_no_part(model, tokenizer):
    texts = texts_of(5)
    wanted = embed(texts, model, tokenizer).vectors
    with torch.device("meta"):
        assert np.array_equal(embed(texts, model, tokenizer).vectors, wanted)


def test_a_tokenizer_without_padding(model, tokenizer):
    bare, texts = copy.deepcopy(tokenizer), ["w1", "w1 w2 w3"]
    bare.pad_token = None
    assert np.array_equal(embed(texts, model, bare).vectors, embed(texts, model, tokenizer).vectors)


@pytest.mark.parametrize(
    ("texts", "options", "error", "message"),
    [
        (pd.DataFrame({"text": ["w1"]}), {}, TypeError, "type DataFrame: give a list"),
        ({"a": "w1"}, {}, TypeError, "type dict: give a list"),
        (["w1", "w2 \ud83d"], {}, ValueError, "text 1 holds half a character"),
        (["w1"], {"max_tokens": 0}, ValueError, "max_tokens must be at least 1"),
        (["w1"], {"max_length": 0}, ValueError, "max_length 3 to 64"),
        ("one text", {}, TypeError, "give a list"),
        (["w1", float("nan")], {}, TypeError, "text 1 is no text but nan"),
        (["w1", None], {}, TypeError, "text 1 is no text but None"),
        (["w1"], {"long": "cut"}, ValueError, "long has to be"),
        (["w1"], {"max_length": 65}, ValueError, "max_length 3 to 64"),
        (["w1"], {"max_length": 2}, ValueError, "max_length 3 to 64"),
        (["w1"], {"precision": "int8"}, ValueError, "precision has to be"),
        (["w1"], {"max_tokens": -1}, ValueError, "max_tokens must be at least 1"),
    ],
)
def test_wrong_input_is_named(texts, options, error, message, model, tokenizer):
    with pytest.raises(error, match=message):
        embed(texts, model, tokenizer, **options)


def test_the_tokenizer_of_another_model(tokenizer):
    small = BertModel(BertConfig(**SIZES, vocab_size=40, max_position_embeddings=64))
    with pytest.raises(ValueError, match="load both under one name"):
        embed(["w1"], small, tokenizer)


def test_a_model_that_computes_its_first_token_only(tokenizer):
    """Its one hidden state would pass for the mean of all."""
    short = students.read_first_token(BertForSequenceClassification(TINY).eval())
    with pytest.raises(
        ValueError, match=r"hidden states of \(1, 1\) and a mask of \(1, 3\).*read_first_token"
    ):
        embed(["w1"], short, tokenizer)


# Casing


MIXED = ["Hello", "hello", "World", "world", "DNA", "the", "##s"]
LOWER = ["hello", "world", "dna", "the", "##s"]


@pytest.mark.parametrize(
    ("words", "kind"), [(MIXED, "cased"), (["Zürich", "zürich", "a"], "cased"), (LOWER, "uncased")]
)
def test_case_79_a_vocabulary_without_tokenizer_settings(words, kind, tmp_path):
    folder = save_vocabulary(tmp_path, words)
    right, wrong = (
        AutoTokenizer.from_pretrained(folder, do_lower_case=low)
        for low in (kind == "uncased", kind == "cased")
    )
    assert check_casing(right) == kind
    with pytest.raises(ValueError, match=f"do_lower_case={kind == 'uncased'}"):
        check_casing(wrong)
    default = AutoTokenizer.from_pretrained(folder)  # which lower-cases
    if kind == "cased":
        with pytest.raises(ValueError, match="do_lower_case=False"):
            check_casing(default)
    else:
        assert check_casing(default) == "uncased"


@pytest.mark.parametrize(
    "words", [["hello", "dna"], [*LOWER, *WORDS, "w80", *"abcdefghijklmno", "\u212b"]]
)
def test_case_79_added_tokens_and_stray_symbols_make_no_cased_vocabulary(words, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(save_vocabulary(tmp_path, words))
    tokenizer.add_tokens(["[ENTITY]", "DNA"])
    assert check_casing(tokenizer) == "uncased"


def test_case_79_a_vocabulary_without_hello(tmp_path):
    folder = save_vocabulary(tmp_path, ["oxygen", "iron"])
    assert check_casing(AutoTokenizer.from_pretrained(folder)) == "uncased"
    with pytest.raises(ValueError, match="'Oxygen' becomes"):
        check_casing(AutoTokenizer.from_pretrained(folder, do_lower_case=False))


def test_a_folder_without_a_vocabulary_is_refused(tmp_path, model):
    """transformers makes a tokenizer of special tokens for it, to which every word is unknown."""
    model.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert set(tokenizer.tokenize("hello world")) == {"[UNK]"}
    for call in (lambda: check_casing(tokenizer), lambda: embed(["hello"], model, tokenizer)):
        with pytest.raises(ValueError, match=r"holds no words.*tokenizer.save_pretrained"):
            call()


# Sentences


def test_the_sentences():
    table = datasets.science_sentences()
    assert list(table) == ["id", "field", "role", "text"]
    assert list(table["id"]) == list(range(1, 301))
    assert table["text"].str.lower().is_unique
    assert set(table["field"].value_counts()) == {50}
    assert set(table["role"]) == {"background", "method", "result"}
    assert table["role"].value_counts().between(95, 105).all()
    assert table.groupby(["field", "role"]).size().between(16, 17).all()


# Shards and processes


@pytest.fixture(scope="module")
def job(tmp_path_factory, tokenizer):
    """A saved model, a folder of six shards of texts, and its vectors as one process makes them."""
    folder = tmp_path_factory.mktemp("job")
    torch.manual_seed(0)
    BertModel(TINY).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    texts = texts_of(180, longest=70, seed=1)
    (folder / "texts").mkdir()
    for number in range(6):
        lines = [json.dumps({"text": text}) for text in texts[30 * number : 30 * number + 30]]
        (folder / "texts" / f"shard-{number}.jsonl").write_text(
            "\n".join(lines) + "\n", encoding="utf-8"
        )
    model = BertModel.from_pretrained(folder / "model").eval()
    threads = torch.get_num_threads()
    made = embed_shards(
        folder / "texts", folder / "alone", model, tokenizer, long="window", threads=threads + 1
    )
    assert torch.get_num_threads() == threads
    assert len(made) == 6
    for path in made:
        path.unlink()
    assert (
        len(embed_shards(folder / "texts", folder / "alone", model, tokenizer, long="window")) == 6
    )
    return folder, model, texts


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_shards_hold_the_vectors_in_order(job, tokenizer):
    folder, model, texts = job
    done = collect(folder / "texts", folder / "alone")
    direct = embed(texts, model, tokenizer, long="window")
    # Other batches and threads round otherwise: a bfloat16 has 8 bits.
    np.testing.assert_allclose(
        done.vectors, direct.vectors, atol=1e-5 if direct.report.dtype == "float32" else 0.1
    )
    assert done.report.texts == 180
    assert done.report.windowed_texts == direct.report.windowed_texts > 0


def test_a_restart_does_only_what_is_missing(job, tokenizer, tmp_path):
    folder, model, _ = job
    (tmp_path / "vectors").mkdir()
    whole = contents(folder / "alone")
    for name in list(whole)[:3]:
        (tmp_path / "vectors" / name).write_bytes(whole[name])
    cut = tmp_path / "vectors" / list(whole)[2]
    cut.write_bytes(cut.read_bytes()[:-100])  # as a disk that was full leaves it
    with pytest.raises(ValueError, match="4 of 6 shards are missing, first shard-2"):
        collect(folder / "texts", tmp_path / "vectors")
    made = embed_shards(folder / "texts", tmp_path / "vectors", model, tokenizer, long="window")
    assert [path.stem for path in made] == ["shard-2", "shard-3", "shard-4", "shard-5"]
    assert contents(tmp_path / "vectors") == whole


def test_another_job_in_the_same_folder_is_refused(job, tokenizer):
    folder, model, _ = job
    with pytest.raises(ValueError, match=r"is of another job \(options\)"):
        embed_shards(folder / "texts", folder / "alone", model, tokenizer)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.embeddings.word_embeddings.weight[7, 7] += 1e-3
    with pytest.raises(ValueError, match=r"is of another job \(model\)"):
        embed_shards(folder / "texts", folder / "alone", other, tokenizer, long="window")
    other = BertModel(BertConfig.from_dict(TINY.to_dict() | {"layer_norm_eps": 0.1})).eval()
    other.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match=r"is of another job \(model\)"):
        embed_shards(folder / "texts", folder / "alone", other, tokenizer, long="window")
    with pytest.raises(ValueError, match=r"holds no \.jsonl files"):
        embed_shards(folder / "model", folder / "alone", model, tokenizer)


def test_line_breaks_inside_a_text_stay_inside(model, tokenizer, tmp_path):
    texts = ["w1\u2028w2", "w3\x85w4", "w5\nw6", "w7\r\nw8"]
    (tmp_path / "texts").mkdir()
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (tmp_path / "texts" / "a.jsonl").write_bytes("\r\n".join(lines).encode())
    embed_shards(tmp_path / "texts", tmp_path / "vectors", model, tokenizer, precision="float32")
    found = collect(tmp_path / "texts", tmp_path / "vectors").vectors
    np.testing.assert_allclose(
        found, embed(texts, model, tokenizer, precision="float32").vectors, atol=1e-6
    )


@pytest.mark.parametrize(
    "line",
    [
        b'{"text":',
        b'{"abstract": "w1"}',
        b'["w1"]',
        b'{"text": null}',
        b'{"text": "\xe9"}',
        b'{"text": "\\ud83d"}',
    ],
)
def test_a_line_without_a_text_is_named(line, model, tokenizer, tmp_path):
    good = tmp_path / "texts" / "a.jsonl"
    good.parent.mkdir()
    good.write_text('{"text": "w1"}\n', encoding="utf-8-sig")  # as some editors save it
    (tmp_path / "texts" / "b.jsonl").write_bytes(b'{"text": "w1"}\n\n' + line)
    with pytest.raises(ValueError, match=r"line 3 of .*b\.jsonl is no"):
        embed_shards(tmp_path / "texts", tmp_path / "vectors", model, tokenizer)
    assert [path.name for path in (tmp_path / "vectors").iterdir()] == [
        "a.safetensors"
    ]  # what is done is kept


def test_texts_that_changed_after_their_vectors_were_made(model, tokenizer, tmp_path):
    texts = tmp_path / "texts" / "a.jsonl"
    texts.parent.mkdir()
    texts.write_text('{"text": "w1"}\n')
    embed_shards(tmp_path / "texts", tmp_path / "vectors", model, tokenizer)
    texts.write_text('{"text": "w2"}\n')
    with pytest.raises(ValueError, match="was changed after"):
        collect(tmp_path / "texts", tmp_path / "vectors")


def test_a_file_of_something_else_is_not_written_over(model, tokenizer, tmp_path):
    """A model's own weights, say, with a file of texts that has the same name."""
    model.save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.jsonl").write_text('{"text": "w1"}\n')
    with pytest.raises(ValueError, match="not written over"):
        embed_shards(tmp_path, tmp_path, model, tokenizer)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def launch(folder: Path, target: Path) -> subprocess.Popen:
    """The real command for two processes."""
    command = "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
    command = [
        sys.executable,
        *f"{command} --dynamo_backend no --main_process_port 0 -m helpers.tools.embed_corpus".split(),
    ]
    command += [
        str(folder / "texts"),
        str(target),
        "--model",
        str(folder / "model"),
        "--long",
        "window",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment, start_new_session=True, **pipe)


@pytest.mark.skipif(sys.platform == "win32", reason="torch's launcher needs libuv's store there")
def test_two_processes_one_killed_and_started_again(job, tmp_path):
    """Two processes.

    One is killed in the middle; started again, they make the bytes that one process makes.
    """
    import psutil

    folder, _, _ = job
    target = tmp_path / "vectors"
    target.mkdir()
    # The second process works on this shard first: a pipe instead of a file holds it up there until
    # it is killed.
    stuck = target / "shard-1.safetensors.part"
    os.mkfifo(stuck)
    first = launch(folder, target)
    try:
        end = time.monotonic() + 60
        while len(list(target.glob("*.safetensors"))) < 3 and time.monotonic() < end:
            time.sleep(0.1)
        workers = psutil.Process(first.pid).children(recursive=True)
        (second,) = [worker for worker in workers if worker.environ().get("RANK") == "1"]
        second.kill()
        output, _ = first.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
    assert first.returncode != 0, output
    stuck.unlink()
    assert {path.stem for path in target.glob("*.safetensors")} == {"shard-0", "shard-2", "shard-4"}
    again = launch(folder, target)
    output, _ = again.communicate(timeout=60)
    assert again.returncode == 0, output
    assert "process 0 of 2 made 2 shards" in output
    assert "process 1 of 2 made 1 shards" in output
    assert f"180 texts on cpu in {str(embedding.choose_dtype(torch.device('cpu')))[6:]}" in output
    assert contents(target) == contents(folder / "alone")


def test_the_command_alone(job, tmp_path, capsys):
    folder, _, _ = job
    arguments = [
        str(folder / "texts"),
        str(tmp_path / "vectors"),
        "--model",
        str(folder / "model"),
        "--long",
        "window",
    ]
    assert embed_corpus.main(arguments) == 0
    assert "process 0 of 1 made 6 shards" in capsys.readouterr().out
    assert contents(tmp_path / "vectors") == contents(folder / "alone")
    with safetensors.safe_open(tmp_path / "vectors" / "shard-0.safetensors", "numpy") as file:
        assert file.get_tensor("vectors").shape == (30, 32)


def test_the_command_names_a_stand_in(job, tokenizer, tmp_path, capsys, monkeypatch):
    """Random weights give vectors that mean nothing: whoever waits for hours has to know."""
    folder, model, _ = job
    named = copy.deepcopy(model)
    named.provenance = Provenance("scibert", "stand-in", "random weights")
    monkeypatch.setattr(embed_corpus.assets, "model", lambda name: named)
    monkeypatch.setattr(embed_corpus.assets, "tokenizer", lambda name: tokenizer)
    assert embed_corpus.main([str(folder / "texts"), str(tmp_path / "vectors")]) == 0
    assert "SciBERT: stand-in (random weights)" in capsys.readouterr().out


def test_case_79_the_command_checks_the_casing(job, tmp_path):
    folder, model, _ = job
    cased = save_vocabulary(tmp_path / "cased", MIXED)
    model.save_pretrained(cased)
    with pytest.raises(ValueError, match="do_lower_case=False"):
        embed_corpus.main([str(folder / "texts"), str(tmp_path / "vectors"), "--model", str(cased)])
