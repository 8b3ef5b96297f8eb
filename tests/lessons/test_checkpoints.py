"""checkpoints: files from another machine end in the right weights or in an error that names the cause."""

import argparse
import datetime
import json
import pickle
import random
import re
import shutil
import subprocess
import sys
import zipfile

from helpers.core import cuda
from helpers.lessons import checkpoint_files, checkpoints
from helpers.lessons.checkpoint_files import CheckpointError

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
)

CONFIG = BertConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100,
    max_position_embeddings=64,
)  # fmt: skip
IDS = torch.arange(24).reshape(2, 12)


class Metrics:  # what a training script keeps beside its weights
    def __init__(self):
        self.best = 0.5


def base(seed=1):
    torch.manual_seed(seed)
    return BertModel(CONFIG).eval()


@pytest.fixture(scope="module")
def model():
    return base()


@pytest.fixture
def on_card():
    """While it is on, torch.save tags every storage as a card's: big ones as cuda:1's, the others as cuda:0's."""
    entry = (
        0,
        lambda storage: "cuda:1" if storage.nbytes() > 4000 else "cuda:0",
        lambda storage, location: None,
    )
    torch.serialization._package_registry.insert(0, entry)
    yield
    torch.serialization._package_registry.remove(entry)


def saved(state, path, legacy=False):
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    return path


def renamed(state, change):
    return {change(name): value for name, value in state.items()}


def check(path, wanted, build=lambda: BertModel(CONFIG), **options):
    """Loads into a new model, and holds it against the right one: weights, buffers, result."""
    report = checkpoints.load(path, build, **options)
    same(report.model, wanted)
    return report


def same(got, wanted):
    for (name, a), (_, b) in zip(
        got.state_dict().items(), wanted.state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), name
    for (name, a), (_, b) in zip(got.named_buffers(), wanted.named_buffers(), strict=True):
        assert torch.equal(a, b), name
    if hasattr(wanted, "config"):
        with torch.no_grad():
            assert torch.equal(got(IDS)[0], wanted(IDS)[0])


def refused(path, *words, build=lambda: BertModel(CONFIG), **options):
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load(path, build, **options)
    for word in words:
        assert word in str(caught.value)
    return caught.value


# Prefixes, heads and names


@pytest.mark.parametrize("prefix", ["", "module.", "module.module.", "model.", "net.model.module."])
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_case_27_module_prefix(model, tmp_path, prefix, legacy):
    path = saved(
        renamed(model.state_dict(), lambda name: prefix + name), tmp_path / "m.pth", legacy
    )
    report = check(path, model)
    assert len(report.renamed) == (len(model.state_dict()) if prefix else 0)
    assert checkpoint_files.inspect(path).states == {"": prefix}


@pytest.mark.parametrize(
    "prefix", ["module._orig_mod.", "_orig_mod.module.", "model._orig_mod.", "_orig_mod.model."]
)
def test_case_29_orig_mod_in_any_place(model, tmp_path, prefix):
    check(saved(renamed(model.state_dict(), lambda name: prefix + name), tmp_path / "m.pth"), model)


class Honest(nn.Module):
    """Has a layer that is really called module."""

    def __init__(self):
        super().__init__()
        self.body = nn.ModuleDict({"module": nn.Linear(2, 2), "other": nn.Linear(2, 2)})


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module."])
def test_case_29_an_honest_layer_called_module_stays(tmp_path, prefix):
    for wanted, build in (
        (Honest(), Honest),
        (nn.DataParallel(nn.Linear(2, 2)), lambda: nn.DataParallel(nn.Linear(2, 2))),
    ):
        path = saved(renamed(wanted.state_dict(), lambda name: prefix + name), tmp_path / "m.pth")
        check(path, wanted, build)
    only = nn.ModuleDict({"module": nn.Linear(2, 2)})
    path = saved(renamed(only.state_dict(), lambda name: prefix + name), tmp_path / "m.pth")
    check(path, only, lambda: nn.ModuleDict({"module": nn.Linear(2, 2)}))


def test_a_prefix_that_only_some_names_carry_is_left_alone(model, tmp_path):
    names = list(model.state_dict())
    path = saved(
        renamed(model.state_dict(), lambda n: "module." * (n in names[:5]) + n), tmp_path / "m.pth"
    )
    error = refused(
        path, "not in the model: module.embeddings.word_embeddings.weight", "not in the file:"
    )
    assert f"{len(names) - 5} of whose {len(names)}" in str(error)


def test_into_a_compiled_or_wrapped_model(model, tmp_path):
    path = saved(model.state_dict(), tmp_path / "m.pth")
    for wrap in (torch.compile, nn.DataParallel):
        wrapped = wrap(base(2))
        assert len(checkpoints.load(path, wrapped).loaded) == len(model.state_dict())
        same(wrapped._orig_mod if wrap is torch.compile else wrapped.module, model)


def test_case_30_the_cure_that_loads_nothing(model, tmp_path):
    state = renamed(model.state_dict(), lambda name: "model." + name)
    strange = base(2)
    assert len(strange.load_state_dict(state, strict=False).missing_keys) == len(
        state
    )  # the pasted cure: no error
    assert check(saved(state, tmp_path / "m.pth"), model).loaded == list(model.state_dict())
    before = {name: value.clone() for name, value in strange.state_dict().items()}
    path = saved(
        renamed(model.state_dict(), lambda name: "x" + name.replace(".", "_")), tmp_path / "m.pth"
    )
    refused(path, "0 of whose 39 weights", build=strange)
    assert all(torch.equal(before[name], value) for name, value in strange.state_dict().items())
    refused(
        path,
        "only 0% of the numbers",
        new=["embeddings", "encoder", "pooler"],
        drop=json.loads(json.dumps(list(torch.load(path)))),
    )


def test_too_little_loaded_is_an_error_even_if_allowed(model, tmp_path):
    path = saved(
        {k: v for k, v in model.state_dict().items() if "encoder" in k}, tmp_path / "m.pth"
    )
    new = ["embeddings", "pooler"]
    assert set(checkpoints.load(path, lambda: BertModel(CONFIG), new=new).missing) == {
        name for name in model.state_dict() if "encoder" not in name
    }
    refused(path, "of the numbers would be loaded", new=new, at_least=0.9)


@pytest.mark.parametrize("file", ["bare", "prefixed"])
def test_new_heads_are_named_and_untrained(model, tmp_path, file):
    state = renamed(model.state_dict(), lambda name: "bert." * (file == "prefixed") + name)
    path, build = saved(state, tmp_path / "m.pth"), lambda: BertForSequenceClassification(CONFIG)
    refused(path, "not in the file: classifier.weight, classifier.bias", "new=[...]", build=build)
    torch.manual_seed(0)
    report = checkpoints.load(path, build, new=["classifier"])
    assert report.missing == ["classifier.weight", "classifier.bias"]
    assert "new, untrained: classifier.weight, classifier.bias" in str(report)
    same(report.model.bert, model)
    head = report.model.classifier
    assert 0 < head.weight.std() < 0.1
    assert not head.bias.any()
    assert (head.weight.requires_grad, report.model.training) == (True, False)


def test_a_file_with_a_head_for_a_model_without(tmp_path):
    classifier = BertForSequenceClassification(CONFIG)
    path = saved(
        renamed(classifier.state_dict(), lambda name: "module." + name), tmp_path / "m.pth"
    )
    refused(path, "not in the model:", "Parts of the file: bert, classifier;", "drop=[...]")
    report = check(path, classifier.bert.eval(), drop=["classifier"])
    assert report.unexpected == ["module.classifier.weight", "module.classifier.bias"]


@pytest.mark.parametrize("where", ["embeddings.position_ids", "module.embeddings.position_ids"])
@pytest.mark.parametrize("values", ["plain", "strange"])
def test_case_31_position_ids(model, tmp_path, where, values):
    prefix = where.removesuffix("embeddings.position_ids")
    state = renamed(model.state_dict(), lambda name: prefix + name)
    path = saved(
        state | {where: torch.arange(64)[None] + (values == "strange")}, tmp_path / "m.pth"
    )
    if values == "plain":
        assert f"left out {where}" in str(check(path, model))
    else:
        refused(path, f"not in the model: {where}")


class Deep(nn.Module):
    def __init__(self, old=False):
        super().__init__()
        self.encoder = nn.Module()
        self.encoder._bert = BertModel(CONFIG)
        if old:
            embeddings = self.encoder._bert.embeddings
            embeddings.register_buffer("position_ids", torch.arange(64)[None], persistent=True)


def test_case_31_position_ids_at_any_depth_and_missing(tmp_path):
    new, old = Deep(), Deep(old=True)
    path = saved(
        new.state_dict() | {"encoder._bert.embeddings.position_ids": torch.arange(64)[None]},
        tmp_path / "m.pth",
    )
    check(path, new, Deep)
    path = saved(new.state_dict(), tmp_path / "m.pth")
    report = checkpoints.load(path, lambda: Deep(old=True))
    assert "computed encoder._bert.embeddings.position_ids" in str(report)
    assert torch.equal(report.model.encoder._bert.embeddings.position_ids, torch.arange(64)[None])
    assert old.state_dict().keys() == report.model.state_dict().keys()


def test_gamma_and_beta_of_old_files(model, tmp_path):
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    state = renamed(
        model.state_dict(), lambda n: "bert." + re.sub(r"LayerNorm\.\w+$", lambda m: old[m[0]], n)
    )
    report = check(saved(state, tmp_path / "m.bin", legacy=True), model)
    assert report.renamed["bert.embeddings.LayerNorm.gamma"] == "embeddings.LayerNorm.weight"
    state["bert.embeddings.LayerNorm.weight"] = state["bert.embeddings.LayerNorm.gamma"]
    refused(saved(state, tmp_path / "m.bin"), "given twice: embeddings.LayerNorm.weight")


def test_other_shapes_and_kinds_of_number(model, tmp_path):
    name = "embeddings.word_embeddings.weight"
    refused(
        saved(model.state_dict() | {name: torch.zeros(101, 32)}, tmp_path / "m.pth"),
        "shape (101, 32) in the file",
    )
    for dtype in (torch.int32, torch.int8, torch.float8_e4m3fn):
        path = saved(
            model.state_dict() | {name: torch.zeros(100, 32).to(dtype)}, tmp_path / "m.pth"
        )
        refused(path, f"{name} has {dtype} in the file")
    refused(saved(model.state_dict() | {name: "gone"}, tmp_path / "m.pth"), f"{name} is a str")
    refused(
        saved(model.state_dict() | {name: torch.zeros(100, 32, device="meta")}, tmp_path / "m.pth"),
        "no data",
    )


@pytest.mark.parametrize(
    "options", [{"device": "mps:7"}, {"device": "gpu"}, {"device": "meta"}, {"dtype": torch.int8}]
)
def test_options_that_cannot_be_leave_the_model_as_it_was(model, tmp_path, options):
    path, other = saved(model.state_dict(), tmp_path / "m.pth"), base(2)
    refused(path, next(iter(options.values())).__str__(), build=other, **options)
    same(other, base(2))


def test_a_name_may_stand_alone_where_a_list_is_asked_for(model, tmp_path):
    content = {"model": model.state_dict() | {"more": torch.ones(2)}, "args": argparse.Namespace()}
    path, build = saved(content, tmp_path / "m.pth"), lambda: BertForSequenceClassification(CONFIG)
    report = checkpoints.load(
        path, build, allow="argparse.Namespace", new="classifier", drop="more"
    )
    assert (len(report.missing), report.unexpected) == (2, ["more"])


class Scale(nn.Module):
    """A part of one's own that says in its constructor only how it begins."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.register_buffer("table", torch.arange(5.0), persistent=False)


class Headed(PreTrainedModel):
    config_class = BertConfig
    _supports_sdpa = True

    def __init__(self, config, head=Scale):
        super().__init__(config)
        self.body, self.head = BertModel(config), head()
        self.post_init()


class Needy(Headed):
    def __init__(self, config, head):
        super().__init__(config, head)


def test_new_parts_never_hold_what_lay_in_memory(model, tmp_path):
    path = saved(model.state_dict(), tmp_path / "m.pth")
    for build in (
        lambda: Headed(CONFIG),
        lambda: nn.ModuleDict({"body": BertModel(CONFIG), "head": Scale()}),
    ):
        refused(path, "nothing says how head.scale begins", build=build, new=["head"])
        head = checkpoints.load(path, build(), new=["head"]).model.get_submodule("head")
        assert torch.equal(head.scale, torch.ones(5))
    linear = nn.Linear(3, 3).state_dict()
    path = saved({f"1.{name}": value for name, value in linear.items()}, tmp_path / "linear.pth")
    got = checkpoints.load(
        path, lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)), new=["0"], at_least=0.4
    ).model[0]
    assert torch.equal(got.weight, torch.ones(3))
    assert torch.equal(got.running_var, torch.ones(3))


def test_new_weights_that_are_tied_stay_tied(tmp_path):
    tied = BertForMaskedLM(CONFIG)
    word, out = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    path = saved(
        {n: v for n, v in tied.state_dict().items() if n not in (word, out)}, tmp_path / "m.pth"
    )
    got = checkpoints.load(
        path, lambda: BertForMaskedLM(CONFIG), new=["word_embeddings", "decoder"]
    ).model
    assert got.get_parameter(word) is got.get_parameter(out)
    assert 0 < got.get_parameter(word).std() < 0.1


def test_a_model_whose_class_takes_more_than_a_configuration(tmp_path):
    wanted = Needy(CONFIG, Scale)
    report = checkpoints.load(saved(wanted.state_dict(), tmp_path / "m.pth"), Needy(CONFIG, Scale))
    same(report.model.body.eval(), wanted.body.eval())


class Item(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.norm = float(self.weight.norm())


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"version": 1}


def test_models_that_load_cannot_build_or_fill(tmp_path):
    path = saved(nn.Linear(2, 2).state_dict(), tmp_path / "m.pth")
    for build in (Item, nn.Linear, lambda: nn.LazyLinear(2), lambda: None, "bert"):
        refused(path, "a function that builds the model, or the model itself", build=build)
    assert len(checkpoints.load(path, Item()).loaded) == 2
    refused(path, "_extra_state in the model is no tensor", build=lambda: Extra(2, 2))


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_what_is_tied_only_in_the_file_is_not_changed_together(tmp_path, form):
    state, path = BertForMaskedLM(CONFIG).state_dict(), tmp_path / "m.pth"
    checkpoints.save(state, path) if form == "safetensors" else saved(state, path, form == "legacy")
    untied = BertConfig.from_dict(CONFIG.to_dict() | {"tie_word_embeddings": False})
    got = checkpoints.load(path, lambda: BertForMaskedLM(untied)).model
    with torch.no_grad():
        got.cls.predictions.decoder.weight += 1
    word = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(got.get_parameter(word), state[word])


def test_stretched_tensors_and_parameters_in_the_place_of_buffers(tmp_path):
    wanted = nn.BatchNorm1d(3)
    state = wanted.state_dict() | {
        "bias": torch.zeros(1).expand(3),
        "running_mean": nn.Parameter(torch.zeros(3)),
    }
    got = check(saved(state, tmp_path / "m.pth"), wanted, lambda: nn.BatchNorm1d(3)).model
    assert "running_mean" in dict(got.named_buffers())
    assert not got.running_mean.requires_grad
    with torch.no_grad():
        got.bias += torch.arange(3)
    assert got.bias.tolist() == [0, 1, 2]


def test_numbers_that_do_not_fit_or_are_none(model, tmp_path):
    name, path = "pooler.dense.bias", tmp_path / "m.pth"
    large = saved(model.state_dict() | {name: torch.full((32,), 1e6)}, tmp_path / "large.pth")
    refused(
        large, f"{name} has numbers in the file that torch.float16 cannot hold", dtype=torch.float16
    )
    assert checkpoints.load(large, lambda: BertModel(CONFIG)).model.pooler.dense.bias.mean() == 1e6
    diverged = saved(
        model.state_dict() | {name: torch.full((32,), torch.nan)}, tmp_path / "diverged.pth"
    )
    assert f"{name} holds numbers that are not finite" in str(
        checkpoints.load(diverged, lambda: BertModel(CONFIG))
    )
    refused(
        saved(model.state_dict() | {name: torch.ones(32).to_sparse()}, path),
        f"{name} has torch.sparse_coo",
    )
    counts = nn.BatchNorm1d(3).state_dict() | {"num_batches_tracked": torch.tensor(2**40)}
    small = nn.BatchNorm1d(3)
    small.num_batches_tracked = torch.tensor(0, dtype=torch.int32)
    refused(saved(counts, path), "num_batches_tracked has numbers in the file", build=small)
    tied, word = BertForMaskedLM(CONFIG).state_dict(), "bert.embeddings.word_embeddings.weight"
    for odd, words in (
        ("gone", f"{word} is a str"),
        (tied[word].to("meta"), f"{word} has no data"),
    ):
        refused(saved(tied | {word: odd}, path), words, build=lambda: BertForMaskedLM(CONFIG))


# Nesting


@pytest.mark.parametrize("kind", ["itself", "doubled", "deep"])
def test_case_32_containers_that_hold_themselves_or_grow(model, tmp_path, kind):
    content, inner = {"model": model.state_dict()}, {"a": 0}
    for _ in range({"itself": 0, "doubled": 60, "deep": 200}[kind]):
        inner = {"a": inner, "b": [inner]} if kind == "doubled" else {"a": inner}
    content["more"] = content if kind == "itself" else inner
    check(saved(content, tmp_path / "m.pth"), model)


@pytest.mark.parametrize(
    "key", ["model_state_dict", "state_dict", "net_dict", "network", "model", "any name"]
)
def test_case_32_unwraps_one_level(model, tmp_path, key):
    optimizer = torch.optim.AdamW(base().parameters())
    content = {
        "epoch": 3,
        key: model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loss": torch.tensor(0.5),
    }
    path = saved(content, tmp_path / "m.pth")
    check(path, model)
    look = checkpoint_files.inspect(path)
    assert look.states == {key: ""}
    assert look.nesting == {
        "epoch": "int",
        key: "OrderedDict",
        "optimizer": "dict",
        "loss": "StoredTensor",
    }


def test_case_32_asks_when_there_are_two(model, tmp_path):
    path = saved({"model": model.state_dict(), "ema": base(2).state_dict()}, tmp_path / "m.pth")
    refused(path, "'model', 'ema'", "key=")
    check(path, model, key="model")
    check(path, base(2), key="ema")
    refused(path, "'model', 'ema'", key="emma")


def test_deeper_nesting_asks_and_nothing_inside_is_an_error(model, tmp_path):
    path = saved({"checkpoint": {"model": model.state_dict()}}, tmp_path / "m.pth")
    refused(path, "'checkpoint/model'", "key=")
    check(path, model, key="checkpoint/model")
    refused(saved({"epoch": 3, "lr": 0.1}, tmp_path / "m.pth"), "none, only epoch, lr")
    refused(saved({}, tmp_path / "m.pth"), "none")


# Devices and dtypes


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_case_35_a_file_from_two_cards(model, tmp_path, on_card, legacy):
    path = saved(model.state_dict(), tmp_path / "m.pth", legacy)
    with pytest.raises(RuntimeError, match=r"CUDA|cuda"):
        torch.load(path)
    look = checkpoint_files.inspect(path)
    assert look.devices.keys() == {"cuda:0", "cuda:1"}
    assert sum(look.devices.values()) == len(look.tensors) == len(model.state_dict())
    assert (look.format, look.dtypes) == (
        "legacy" if legacy else "zip",
        {"float32": len(look.tensors)},
    )
    name = "encoder.layer.0.attention.self.query.weight"
    assert look.tensors[name] == ((32, 32), "float32", "cuda:1")
    check(path, model)


def test_case_35_a_card_asked_for_says_why_there_is_none(model, tmp_path, monkeypatch):
    path = saved(model.state_dict(), tmp_path / "m.pth")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for reason in ("no NVIDIA card", "a CPU-only build", "Macs have no CUDA"):
        monkeypatch.setattr(
            checkpoints.cuda,
            "cuda_status",
            lambda r=reason: cuda.CudaStatus(False, r),
        )
        refused(path, "'cuda' was asked for", reason, device="cuda")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_case_25_half_precision_files(tmp_path, dtype, form):
    half = base().to(dtype)
    path = tmp_path / "m.pth"
    if form == "safetensors":
        checkpoints.save(half, path)
    else:
        saved(half.state_dict(), path, form == "legacy")
    assert checkpoint_files.inspect(path).dtypes == {str(dtype)[6:]: len(half.state_dict())}
    report = check(path, half.float())
    assert set(report.dtypes.values()) == {f"{dtype} -> float32".replace("torch.", "")}
    assert checkpoints.load(path, lambda: BertModel(CONFIG), dtype=dtype).model.dtype == dtype


# Trust


def test_case_37_harmless_objects_by_name(model, tmp_path):
    path = tmp_path / "m.pth"
    content = {
        "model": model.state_dict(), "best": np.float64(0.5), "args": argparse.Namespace(lr=0.1), "metrics": Metrics(),
        "path": tmp_path, "date": datetime.date.today(), "history": np.arange(3),
    }  # fmt: skip
    saved(content, path)
    look = checkpoint_files.inspect(path)
    assert set(look.refused) == set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    assert {"argparse.Namespace", f"{__name__}.Metrics"} < set(look.refused) < set(look.globals)
    assert look.nesting["metrics"] == f"{__name__}.Metrics"
    before = set(torch.serialization.get_safe_globals())
    refused(path, *look.refused, "allow=[...]")
    check(path, model, allow=look.refused)
    refused(
        path,
        "argparse.Namespace",
        allow=[name for name in look.refused if name != "argparse.Namespace"],
    )
    assert set(torch.serialization.get_safe_globals()) == before


class Payload:
    """A pickle can name any function with any arguments; this one only leaves a mark."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_nothing_in_a_file_ever_runs(model, tmp_path, legacy, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    mark = tmp_path / "mark"
    for function in (shutil.copy, subprocess.call, eval, shutil.rmtree, sys.setrecursionlimit):
        name = f"{function.__module__}.{function.__name__}"
        arguments = (__file__, str(mark)) if function is shutil.copy else ()
        path = saved(
            {"model": model.state_dict(), "x": Payload(function, *arguments)},
            tmp_path / "m.pth",
            legacy,
        )
        assert name in checkpoint_files.inspect(path).refused
        refused(path, name)
        refused(path, f"{name} can do more than hold values", allow=[name])
        assert not mark.exists()
    torch.load(
        saved(Payload(shutil.copy, __file__, str(mark)), tmp_path / "m.pth"), weights_only=False
    )
    assert mark.exists()  # it would have worked


@pytest.mark.parametrize(
    "name",
    ["subprocess.Popen", "os.system", "builtins.getattr", "torch.load", "numpy.load", "no.such"],
)
def test_what_can_act_is_never_allowed(model, tmp_path, name):
    path = saved({"model": model.state_dict(), "x": Metrics()}, tmp_path / "m.pth")
    refused(path, name, allow=[f"{__name__}.Metrics", name])


def test_case_38_a_whole_model_needs_its_class(tmp_path):
    script = "import torch\nclass Net(torch.nn.Linear): pass\nnet = Net(2, 2)\ntorch.save(net, 'zip.pth')\n"
    (tmp_path / "train.py").write_text(
        script + "torch.save(net, 'old.pth', _use_new_zipfile_serialization=False)\n"
    )
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True)
    for path in (tmp_path / "zip.pth", tmp_path / "old.pth"):
        assert checkpoint_files.inspect(path).whole == "__main__.Net"
        refused(
            path, "whole model", "__main__.Net", "model.state_dict()", build=lambda: nn.Linear(2, 2)
        )
        with pytest.raises(AttributeError, match="__main__"):
            torch.load(path, weights_only=False)
    allow = checkpoint_files.inspect(tmp_path / "zip.pth").refused
    refused(
        tmp_path / "zip.pth",
        "needs what it names, and __main__.Net is not here",
        build=base,
        allow=allow,
    )


def test_case_38_a_whole_model_whose_class_is_here(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    path = saved(net, tmp_path / "m.pth")
    check(
        path,
        net,
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        allow=checkpoint_files.inspect(path).refused,
    )


def rewritten(path, change=lambda name, data: data, compression=zipfile.ZIP_STORED):
    """The same archive, written by another program."""
    target = path.with_suffix(".new")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return target


def test_a_class_that_acts_is_refused_under_any_name(model, tmp_path):
    mark = tmp_path / "mark"
    copy = "import shutil, sys; shutil.copy(*sys.argv[1:])"
    payload = Payload(refused, [sys.executable, "-c", copy, __file__, str(mark)])
    path = saved({"model": model.state_dict(), "x": payload}, tmp_path / "m.pth")
    old, new = f"c{__name__}\nrefused\n".encode(), f"c{__name__}\nsubprocess.Popen\n".encode()
    path = rewritten(path, lambda name, data: data.replace(old, new))
    name = f"{__name__}.subprocess.Popen"
    assert checkpoint_files.inspect(path).refused == [name]
    refused(path, f"{name} can do more than hold values", allow=[name])
    assert not mark.exists()


@pytest.mark.parametrize(
    "theirs", ["pathlib\nWindowsPath", "pathlib\nPosixPath", "pathlib._local\nPosixPath"]
)
def test_case_37_paths_of_another_system(model, tmp_path, theirs):
    ours = f"c{type(tmp_path).__module__}\n{type(tmp_path).__name__}\n".encode()
    path = saved({"model": model.state_dict(), "where": tmp_path}, tmp_path / "m.pth")
    path = rewritten(path, lambda name, data: data.replace(ours, f"c{theirs}\n".encode()))
    assert checkpoint_files.inspect(path).refused == [theirs.replace("\n", ".")]
    check(path, model, allow=checkpoint_files.inspect(path).refused)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_case_40_an_archive_that_was_packed_again(model, tmp_path, compression):
    check(rewritten(saved(model.state_dict(), tmp_path / "m.pth"), compression=compression), model)


# Broken files


def broken(kind, model, path):
    whole = saved(model.state_dict(), path).read_bytes()
    if kind.startswith("legacy"):
        whole = saved(model.state_dict(), path, legacy=True).read_bytes()
    if kind.startswith("safetensors"):
        checkpoints.save(model, path)
        whole = path.read_bytes()
    if kind == "newer":
        return rewritten(
            path, lambda name, data: b"99\n" if name.endswith("/version") else data
        ).read_bytes()
    if kind.endswith("protocol"):
        torch.save(model.state_dict(), path, pickle_protocol=4)
        return path.read_bytes()
    return {
        "empty": b"",
        "ten_bytes": whole[:10],
        "half": whole[: len(whole) // 2],
        "last_byte": whole[:-1],
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 438\n",
        "html": b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>",
        "marked_html": b"\xef\xbb\xbf<html><title>Sign in</title></html>",
        "json": b'{"error": "Repository not found"}',
        "gzip": b"\x1f\x8b\x08\x00" + whole[:1000],
        "numpy": b"\x93NUMPY\x01\x00" + whole[:1000],
        "text": b"these are the weights of a model, honestly",
        "pickle": pickle.dumps({"w": np.zeros(3)}),
        "pickle_9": b"\x80\x09" + whole[2:],
        "zip": b"PK\x03\x04 PK\x05\x06" + whole[:100],
        "middle": whole[:3000] + b"\0" * 500 + whole[3500:],
    }[re.sub("^(legacy|safetensors)_", "", kind)]


BROKEN = {
    "empty": r"\(size 0\) is incomplete", "ten_bytes": r"\(size 10\) is incomplete", "half": "is incomplete",
    "last_byte": "is incomplete|is damaged", "lfs": "Git LFS pointer", "html": "web page", "json": "JSON",
    "gzip": "packed archive", "numpy": "NumPy", "text": "no known checkpoint", "pickle": "plain pickle",
    "pickle_9": "protocol 9, newer", "zip": "zip archive", "middle": "Bad CRC|checksum", "newer": "newer format",
    "pickle_protocol": "pickle protocol 4", "legacy_half": "is incomplete", "legacy_last_byte": "is incomplete",
    "safetensors_half": "is incomplete", "safetensors_last_byte": "is incomplete",
    "safetensors_ten_bytes": "incomplete", "marked_html": "web page",
    "safetensors_middle": "damaged",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "cause"), BROKEN.items(), ids=BROKEN)
def test_case_40_broken_files_name_their_cause(model, tmp_path, kind, cause):
    path = tmp_path / "m.pth"
    content = broken(kind, model, path)
    path.write_bytes(content)
    error = refused(path, path.name)
    assert re.search(cause, str(error)), error
    if re.search("is incomplete|is damaged", str(error)):
        assert error.__cause__ is not None
        assert f"{len(content):,}" in str(error)
    assert path.read_bytes() == content


def test_directories_and_missing_files(model, tmp_path):
    model.save_pretrained(tmp_path)
    refused(tmp_path, "directory", "model.safetensors")
    with pytest.raises(FileNotFoundError):
        checkpoints.load(tmp_path / "none.pth", base())


def test_files_under_another_name(model, tmp_path):
    checkpoints.save(model, tmp_path / "m.pth")
    saved(model.state_dict(), tmp_path / "m.safetensors")
    assert checkpoint_files.inspect(tmp_path / "m.pth").format == "safetensors"
    assert check(tmp_path / "m.pth", model).checked == "SHA-256"
    assert check(tmp_path / "m.safetensors", model).checked == "CRC-32"


def test_torchscript_is_named(tmp_path):
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "m.pt")
    refused(tmp_path / "m.pt", "TorchScript")


def test_a_zip_without_checksums_is_read_and_said_so(model, tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        saved(model.state_dict(), tmp_path / "m.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert check(tmp_path / "m.pth", model).checked.startswith("nothing")


# Buffers, meta, memory


class Scaled(PreTrainedModel):
    """A class of one's own that transformers fills carelessly: nothing sets its non-persistent buffer again."""

    config_class = BertConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.linspace(0, 1, 4), persistent=False)
        self.post_init()


def test_case_07_non_persistent_buffers_are_those_of_a_new_model(tmp_path):
    fresh = Scaled(CONFIG)
    fresh.save_pretrained(tmp_path)
    careless = Scaled.from_pretrained(tmp_path)
    careless.table.fill_(float("nan"))  # what happens to lie in memory
    report = checkpoints.load(tmp_path / "model.safetensors", careless)
    assert "computed the buffer table anew" in str(report)
    for got in (
        careless,
        checkpoints.load(tmp_path / "model.safetensors", lambda: Scaled(CONFIG)).model,
    ):
        assert torch.equal(got.table, torch.linspace(0, 1, 4))
        assert torch.equal(got.linear.weight, fresh.linear.weight)


def test_case_08_a_model_built_on_meta(model, tmp_path):
    path = saved(model.state_dict(), tmp_path / "m.pth")
    with torch.device("meta"):
        empty, plain = BertModel(CONFIG).eval(), Honest()
        plain.register_buffer("table", torch.ones(2), persistent=False)
    checkpoints.load(path, empty)
    same(empty.to("cpu"), model)
    path = saved(Honest().state_dict(), tmp_path / "m.pth")
    refused(path, "table would stay on meta", "a function that builds", build=plain)


def test_nothing_is_allocated_before_the_weights():
    with checkpoints._parameters_on_meta():
        built = BertForMaskedLM(CONFIG)
    assert {parameter.device.type for parameter in built.parameters()} == {"meta"}
    assert {buffer.device.type for buffer in built.buffers()} == {"cpu"}
    assert built.cls.predictions.decoder.weight is built.bert.embeddings.word_embeddings.weight
    assert next(nn.Linear(1, 1).parameters()).device.type == "cpu"


# Saving


@pytest.mark.parametrize("full", [True, False], ids=["both_names", "one_name"])
def test_tied_weights(tmp_path, full):
    torch.manual_seed(3)
    tied = BertForMaskedLM(CONFIG).eval()
    state = tied.state_dict()
    path, one = tmp_path / "m.pth", "cls.predictions.decoder.weight"
    saved({name: value for name, value in state.items() if full or name != one}, path)
    got = check(path, tied, lambda: BertForMaskedLM(CONFIG)).model
    assert got.cls.predictions.decoder.weight is got.bert.embeddings.word_embeddings.weight
    checkpoints.save(tied, path)
    assert path.stat().st_size < sum(value.nbytes for value in state.values())
    got = check(path, tied, lambda: BertForMaskedLM(CONFIG)).model
    assert got.cls.predictions.decoder.weight is got.bert.embeddings.word_embeddings.weight
    saved(state | {one: state[one] + 1}, path)
    refused(
        path,
        "is tied to bert.embeddings.word_embeddings.weight in the model, not",
        build=lambda: BertForMaskedLM(CONFIG),
    )


def test_save_is_read_by_others_and_leaves_nothing_half_written(model, tmp_path):
    path = tmp_path / "model.safetensors"
    checkpoints.save(model, path)
    state = safetensors.torch.load_file(path)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    model.config.save_pretrained(tmp_path)
    same(AutoModel.from_pretrained(tmp_path), model)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="extra"):
        checkpoints.save(dict(model.state_dict()) | {"extra": "text"}, path)
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_save_of_views_and_turned_tensors(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    state = {
        "row": whole[1],
        "turned": whole.T,
        "whole": whole,
        "number": torch.tensor(7),
        "none": torch.zeros(0, 3),
    }
    checkpoints.save(state, tmp_path / "m.safetensors")
    got = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert all(torch.equal(got[name], value) for name, value in state.items())


def test_save_names_what_it_cannot_hold(tmp_path):
    for state in (
        {0: torch.ones(2)},
        {"a": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)},
    ):
        with pytest.raises(CheckpointError, match="has no numbers that safetensors can hold"):
            checkpoints.save(state, tmp_path / "m.safetensors")
    assert not [*tmp_path.iterdir()]


def test_case_43_a_folder_with_only_a_bin_file(model, tmp_path):
    model.config.save_pretrained(tmp_path)
    old = saved(model.state_dict(), tmp_path / "pytorch_model.bin", legacy=True)
    checkpoints.convert(old, tmp_path / "model.safetensors")
    old.unlink()
    same(AutoModel.from_pretrained(tmp_path), model)


# Optimizers


def trained(steps=2):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    return net, optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_case_39_resume_gives_the_same_next_step(tmp_path, on_card, dtype):
    net, optimizer = trained()
    path = saved(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2},
        tmp_path / "m.pth",
    )
    other = checkpoints.load(
        path, lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), dtype=dtype
    ).model.train()
    resumed = torch.optim.AdamW(other.parameters(), lr=0.5)
    checkpoints.load_optimizer(path, resumed)
    for one, its in ((net, optimizer), (other, resumed)):
        its.zero_grad()
        one(torch.ones(1, 4, dtype=next(one.parameters()).dtype)).sum().backward()
        its.step()
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b.float())
    assert all(
        s["exp_avg"].device == p.device and s["exp_avg"].dtype == p.dtype
        for p, s in resumed.state.items()
    )


def test_case_39_state_of_other_weights(tmp_path):
    _, optimizer = trained()
    path = saved({"optim": optimizer.state_dict()}, tmp_path / "m.pth")
    for net, words in (
        (nn.Linear(4, 4), "groups"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), "no weight"),
    ):
        fresh = torch.optim.AdamW(net.parameters())
        with pytest.raises(CheckpointError, match=words):
            checkpoints.load_optimizer(path, fresh)
        assert not fresh.state
    path = saved({"g": optimizer.state_dict(), "d": optimizer.state_dict()}, tmp_path / "m.pth")
    with pytest.raises(CheckpointError, match="'g', 'd'"):
        checkpoints.load_optimizer(path, optimizer)


def test_case_39_state_of_another_kind_or_in_another_order(tmp_path):
    net, optimizer = trained()
    named = torch.optim.AdamW(
        [(f"module.{name}", weight) for name, weight in net.named_parameters()]
    )
    adam = saved(optimizer.state_dict(), tmp_path / "adam.pth")
    names = saved(named.state_dict(), tmp_path / "names.pth")
    sgd = saved(torch.optim.SGD(net.parameters(), momentum=0.9).state_dict(), tmp_path / "sgd.pth")
    ours, turned = list(net.named_parameters()), list(net.named_parameters())[::-1]
    crossed = [ours[1], ours[0], *ours[2:]]
    checkpoints.load_optimizer(names, torch.optim.AdamW(ours))
    for path, fresh, words in (
        (sgd, torch.optim.AdamW(ours), "another kind of optimizer, with dampening"),
        (adam, torch.optim.SGD(ours, momentum=0.9), "another kind of optimizer, with amsgrad"),
        (names, torch.optim.AdamW(turned), "its optimizer has the weights module.0.weight"),
        (adam, torch.optim.AdamW(crossed), "belongs to no weight"),
    ):
        with pytest.raises(CheckpointError, match=words):
            checkpoints.load_optimizer(path, fresh)
        assert not fresh.state


# 200 mutations


def mutated(rng, kind, model, path):
    """Writes a damaged or rewritten checkpoint to `path`; the kinds are those that happen to files and to dicts."""
    state, form = dict(model.state_dict()), rng.choice(["zip", "zip", "legacy", "safetensors"])
    names = sorted(state)
    if kind == "renamed":
        for name in rng.sample(names, rng.choice([1, 3])):
            state[
                rng.choice(
                    [
                        name + "_",
                        name.upper(),
                        "x." + name,
                        name.replace("layer", "layers"),
                        name[:-1],
                    ]
                )
            ] = state.pop(name)
    elif kind == "prefixed":
        some = names if rng.random() < 0.7 else rng.sample(names, 5)
        prefix = "".join(
            rng.choice(["module.", "_orig_mod.", "model.", "bert."])
            for _ in range(rng.randint(1, 3))
        )
        state = {prefix * (name in some) + name: value for name, value in state.items()}
    elif kind == "retyped":
        for name in rng.sample(names, 3):
            state[name] = state[name].to(rng.choice([torch.float64, torch.int64, torch.int8]))
    elif kind == "swapped":  # shapes: one row less, transposed, flattened
        name = rng.choice(names)
        state[name] = rng.choice(
            [state[name][1:], state[name].flatten()[None, None], state[name].double()[..., :-1]]
        )
    if form == "safetensors":
        checkpoints.save(state, path)
    else:
        content = state
        for _ in range(rng.randint(1, 2) if kind == "wrapped" else 0):
            content = {
                rng.choice(["model", "state_dict", "net"]): content,
                "epoch": 3,
                "rng": torch.zeros(5),
            }
            content |= rng.choice(
                [{}, {"ema": state}, {"optimizer": {"state": {}, "param_groups": []}}]
            )
        saved(content, path, form == "legacy")
    data = bytearray(path.read_bytes())
    # A legacy file has no checksum, so nobody could tell a changed number in it: there only the pickles change.
    pickled = (
        len(data) if form != "legacy" else len(data) - sum(v.nbytes for v in state.values()) - 900
    )
    if kind == "truncated":
        data = data[: rng.choice([rng.randrange(len(data)), len(data) - 1, rng.randrange(40)])]
    elif kind == "flipped":
        # A legacy file has no checksum, so no reader could tell a changed number in it: there only the pickles change.
        for place in (
            rng.sample(range(pickled), rng.choice([1, 1, 20]))
            if rng.random() < 0.8
            else [rng.randrange(60)]
        ):
            data[place] ^= 1 << rng.randrange(8)
    elif kind == "filled":
        start, length = rng.randrange(pickled), rng.choice([1, 512, 4096])
        length = min(length, pickled - start)
        data[start : start + length] = bytes(length)
    path.write_bytes(data)


KINDS = [
    "truncated",
    "flipped",
    "renamed",
    "prefixed",
    "wrapped",
    "retagged",
    "retyped",
    "swapped",
    "filled",
    "flipped",
]


def test_200_mutations_end_in_the_right_weights_or_a_named_cause(model, tmp_path, on_card):
    path, errors, right = tmp_path / "m.pth", [], set()
    for seed in range(200):
        rng, kind = random.Random(seed), KINDS[seed % len(KINDS)]
        mutated(rng, kind, model, path)
        try:
            report = checkpoints.load(path, lambda: BertModel(CONFIG))
        except CheckpointError as error:
            errors.append((path.name in str(error), seed, kind, str(error)))
        else:
            same(report.model, model)
            right.add(seed)
    assert all(named and len(text) > 40 for named, _, _, text in errors)
    assert min(len(errors), len(right)) > 30
