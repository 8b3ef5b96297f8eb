"""The recipes do what they say, with their own command line, on small models in real files."""

import os
import subprocess
import sys

from helpers.recipes import (
    device_placement,
    distill,
    embed_corpus,
    fast_pipeline,
    int8,
    load_checkpoint,
    onnx_export,
    training_memory,
)
from helpers.tools import notebooks

import numpy as np
import pytest
import safetensors.torch
import torch
from transformers import BertForSequenceClassification, BertForTokenClassification, BertModel

WORDS = ["a", "good", "bad", "film", "was", "this", "not", "very", "and", "the"]
TEXTS = [" ".join(WORDS[i % 7 : i % 7 + 1 + i % 4] * (1 + i % 3)) for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
    return tiny_tokenizer(*WORDS)


@pytest.fixture(scope="module")
def classifier(tiny_model):
    return tiny_model(BertForSequenceClassification, num_labels=3, num_hidden_layers=3)


@pytest.fixture(scope="module")
def folder(classifier, tokenizer, tmp_path_factory):
    """A folder with a classifier and its tokenizer, as a reader has one."""
    place = tmp_path_factory.mktemp("model")
    for part in (classifier, tokenizer):
        part.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def exported(classifier, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    return onnx_export.export(classifier, path, tokenizer)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text("".join(f"{text}\t{row % 3}\n" for row, text in enumerate(TEXTS)))
    return path


def python(recipe, *arguments):
    """What a copied recipe prints when it is run by its path, without the package."""
    script = notebooks.ROOT / "src/helpers/recipes" / f"{recipe}.py"
    command = [sys.executable, str(script), *map(str, arguments)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_device_placement(folder, classifier, tokenizer, tmp_path, capsys):
    texts, target = ["a good film", "not bad"], tmp_path / "vectors.npy"
    printed = python("device_placement", folder, *texts, "--device", "cpu", "--save", target)
    assert "left behind: nothing" in printed
    assert "vectors: (2, 32) float32" in printed
    alone = classifier.bert(**tokenizer(texts[1], return_tensors="pt")).last_hidden_state
    assert np.allclose(np.load(target)[1], alone.detach()[0].mean(0), atol=1e-5)
    spread = '{"embeddings": "disk", "encoder": "disk", "pooler": "cpu"}'
    options = ["--device-map", spread, "--save", str(target)]
    device_placement.main([str(folder), *texts, *options])
    assert "'encoder': 'disk'" in capsys.readouterr().out
    assert np.allclose(np.load(target)[1], alone.detach()[0].mean(0), atol=1e-5)
    module = torch.nn.Linear(2, 2)
    module.tables, module.named = [torch.ones(1)], {"a": torch.ones(1)}
    behind = device_placement.left_behind(module.to("meta"), torch.device("meta"))
    assert behind == ["tables", "named"]


@pytest.mark.parametrize("kind", [BertForSequenceClassification, BertForTokenClassification])
def test_accumulated_gradients_are_those_of_the_batch(tiny_model, kind):
    labels = torch.arange(7) % 3
    if kind is BertForTokenClassification:  # -100 is no label: a whole part has none
        labels = torch.where(torch.arange(9) < torch.arange(7)[:, None] - 2, labels[:, None], -100)
    batch = {"input_ids": torch.randint(5, 90, (7, 9)), "labels": labels}
    found = []
    for parts in (1, 3):
        model = tiny_model(kind, num_labels=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        loss = training_memory.training_step(model, batch, optimizer, accumulate=parts)
        found.append((loss, [parameter.detach().clone() for parameter in model.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_training_memory(folder, capsys):
    options = ["--batch", "4", "--length", "32", "--accumulate", "2", "--checkpointing"]
    assert "peak" in python("training_memory", folder, *options)
    training_memory.main([str(folder), "--length", "32", "--lora", "2", "--bf16"])
    assert "gradients" in capsys.readouterr().out


def test_load_checkpoint(classifier, folder, tmp_path):
    state = {f"module._orig_mod.{name}": value for name, value in classifier.state_dict().items()}
    torch.save({"epoch": 3, "model_state_dict": state}, tmp_path / "c.pt")
    target = tmp_path / "model.safetensors"
    printed = python("load_checkpoint", tmp_path / "c.pt", folder, "--save", target)
    assert f"{len(state)} tensors" in printed
    saved = safetensors.torch.load_file(target)
    for name, value in classifier.state_dict().items():
        assert torch.equal(saved[name], value)


@pytest.mark.slow
def test_onnx_export(folder, tmp_path):
    printed = python("onnx_export", folder, tmp_path / "model.onnx")
    assert float(printed.split()[-1]) < 1e-4
    assert (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_an_exported_file_takes_any_shape(exported, classifier, batch):
    session = onnx_export.open_session(exported, 1)
    for length in (1, 7, 64):
        encoding = {name: np.ones((batch, length), np.int64) for name in onnx_export.INPUTS}
        assert onnx_export.run(session, encoding).shape == (batch, 3)
    with pytest.raises(ValueError, match=r"ignore some of .*token_type_idss"):
        onnx_export.run(session, encoding | {"token_type_idss": encoding["input_ids"]})


def test_parity_sees_swapped_inputs(exported, classifier, tokenizer, monkeypatch):
    session = onnx_export.open_session(exported, 1)
    assert onnx_export.parity(classifier, session, tokenizer) < 1e-4
    right = onnx_export.run

    def swapped(session, encoding):
        names = {"attention_mask": "token_type_ids", "token_type_ids": "attention_mask"}
        return right(session, {names.get(name, name): v for name, v in encoding.items()})

    monkeypatch.setattr(onnx_export, "run", swapped)
    assert onnx_export.parity(classifier, session, tokenizer) > 1e-3


def test_int8(exported, folder, table, tmp_path):
    target = tmp_path / "int8.onnx"
    printed = python("int8", exported, target, folder, table)
    assert "only before right" in printed
    assert target.stat().st_size < 0.7 * exported.stat().st_size
    made = target.read_bytes()
    with pytest.raises(ValueError, match="or is int8"):
        int8.quantize(target, target)
    assert target.read_bytes() == made


def test_int8_compares_in_pairs():
    exact = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    made = np.array([[0.0, 1.0], [1.0, 0.0], [3.0, 0.5]])
    found = int8.compare(exact, made, [0, 0, 0])
    assert (found["only before right"], found["only after right"]) == (1, 1)
    assert found["accuracy before"] == found["accuracy after"]
    assert found["same answer"] == pytest.approx(1 / 3)


@pytest.mark.slow
def test_distill(folder, table, tmp_path, classifier):
    target = tmp_path / "student"
    printed = python("distill", folder, table, target, "--epochs", "1")  # of three layers: 0 and 2
    assert "held-out texts" in printed
    student = BertForSequenceClassification.from_pretrained(target)
    assert student.config.num_hidden_layers == 2
    cut = distill.cut_student(classifier, [0, 2])
    assert not torch.equal(student.classifier.weight, cut.classifier.weight)


def test_training_a_student_leaves_the_teacher_alone(tiny_model, tokenizer):
    wide = {"num_labels": 3, "initializer_range": 0.3}
    teacher = tiny_model(BertForSequenceClassification, **wide)
    student = tiny_model(BertForSequenceClassification, seed=1, **wide)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}

    def apart():
        with torch.inference_mode():
            return (distill.logits(student, tokenizer, TEXTS) - teacher_says).abs().mean()

    with torch.inference_mode():
        teacher_says = distill.logits(teacher, tokenizer, TEXTS)
    at_first = apart()
    torch.manual_seed(0)  # of the order and dropout
    losses = list(distill.train(student, teacher, tokenizer, TEXTS, epochs=40, lr=1e-3))
    assert len(losses) == 80
    assert apart() < 0.8 * at_first
    assert all(torch.equal(before[name], v) for name, v in teacher.state_dict().items())
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_fast_pipeline(exported, folder, classifier, tokenizer, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    printed = python("fast_pipeline", exported, folder, tmp_path / "texts.txt", "--workers", "2")
    encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = classifier(**encoded).logits
    session = fast_pipeline.open_session(exported)
    found = fast_pipeline.classify(TEXTS, session, tokenizer, workers=2)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
    labels = [line.split("\t")[0] for line in printed.splitlines()[: len(TEXTS)]]
    assert labels == [str(int(label)) for label in expected.argmax(-1)]
    known = "\n".join(["bad bad film\t0", "good film\t1", "so so\t2"] * 10)
    (tmp_path / "known.tsv").write_text(known)
    given = [exported, folder, tmp_path / "texts.txt", "--labelled", tmp_path / "known.tsv"]
    fast_pipeline.main(list(map(str, given)))
    assert f"{len(TEXTS)} texts, " in capsys.readouterr().out


def test_left_padding_and_poolers_do_not_count(classifier, tokenizer, tiny_model, tiny_tokenizer):
    left = tiny_tokenizer(*WORDS)
    left.padding_side = "left"
    calls = [distill.logits, device_placement.encode]
    calls.append(lambda model, tokenizer, texts: embed_corpus.embed_sorted(texts, model, tokenizer))
    for call in calls:
        model = classifier if call is distill.logits else classifier.bert
        one, other = (torch.as_tensor(call(model, each, TEXTS)) for each in (tokenizer, left))
        torch.testing.assert_close(one, other)
    one, other = tiny_model(BertModel), tiny_model(BertModel)
    torch.nn.init.normal_(other.pooler.dense.weight)
    assert embed_corpus.digest(one, tokenizer) == embed_corpus.digest(other, tokenizer)


@pytest.mark.parametrize("recipe", [onnx_export, distill])
def test_a_head_that_would_be_random_is_refused(recipe, classifier, tokenizer, table, tmp_path):
    for part in (classifier.bert, tokenizer):
        part.save_pretrained(tmp_path / "body")
    given = {onnx_export: [tmp_path / "file.onnx"], distill: [table, tmp_path / "student"]}
    with pytest.raises(ValueError, match=r"classifier\.\w+ would be random"):
        recipe.main([str(tmp_path / "body"), *map(str, given[recipe])])


def test_a_damaged_file_and_a_note_of_git_are_refused(tmp_path):
    path = tmp_path / "model.pth"
    torch.save({"a": torch.ones(10_000)}, path)
    whole = path.read_bytes()
    for content in (whole[:9_000] + b"?" + whole[9_001:], b"version https://git-lfs", b"<html>"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"checksum of model|Git LFS pointer"):
            load_checkpoint.read_file(path)
