"""Every recipe on a tiny model of each family of encoders; README's table says what works."""

import copy

from conftest import TINY
from helpers.core import files
from helpers.core.quiet import quiet
from helpers.lessons import memory
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

import pytest
import torch
import transformers

SIZES = TINY | {"num_hidden_layers": 3, "max_position_embeddings": 80}
SIZES |= {"pad_token_id": 0, "initializer_range": 0.5}
DISTIL = {"dim": 32, "n_layers": 3, "n_heads": 2, "hidden_dim": 64}
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16}
MODERN = {"bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
MODERN |= {"local_attention": 16}
# As README's table calls it: transformers' name, its own sizes, and what it cannot do.
FAMILIES = {
    "BERT": ("Bert", {}, set()),
    "RoBERTa": ("Roberta", {}, set()),
    "XLM-R": ("XLMRoberta", {}, set()),
    "DistilBERT": ("DistilBert", DISTIL, set()),
    "ELECTRA": ("Electra", {}, set()),
    "ALBERT": ("Albert", {"embedding_size": 16}, {"student", "checkpointing"}),
    "MPNet": ("MPNet", {}, {"checkpointing"}),
    "DeBERTa-v2": ("DebertaV2", RELATIVE, {"prediction"}),
    "ModernBERT": ("ModernBert", MODERN, set()),
}
WORDS = "a short text . another this one is good deal longer than that no !"


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
    return tiny_tokenizer(*WORDS.split(), model_max_length=64)


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def config(family):
    name, sizes, _ = FAMILIES[family]
    return getattr(transformers, f"{name}Config")(**SIZES | sizes)


@pytest.fixture
def model(family, config):
    torch.manual_seed(0)
    return getattr(transformers, f"{FAMILIES[family][0]}ForSequenceClassification")(config).eval()


def lacks(family, what):
    return what in FAMILIES[family][2]


@pytest.mark.slow
def test_export_int8_and_pipeline(family, model, tokenizer, tmp_path):
    tokenizer = copy.copy(tokenizer)
    if family not in ("BERT", "ELECTRA", "ALBERT", "DeBERTa-v2"):
        tokenizer.model_input_names = ["input_ids", "attention_mask"]  # as theirs
    with quiet(stdout=True):
        path = onnx_export.export(model, tmp_path / "model.onnx", tokenizer)
        int8.quantize(path, tmp_path / "int8.onnx")
    assert onnx_export.parity(model, onnx_export.open_session(path, 1), tokenizer) < 1e-4
    texts = ["a short text .", "this one is a good deal longer than that !", "no !"]
    with torch.inference_mode():
        expected = [model(**_known(model, tokenizer(text))).logits[0] for text in texts]
    found = fast_pipeline.classify(texts, fast_pipeline.open_session(path), tokenizer, 2)
    assert torch.allclose(torch.from_numpy(found), torch.stack(expected), atol=1e-4)
    rounded = fast_pipeline.open_session(tmp_path / "int8.onnx")
    assert fast_pipeline.classify(texts, rounded, tokenizer, 1).shape == found.shape


def _known(model, encoding):
    names = onnx_export.example_inputs(model)
    return {name: torch.tensor([encoding[name]]) for name in names if name in encoding}


def test_a_student_has_its_teachers_layers(family, model):
    layers = [0, 2] if family == "ModernBERT" else [1, 2]
    if lacks(family, "student"):
        with pytest.raises(ValueError, match="share one set of weights"):
            distill.cut_student(model, layers)
        return
    student = distill.cut_student(model, layers)
    mine, theirs = student.state_dict(), model.state_dict()
    for name in mine:
        origin = distill.LAYER.sub(lambda at: str(layers[int(at[0])]), name)
        assert torch.equal(mine[name], theirs[origin]), name
    assert student.config.num_hidden_layers == 2


def test_training_levers(family, model):
    batch = {"input_ids": torch.randint(5, 20, (4, 8)), "labels": torch.tensor([0, 1, 1, 0])}
    model.train()
    if lacks(family, "checkpointing"):
        with pytest.raises(ValueError, match="does not support"):
            training_memory.checkpoint_layers(model)
    else:
        training_memory.checkpoint_layers(model)
    adapted = training_memory.add_adapters(model)
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    assert training_memory.training_step(adapted, batch, optimizer, accumulate=2) > 0


def test_memory_is_predicted_with_the_attention_that_there_is(family, config):
    if lacks(family, "prediction"):
        with pytest.raises(ValueError, match="takes shapes from values"):
            memory.predict_peak(config, 2, 16)
        return
    peak = memory.predict_peak(config, 2, 16)
    measured = memory.Step(config, 2, 16)
    taken = memory.measure_peak(measured.run, measured.model, measured.optimizer, measured.inputs)
    assert peak.total == pytest.approx(taken.allocated, rel=0.01)
    assert peak.attention == ("eager" if family == "MPNet" else "sdpa")


def test_a_checkpoint_of_a_parallel_run_is_loaded_whole(family, model, config, tmp_path):
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save(state, tmp_path / "model.pth")
    kind = type(model)
    loaded = load_checkpoint.load_checkpoint(tmp_path / "model.pth", lambda: kind(config))
    ids = torch.randint(5, 20, (2, 8))
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_embeddings_do_not_depend_on_the_batch(family, config, tokenizer):
    torch.manual_seed(0)
    body = getattr(transformers, f"{FAMILIES[family][0]}Model")(config).eval()
    texts = ["a short text .", "this one is a good deal longer than that !", "no !"]
    together = embed_corpus.embed_sorted(texts, body, tokenizer)
    alone = torch.cat([embed_corpus.embed_sorted([text], body, tokenizer) for text in texts])
    assert torch.allclose(together, alone, atol=1e-4)


def test_placement_moves_every_tensor(model):
    moved = device_placement.move_to(model, torch.device("meta"))
    assert {tensor.device.type for *_, tensor in device_placement.tensors_of(moved)} == {"meta"}


def test_readme_has_a_row_for_each_family(family):
    readme = (files.ROOT / "README.md").read_text(encoding="utf-8")
    (row,) = [line for line in readme.splitlines() if line.startswith(f"| {family} |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")][1:]
    assert cells.count("no") == len(FAMILIES[family][2])
