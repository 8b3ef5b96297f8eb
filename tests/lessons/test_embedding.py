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

from helpers.core import files, machine
from helpers.lessons import students
from helpers.recipes import embed_corpus
from helpers.recipes.embed_corpus import embed_sorted

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import torch
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel

WORDS = [f"w{number}" for number in range(80)]


@pytest.fixture(scope="module")
def check_casing():
    """The function as notebook 07 shows it."""
    path = files.ROOT / "notebooks" / "07_scibert_on_gpus.ipynb"
    cells = ["".join(cell["source"]) for cell in json.loads(path.read_text("utf-8"))["cells"]]
    scope = {}
    exec(next(source for source in cells if source.startswith("def check_casing")), scope)
    return scope["check_casing"]


@pytest.fixture(scope="module")
def vocabulary(tiny_config):
    """A folder as SciBERT's repository was: a vocabulary and a config, no tokenizer settings."""

    def save(folder, words):
        folder.mkdir(parents=True, exist_ok=True)
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        (folder / "vocab.txt").write_text("\n".join([*special, *words]), encoding="utf-8")
        tiny_config().save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
    return tiny_tokenizer(*WORDS)


@pytest.fixture
def model(tiny_model):
    return tiny_model(BertModel)


def texts_of(count, longest=40, seed=0):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(count)]


def one_at_a_time(texts, model, tokenizer, **options):
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
    done = embed_sorted(texts, model.train(), tokenizer, max_tokens=200)  # without dropout
    np.testing.assert_allclose(done, one_at_a_time(texts, model, tokenizer), atol=1e-5)
    padded = one_at_a_time(texts, model, tokenizer, padding="max_length", max_length=64)
    np.testing.assert_allclose(done, padded, atol=1e-5)
    assert (done.dtype, done.shape) == (torch.float32, (52, 32))


def test_texts_beyond_the_limit_are_cut(model, tokenizer):
    counts = [3, 62, 63, 125, 200]  # the limit is 64 with [CLS] and [SEP]
    texts = [" ".join(random.Random(n).choices(WORDS, k=n)) for n in counts]
    wanted = one_at_a_time(texts, model, tokenizer, truncation=True, max_length=64)
    done = embed_sorted(texts, model, tokenizer, limit=64)
    np.testing.assert_allclose(done, wanted, atol=1e-5)


def test_case_84_the_command_says_where_it_computed(job, capsys):
    folder, _ = job
    embed_corpus.main([str(folder / name) for name in ("texts", "model", "alone")])
    assert capsys.readouterr().out == "process 0 of 1 on cpu made 0 files\n"


@pytest.mark.parametrize("units", [["avx2"], ["amx_bf16"], ["avx2", "arm_bf16"]])
def test_a_cpus_dtype_is_the_one_it_has_units_for(units, monkeypatch):
    monkeypatch.setattr(machine, "cpu_features", lambda: dict.fromkeys(units, True))
    dtype = torch.float32 if units == ["avx2"] else torch.bfloat16
    assert machine.choose_dtype(torch.device("cpu")) == dtype


@pytest.mark.parametrize(
    ("generation", "dtype"), [(6, "float32"), (7, "float16"), (8, "bfloat16"), (9, "bfloat16")]
)
def test_a_gpus_dtype_is_the_one_it_has_units_for(generation, dtype, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (generation, 0))
    assert machine.choose_dtype(torch.device("cuda")) == getattr(torch, dtype)


@pytest.mark.parametrize(
    "texts", [pd.DataFrame({"text": ["w1"]}), {"a": "w1"}, "one text", ["w1", float("nan")]]
)
def test_what_is_no_list_of_texts_is_refused(texts, model, tokenizer):
    """And not read as a list of column names, or of letters."""
    with pytest.raises((TypeError, ValueError)):
        embed_sorted(texts, model, tokenizer)


def test_the_first_token_does_not_pass_for_the_mean_of_all(tiny_model, tokenizer):
    short = students.read_first_token(tiny_model(BertForSequenceClassification)).bert
    with pytest.raises(ValueError, match="first token only"):
        embed_sorted(["w1"], short, tokenizer)


# Casing


LOWER = ["hello", "world", "dna", "the", "##s"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["Hello", "hello", "World", "world", "DNA", "the", "##s"], "cased"),
        (["Zürich", "zürich", "a"], "cased"),
        (LOWER, "uncased"),
        (["hello", "dna"], "uncased"),
        (["oxygen", "iron"], "uncased"),  # no hello
        ([*LOWER, *WORDS, "w80", *"abcdefghijklmno", "\u212b"], "uncased"),  # a stray symbol
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
@pytest.mark.parametrize("lower", [True, False, None])
def test_case_79_a_vocabulary_without_tokenizer_settings(
    words, kind, lower, vocabulary, tmp_path, check_casing
):
    """By default it is lower-cased, whatever its words are; added tokens count for nothing."""
    options = {} if lower is None else {"do_lower_case": lower}
    tokenizer = AutoTokenizer.from_pretrained(vocabulary(tmp_path, words), **options)
    tokenizer.add_tokens(["[ENTITY]", "XYZ"])
    if (lower is False) == (kind == "cased"):
        assert check_casing(tokenizer) == kind
    else:
        with pytest.raises(ValueError, match=f"do_lower_case={kind == 'uncased'}"):
            check_casing(tokenizer)


def test_a_folder_without_a_vocabulary_is_refused(tmp_path, model):
    """transformers makes a tokenizer of special tokens for it, to which every word is unknown."""
    model.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert set(tokenizer.tokenize("hello world")) == {"[UNK]"}
    (tmp_path / "a.txt").write_text("hello\n")
    with pytest.raises(ValueError, match="holds no vocabulary"):
        embed_corpus.main([str(tmp_path / "a.txt"), str(tmp_path), str(tmp_path / "vectors")])


def test_a_folder_that_does_not_name_its_family_takes_it_from_an_option(
    tmp_path, model, vocabulary
):
    """SciBERT's repository: a vocabulary, weights, and a config without model_type."""
    model.save_pretrained(tmp_path)
    vocabulary(tmp_path, WORDS)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "a.txt").write_text("w1 w2\n")
    command = [str(tmp_path / "a.txt"), str(tmp_path), str(tmp_path / "vectors")]
    with pytest.raises(ValueError, match="model_type"):
        embed_corpus.main(command)
    embed_corpus.main([*command, "--family", "Bert"])
    assert safetensors.numpy.load_file(tmp_path / "vectors" / "a.safetensors")["vectors"].any()


# Files and processes


@pytest.fixture(scope="module")
def job(tmp_path_factory, tiny_model, tokenizer):
    """A saved model, six files of texts, and their vectors as one process makes them."""
    folder = tmp_path_factory.mktemp("job")
    tiny_model(BertModel).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    texts = texts_of(180, longest=60, seed=1)
    (folder / "texts").mkdir()
    for number in range(6):
        lines = [json.dumps({"text": text}) for text in texts[30 * number : 30 * number + 30]]
        (folder / "texts" / f"part-{number}.jsonl").write_text("\n".join(lines) + "\n")
    threads = torch.get_num_threads()
    embed_corpus.main([str(folder / name) for name in ("texts", "model", "alone")])
    torch.set_num_threads(threads)
    return folder, texts


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def vectors_in(folder):
    return np.concatenate(
        [safetensors.numpy.load(data)["vectors"] for data in contents(folder).values()]
    )


def test_the_files_hold_the_vectors_in_order(job, model, tokenizer):
    folder, texts = job
    assert len(contents(folder / "alone")) == 6
    wanted = embed_sorted(texts, model, tokenizer)
    np.testing.assert_allclose(vectors_in(folder / "alone"), wanted, atol=1e-5)


def test_another_model_or_text_in_the_same_folder_is_refused(tiny_model, tokenizer, tmp_path):
    model = tiny_model(BertModel)
    (tmp_path / "a.txt").write_text("w1\nw2\n")
    embed_corpus.embed_folder(tmp_path / "a.txt", tmp_path / "v", model, tokenizer)
    before = contents(tmp_path / "v")
    touched = copy.deepcopy(model)
    with torch.no_grad():
        touched.embeddings.word_embeddings.weight[7, 7] += 1e-3
    other = tiny_model(BertModel, layer_norm_eps=0.1)
    other.load_state_dict(model.state_dict())
    cased = copy.deepcopy(tokenizer)
    cased.backend_tokenizer.normalizer.lowercase = False
    for one, its in ((touched, tokenizer), (other, tokenizer), (model, cased)):
        with pytest.raises(ValueError, match="another model or text"):
            embed_corpus.embed_folder(tmp_path / "a.txt", tmp_path / "v", one, its)
    assert embed_corpus.embed_folder(tmp_path / "a.txt", tmp_path / "v", model, tokenizer) == []
    (tmp_path / "a.txt").write_text("w1\nw3\n")
    with pytest.raises(ValueError, match="another model or text"):
        embed_corpus.embed_folder(tmp_path / "a.txt", tmp_path / "v", model, tokenizer)
    assert contents(tmp_path / "v") == before


def test_a_file_of_something_else_is_not_written_over(model, tokenizer, tmp_path):
    """A model's own weights, say, with a file of texts that has the same name."""
    model.save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.jsonl").write_text('{"text": "w1"}\n')
    with pytest.raises(ValueError, match="choose another folder"):
        embed_corpus.embed_folder(tmp_path, tmp_path, model, tokenizer)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_line_breaks_inside_a_text_stay_inside(tmp_path):
    texts = ["w1\u2028w2", "w3\x85w4", "w5\nw6", "w7\r\nw8"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (tmp_path / "a.jsonl").write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    assert embed_corpus.read_texts(tmp_path / "a.jsonl") == texts
    (tmp_path / "a.txt").write_bytes("w1\u2028w2\r\n\r\nw3\n".encode("utf-8-sig"))
    assert embed_corpus.read_texts(tmp_path / "a.txt") == ["w1\u2028w2", "w3"]


@pytest.mark.parametrize(
    "line",
    [
        *(b'{"text":', b'{"abstract": "w1"}', b'["w1"]', b'{"text": null}'),
        *(b'{"text": "\xe9"}', b'{"text": "\\ud83d"}'),
    ],
)
def test_a_line_without_a_text_is_named(line, model, tokenizer, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "w1"}\n')
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "w1"}\n\n' + line)
    with pytest.raises(ValueError, match=r"line 3 of .*b\.jsonl holds no text"):
        embed_corpus.embed_folder(tmp_path, tmp_path / "v", model, tokenizer)
    assert list(contents(tmp_path / "v")) == ["a.safetensors"]  # what is done is kept


def launch(folder, target):
    """The real command for two processes, of the recipe as a file."""
    options = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
    options += " --dynamo_backend no --main_process_port 0"
    command = [sys.executable, "-m", "accelerate.commands.launch", *options.split()]
    command += [embed_corpus.__file__, *map(str, (folder / "texts", folder / "model", target))]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, start_new_session=True, **pipe)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="torch's launcher needs libuv's store there")
def test_two_processes_one_killed_and_started_again(job, tmp_path):
    """One is killed in the middle; started again, they make the bytes that one process makes."""
    import psutil

    folder, _ = job
    target = tmp_path / "vectors"
    target.mkdir()
    # The second process begins with this file: a pipe in its place holds it up until it is killed.
    stuck = target / "part-1.part"
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
    assert {path.stem for path in target.glob("*.safetensors")} == {"part-0", "part-2", "part-4"}
    again = launch(folder, target)
    output, _ = again.communicate(timeout=60)
    assert again.returncode == 0, output
    assert "process 0 of 2 on cpu made 2 files" in output
    assert "process 1 of 2 on cpu made 1 files" in output
    assert contents(target) == contents(folder / "alone")
