"""The loss is its formula, students are true copies, and teachers stay as they are."""

import copy
import math

from helpers.lessons import distillation, quantize_torch, students, training
from helpers.models import inspection
from helpers.recipes import distill as recipe
from helpers.recipes.distill import cut_student

import numpy as np
import pandas as pd
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

WORDS = [*"abcdefghijklmnopqrstuvwxyz", "good", "bad", "film", "plot", "cafe"]
VOCABULARY = {"vocab_size": 5 + len(WORDS), "max_position_embeddings": 64}
SIZES = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64} | VOCABULARY
LABELS = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}


def loss_of(student, teacher, labels=None, temperature=1.0, label_weight=0.0):
    labels = torch.full(student.shape[:1], -100) if labels is None else labels
    return recipe.distillation_loss(student, teacher, labels, temperature, label_weight)


def config(**changes):
    return BertConfig(**SIZES | {"num_hidden_layers": 4} | LABELS | changes)


def classifier(**changes):
    torch.manual_seed(0)
    model = BertForSequenceClassification(config(**changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # no weight is 0 or 1, so no mix-up goes unseen
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.classifier.weight.mul_(10)
    return model


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
    return tiny_tokenizer(*WORDS)


@pytest.fixture
def examples():
    texts = [
        f"{word} {other} film" for word in "abcdefgh" for other in ("good", "bad good plot", "bad")
    ]
    return pd.DataFrame({"id": range(100, 100 + len(texts)), "text": texts, "label": [0, 1, 0] * 8})


def softmax(rows, temperature):
    powers = np.exp(rows / temperature)
    return powers / powers.sum(axis=-1, keepdims=True)


def by_hand(student, teacher, temperature):
    """T² times the sum over classes of p log(p / q), for each row."""
    p, q = softmax(teacher, temperature), softmax(student, temperature)
    return temperature**2 * (p * np.log(p / q)).sum(axis=-1)


def some_logits(*shape):
    torch.manual_seed(len(shape))
    return 3 * torch.randn(shape, dtype=torch.float64), 3 * torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 8.0, math.inf])
@pytest.mark.parametrize("shape", [(4, 3), (1, 2), (32, 2), (5, 11)])
def test_case_70_the_loss_of_texts_is_the_formula(shape, temperature):
    student, teacher = some_logits(*shape)
    expected = by_hand(student.numpy(), teacher.numpy(), min(temperature, 1e5)).mean()
    found = float(loss_of(student, teacher, temperature=temperature))
    assert found == pytest.approx(expected, rel=1e-3 if temperature == math.inf else 1e-5)


def test_the_hard_part_is_mixed_in_and_unlabelled_rows_have_none():
    student, teacher = some_logits(4, 3)
    labels = torch.tensor([2, 0, -100, 1])
    soft = by_hand(student.numpy(), teacher.numpy(), 2.0).mean()
    known = [0, 1, 3]
    own = -np.log(softmax(student.numpy(), 1)[known, labels[known]]).mean()
    mixed = loss_of(student, teacher, labels, temperature=2.0, label_weight=0.3)
    assert float(mixed) == pytest.approx(0.7 * soft + 0.3 * own, rel=1e-5)
    hard = loss_of(student, teacher, labels, label_weight=1.0)
    assert float(hard) == pytest.approx(own, rel=1e-5)
    none = loss_of(student, teacher, torch.full((4,), -100), temperature=2.0, label_weight=0.3)
    assert float(none) == pytest.approx(0.7 * soft, rel=1e-5)


def test_case_71_the_gradient_stays_comparable_with_the_factor_and_dies_without():
    (student, teacher), norms = some_logits(16, 2), {}
    for temperature in (1.0, 2.0, 8.0):
        leaf = student.clone().requires_grad_(True)
        loss_of(leaf, teacher, temperature=temperature).backward()
        norms[temperature] = float(leaf.grad.norm())
    assert max(norms.values()) / min(norms.values()) < 4
    assert norms[8.0] / 64 < 0.1 * norms[1.0]  # what it would be without T²


@pytest.mark.parametrize(
    "options",
    [{"temperature": value} for value in (0.0, math.nan, 1e4)]
    + [{"label_weight": value} for value in (1.5, -0.1)],
)
def test_options_that_would_give_a_wrong_loss_are_refused(tokenizer, examples, options):
    with pytest.raises(ValueError, match="or inf, label_weight from 0 to 1"):
        distillation.distill(classifier(), classifier(), tokenizer, examples, **options)
    with pytest.raises(ValueError, match="no distribution"):
        loss_of(torch.zeros(4, 1), torch.zeros(4, 1))


@pytest.mark.parametrize("layers", [[0, 3], [3, 0], [2], [1, 1], range(4)])
def test_a_student_computes_with_copies_of_the_layers_it_was_given(layers):
    teacher, ids = classifier(), torch.arange(5, 25).reshape(2, 10)
    student = cut_student(teacher, layers).eval()
    assert (student.config.num_hidden_layers, teacher.config.num_hidden_layers) == (len(layers), 4)
    whole = copy.deepcopy(teacher)
    whole.bert.encoder.layer = nn.ModuleList(whole.bert.encoder.layer[layer] for layer in layers)
    with torch.no_grad():
        assert torch.equal(student(ids).logits, whole(ids).logits)
        before = teacher(ids).logits
        for parameter in student.parameters():
            parameter.zero_()
        assert torch.equal(teacher(ids).logits, before)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("depth", [1, 4])
def test_reading_the_first_token_only_changes_no_logit(tokenizer, depth, attention):
    whole = classifier(num_hidden_layers=depth)
    whole.set_attn_implementation(attention)
    less = students.read_first_token(copy.deepcopy(whole))
    assert less.state_dict().keys() == whole.state_dict().keys()
    batch = tokenizer(["good film", "a b c d e f bad plot"], padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.allclose(less(**batch).logits, whole(**batch).logits, atol=1e-6)
    assert less.bert(**batch).last_hidden_state.shape[1] == 1
    for model in (whole, less):
        model(**batch).logits.sum().backward()
    pairs = zip(less.named_parameters(), whole.parameters(), strict=True)
    assert all(
        torch.allclose(a.grad, b.grad, atol=1e-5) for (name, a), b in pairs if b.grad is not None
    )


def distil_bert():
    sizes = {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64}
    settings = DistilBertConfig(**sizes, **VOCABULARY, **LABELS)
    return DistilBertForSequenceClassification(settings).eval()


def test_case_78_segment_ids_go_only_to_models_that_know_them(tokenizer):
    pair = tokenizer(["good film"], ["bad plot"], return_tensors="pt")
    assert "token_type_ids" in pair
    native, known = distil_bert(), {"input_ids", "attention_mask"}
    assert inspection.accepted_inputs(native, pair).keys() == known
    assert inspection.accepted_inputs(torch.compile(native), pair).keys() == known
    inputs = inspection.accepted_inputs(native, pair)
    exported = torch.export.export(native, (), dict(inputs)).module()
    assert inspection.accepted_inputs(exported, pair).keys() == known
    with torch.no_grad():
        logits = exported(**inspection.accepted_inputs(exported, pair)).logits
        assert torch.allclose(logits, native(**inputs).logits, atol=1e-5)
    assert inspection.accepted_inputs(classifier(), pair).keys() == pair.keys()


def test_predictions_come_in_order_and_leave_every_module_in_its_mode(tokenizer):
    model, texts = classifier().train(), ["a b c d e f g", "good", "bad film", "a b c d"]
    model.base_model.eval()  # a frozen body
    logits = inspection.predict(model, tokenizer, texts, max_tokens=16)
    assert model.training
    assert not any(module.training for module in model.base_model.modules())
    assert not logits.requires_grad
    model.eval()
    with torch.no_grad():
        single = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    assert torch.allclose(logits, torch.stack(single), atol=1e-5)
    for wrong, error in (("one", TypeError), ([], ValueError)):
        with pytest.raises(error):
            inspection.predict(model, tokenizer, wrong)


def test_case_75_teacher_logits_belong_to_their_examples_however_they_are_shuffled(
    tokenizer, examples, tmp_path
):
    teacher, file = classifier(), tmp_path / "teacher.safetensors"
    ids, texts = examples["id"].tolist(), examples["text"].tolist()
    fresh = distillation.teacher_logits(teacher, tokenizer, ids, texts, file)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(1)).tolist()
    again = distillation.teacher_logits(
        teacher, tokenizer, [ids[i] for i in order], [texts[i] for i in order], file
    )
    assert torch.equal(again, fresh[order])
    assert torch.allclose(fresh, inspection.predict(teacher, tokenizer, texts), atol=1e-5)


def test_case_75_kept_logits_are_used_only_for_the_same_text_and_teacher(
    tokenizer, tmp_path, monkeypatch
):
    teacher, file, asked = classifier(), tmp_path / "teacher.safetensors", []
    real = inspection.predict
    monkeypatch.setattr(
        inspection, "predict", lambda m, t, texts: asked.append(list(texts)) or real(m, t, texts)
    )
    three = ["good", "bad film", "plot"]
    many = [*three, *"abcdefghijklmnopqrstuvwxyz"]
    distillation.teacher_logits(teacher, tokenizer, range(29), many, file)
    distillation.teacher_logits(teacher, tokenizer, range(29), many, file)
    distillation.teacher_logits(teacher, tokenizer, [1, 2, 3], three, file)
    assert asked == [many, many[::4], three]  # eight are probes; the last have other ids
    with torch.no_grad():
        teacher.classifier.bias.add_(0.01)
    again = distillation.teacher_logits(teacher, tokenizer, [1, 2, 3], three, file)
    assert asked[-1] == three
    assert torch.allclose(again, real(teacher, tokenizer, three), atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["teacher.safetensors"]


def test_a_pair_is_compared_before_anything_is_trained(tokenizer, examples):
    teacher, student = classifier(), cut_student(classifier(), [0])
    before = copy.deepcopy(student.state_dict())
    student.config.id2label = {0: "positive", 1: "negative"}
    with pytest.raises(ValueError, match="student's id2label"):
        distillation.distill(student, teacher, tokenizer, examples)
    student.config.id2label = {0: "NEGATIVE", 1: "POSITIVE"}
    distillation.check_pair(teacher, student)
    student.bert.embeddings = teacher.bert.embeddings
    with pytest.raises(ValueError, match=r"word_embeddings.*teacher's own"):
        distillation.distill(student, teacher, tokenizer, examples)
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())


def test_case_73_only_the_student_learns_and_the_teacher_is_the_same_bit_for_bit(
    tokenizer, examples
):
    teacher = classifier().train()
    before = copy.deepcopy(teacher.state_dict())
    student = cut_student(teacher, [0, 3])
    start = copy.deepcopy(student.state_dict())
    losses = distillation.distill(
        student, teacher, tokenizer, examples, label_weight=0.3, epochs=20, lr=2e-3, batch_size=8
    )
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert all(
        parameter.grad is None and not parameter.requires_grad for parameter in teacher.parameters()
    )
    assert not teacher.training
    assert any(not torch.equal(value, start[name]) for name, value in student.state_dict().items())
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])


def test_case_75_targets_follow_the_rows_of_every_shuffled_batch(tokenizer, examples):
    seen = []

    def loss(logits, rows):
        seen.append(rows.tolist())
        return logits.square().mean()

    training.train(classifier(), tokenizer, examples["text"].tolist(), loss, epochs=2, batch_size=5)
    first, second = ([row for rows in epoch for row in rows] for epoch in (seen[:5], seen[5:]))
    assert sorted(first) == sorted(second) == list(range(24))
    assert seen[:5] != seen[5:]


def test_a_loss_that_is_not_finite_ends_the_training(tokenizer, examples):
    with pytest.raises(FloatingPointError, match="loss of step 2 is nan"):
        distillation.distill(classifier(), classifier(), tokenizer, examples, lr=1e30, batch_size=8)
    model = classifier()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(FloatingPointError, match="step 1 is nan"):
        training.train(
            model, tokenizer, examples["text"], lambda logits, rows: logits.sum() * float("nan")
        )
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_reading_the_first_token_keeps_dtype_and_frozen_layers():
    teacher = classifier().to(torch.bfloat16).requires_grad_(False)
    layer = students.read_first_token(teacher).bert.encoder.layer[-1]
    assert {(p.dtype, p.requires_grad) for p in layer.parameters()} == {(torch.bfloat16, False)}


def adapted():
    return get_peft_model(classifier(), LoraConfig(r=2, target_modules="all-linear"))


class MeanOfTokens(BertForSequenceClassification):
    """It computes its logits otherwise, as any subclass may."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: MeanOfTokens(config()),
        lambda: classifier(is_decoder=True),
        lambda: BertForTokenClassification(config()),
        lambda: adapted().get_base_model(),
        lambda: quantize_torch.torch_dynamic(classifier()).model,
        lambda: quantize_torch.torchao_int8(classifier()).model,
    ],
    ids=["subclass", "decoder", "tokens", "adapters", "torch.ao", "torchao"],
)
def test_only_plain_classifiers_read_their_first_token(make):
    words = r"may read all tokens|Missing key|exception occurred"
    with pytest.raises((TypeError, RuntimeError), match=words):
        students.read_first_token(make())


def test_case_78_wrappers_are_looked_into(tokenizer):
    pair, model = tokenizer(["good film"], ["bad plot"], return_tensors="pt"), classifier()
    for wrapped in (
        nn.DataParallel(model),
        torch.compile(nn.DataParallel(model)),
        nn.DataParallel(torch.compile(model)),
    ):
        assert inspection.accepted_inputs(wrapped, pair).keys() == pair.keys()
    known = {"input_ids", "attention_mask"}
    assert inspection.accepted_inputs(nn.DataParallel(distil_bert()), pair).keys() == known
    texts = ["good", "bad film"]
    logits = inspection.predict(nn.DataParallel(model), tokenizer, texts)
    assert torch.equal(logits, inspection.predict(model, tokenizer, texts))


def roberta():
    settings = RobertaConfig(**SIZES, num_hidden_layers=1, pad_token_id=1)
    return RobertaForSequenceClassification(settings).eval()


@pytest.mark.parametrize(("make", "room"), [(classifier, 64), (distil_bert, 64), (roberta, 62)])
def test_texts_are_cut_at_what_the_model_can_read(tokenizer, make, room):
    model, text = make(), " ".join(["good bad film"] * 50)
    short = tokenizer(text, truncation=True, max_length=room, return_tensors="pt")
    with torch.no_grad():
        alone = model(**inspection.accepted_inputs(model, short)).logits
    assert torch.allclose(inspection.predict(model, tokenizer, [text]), alone, atol=1e-5)
    losses = training.train(model, tokenizer, [text], lambda logits, rows: logits.square().mean())
    assert len(losses) == 1


@pytest.mark.parametrize("kind", [BertForTokenClassification, BertModel])
def test_models_without_logits_of_whole_texts_are_refused(tokenizer, examples, kind):
    for use in (
        lambda model: inspection.predict(model, tokenizer, ["good", "bad film"]),
        lambda model: training.train(model, tokenizer, ["good"], lambda found, rows: found.mean()),
        lambda model: distillation.distill(model, classifier(), tokenizer, examples),
    ):
        with pytest.raises(ValueError, match="must classify whole texts"):
            use(kind(config()))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_training_that_breaks_off_leaves_the_model_in_eval_mode(tokenizer, error):
    model = classifier()

    def break_off(logits, rows):
        raise error

    with pytest.raises(error):
        training.train(model, tokenizer, ["good"], break_off)
    assert not any(module.training for module in model.modules())
