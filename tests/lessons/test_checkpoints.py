"""checkpoints: files from other machines end in the right weights or an error with its cause."""

import argparse
import datetime
import pickle
import random
import re
import shutil
import subprocess
import sys
import zipfile

from conftest import TINY
from helpers.lessons import checkpoint_files, checkpoints
from helpers.lessons.checkpoint_files import CheckpointError
from helpers.recipes import load_checkpoint as recipe

import numpy as np
import peft
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

CONFIG = BertConfig(**TINY)
IDS = torch.arange(24).reshape(2, 12)
WORDS = "bert.embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"


class Counts(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("w", torch.ones(2).to(dtype))


@pytest.mark.parametrize(
    ("value", "into"),
    [
        (torch.full((2,), 200, dtype=torch.uint8), torch.int8),
        (torch.tensor([-1, 1], dtype=torch.int8), torch.uint8),
        (torch.full((2,), 1.5).to(torch.float8_e4m3fn), torch.int8),
        (torch.full((2,), 50000.0).to(torch.float8_e5m2), torch.float8_e4m3fn),
        (torch.tensor([7, 7], dtype=torch.int8), torch.float32),
        (torch.tensor([0.5, 1.5]), torch.int64),
    ],
)
def test_numbers_that_would_wrap_or_be_cut_are_refused(tmp_path, value, into):
    path = saved({"w": value}, tmp_path / "m.pth")
    refused(path, "w is ", build=lambda: Counts(into))
    with pytest.raises(TypeError, match="w is torch"):
        recipe.load_checkpoint(path, lambda: Counts(into))


def test_of_two_equal_parts_the_one_that_may_not_lack_is_filled(model, tmp_path):
    def build():
        return nn.ModuleDict({"question": BertModel(CONFIG), "context": BertModel(CONFIG)})

    path = saved(prefixed(model.state_dict(), "ctx."), tmp_path / "m.pth")
    refused(path, "the file fits question., context.", build=build)
    for lacking, filled in (("question", "context"), ("context", "question")):
        got = checkpoints.load(path, build, allow_missing=[lacking]).model
        same(got[filled], model)


class Metrics:
    """What a training script keeps beside its weights."""


def base(seed=1):
    torch.manual_seed(seed)
    return BertModel(CONFIG).eval()


def masked():
    return BertForMaskedLM(CONFIG)


@pytest.fixture(scope="module")
def model():
    return base()


@pytest.fixture
def on_gpu():
    """While it is on, torch.save tags big storages as cuda:1's, the others as cuda:0's."""
    entry = (0, lambda big: f"cuda:{int(big.nbytes() > 4000)}", lambda storage, location: None)
    torch.serialization._package_registry.insert(0, entry)
    yield
    torch.serialization._package_registry.remove(entry)


def saved(state, path, legacy=False):
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    return path


def written(state, path, form):
    if form == "safetensors":
        plain = {name: value.clone() for name, value in state.items()}  # nothing shared
        safetensors.torch.save_file(plain, path)
    else:
        saved(state, path, form == "legacy")


def prefixed(state, prefix):
    return {prefix + name: value for name, value in state.items()}


def check(path, wanted, build=lambda: BertModel(CONFIG), **options):
    """Load into a new model, and hold it against the right one: weights, buffers, result."""
    report = checkpoints.load(path, build, **options)
    same(report.model, wanted)
    return report


def same(got, wanted, run=True):
    for kind in ("state_dict", "named_buffers"):
        ours, theirs = dict(getattr(got, kind)()), dict(getattr(wanted, kind)())
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert torch.equal(value, theirs[name]), name
    if run and hasattr(wanted, "config"):
        with torch.no_grad():
            assert torch.equal(got(IDS)[0], wanted(IDS)[0])


def refused(path, *words, build=lambda: BertModel(CONFIG), **options):
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load(path, build, **options)
    for word in words:
        assert word in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    "prefix",
    [
        *("", "module.", "module.module.", "model.", "net.model.module."),
        *("module._orig_mod.", "_orig_mod.module.", "model._orig_mod.", "_orig_mod.model."),
    ],
)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_case_27_and_29_prefixes_of_wrappers(model, tmp_path, prefix, legacy):
    path = saved(prefixed(model.state_dict(), prefix), tmp_path / "m.pth", legacy)
    report = check(path, model)
    assert len(report.renamed) == (len(model.state_dict()) if prefix else 0)
    assert checkpoint_files.inspect(path).states == {"": prefix}


class Honest(nn.Module):
    """Has a layer that is really called module."""

    def __init__(self):
        super().__init__()
        self.body = nn.ModuleDict({"module": nn.Linear(2, 2), "other": nn.Linear(2, 2)})


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module."])
def test_case_29_an_honest_layer_called_module_stays(tmp_path, prefix):
    for build in (
        Honest,
        lambda: nn.DataParallel(nn.Linear(2, 2)),
        lambda: nn.ModuleDict({"module": nn.Linear(2, 2)}),
    ):
        wanted = build()
        path = saved(prefixed(wanted.state_dict(), prefix), tmp_path / "m.pth")
        check(path, wanted, build)
        same(recipe.load_checkpoint(path, build), wanted)


def test_a_wrapper_that_only_some_names_carry_is_taken_out_but_never_makes_two_one(model, tmp_path):
    state = model.state_dict()
    some = {n: state.pop(n) for n in list(state)[:5]}
    path = saved(state | prefixed(some, "module."), tmp_path / "m.pth")
    same(recipe.load_checkpoint(path, lambda: BertModel(CONFIG)), model)
    check(path, model)
    saved(state | some | prefixed(some, "module."), path)
    refused(path, "not in the model: module.embeddings.word_embeddings.weight")
    with pytest.raises(RuntimeError, match="Unexpected key"):
        recipe.load_checkpoint(path, lambda: BertModel(CONFIG))


def test_case_30_the_cure_that_loads_nothing(model, tmp_path):
    state = prefixed(model.state_dict(), "model.")
    pasted = base(2).load_state_dict(state, strict=False)
    assert len(pasted.missing_keys) == len(state)  # the pasted cure: no error
    assert check(saved(state, tmp_path / "m.pth"), model).loaded == list(model.state_dict())
    strange = {"x" + name.replace(".", "_"): value for name, value in model.state_dict().items()}
    path = saved(strange, tmp_path / "m.pth")
    refused(path, "0 of whose 39 weights")
    refused(path, "not in the model: x", allow_missing=["embeddings", "encoder", "pooler"])
    with pytest.raises(RuntimeError, match="Missing key"):
        recipe.load_checkpoint(path, lambda: BertModel(CONFIG))
    path = saved(state | {"loss_fn.weight": torch.ones(2)}, tmp_path / "m.ckpt")
    refused(path, "39 of whose 39", "not in the model: loss_fn.weight")


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_new_heads_are_named_and_untrained(model, tmp_path, prefix):
    path = saved(prefixed(model.state_dict(), prefix), tmp_path / "m.pth")
    options = {"build": lambda: BertForSequenceClassification(CONFIG)}
    refused(path, "not in the file: classifier.weight, classifier.bias", "allow_missing", **options)
    report = checkpoints.load(path, allow_missing=["classifier"], **options)
    assert report.missing == ["classifier.weight", "classifier.bias"]
    assert "new, untrained: classifier.weight, classifier.bias" in str(report)
    same(report.model.bert, model)
    head = report.model.classifier
    assert 0 < head.weight.std() < 0.1
    assert not head.bias.any()
    assert (head.weight.requires_grad, report.model.training) == (True, False)


@pytest.mark.parametrize("prefix", ["", "module.", "encoder._bert."])
def test_case_31_position_ids(model, tmp_path, prefix):
    state, name = prefixed(model.state_dict(), prefix), prefix + "embeddings.position_ids"
    path = saved(state | {name: torch.arange(64)[None]}, tmp_path / "m.pth")
    assert f"left out {name}" in str(check(path, model))
    path = saved(state | {name: torch.arange(64)[None] + 1}, tmp_path / "m.pth")
    refused(path, "not in the model: ")


def test_gamma_and_beta_of_old_files(model, tmp_path):
    state = {
        re.sub("(?<=LayerNorm.)weight", "gamma", re.sub("(?<=LayerNorm.)bias", "beta", name)): value
        for name, value in prefixed(model.state_dict(), "bert.").items()
    }
    report = check(saved(state, tmp_path / "m.bin", legacy=True), model)
    assert report.renamed["bert.embeddings.LayerNorm.gamma"] == "embeddings.LayerNorm.weight"
    state["bert.embeddings.LayerNorm.weight"] = state["bert.embeddings.LayerNorm.gamma"]
    refused(saved(state, tmp_path / "m.bin"), "embeddings.LayerNorm.weight twice")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(101, 32), "(101, 32), floating-point in the file"),
        (torch.zeros(100, 32, dtype=torch.int32), "integer in the file"),
        (torch.zeros(100, 32, dtype=torch.int8), "int8 in the file"),
        (torch.zeros(100, 32).to(torch.float8_e4m3fn), "float8_e4m3fn in the file"),
        (torch.zeros(100, 32, device="meta"), "without data"),
        (torch.zeros(100, 32).to_sparse(), "torch.sparse_coo in the file"),
        (torch.full((100, 32), 1e300, dtype=torch.float64), "torch.float32 cannot hold"),
        ("gone", "is a str"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_shapes_and_kinds_of_number(model, tmp_path, value, words):
    name = "embeddings.word_embeddings.weight"
    path = saved(model.state_dict() | {name: value}, tmp_path / "m.pth")
    refused(path, name, words)


def test_numbers_that_do_not_fit_or_are_none(model, tmp_path):
    name, path = "pooler.dense.bias", tmp_path / "m.pth"
    saved(model.state_dict() | {name: torch.full((32,), 1e6)}, path)
    refused(path, f"{name} has numbers", "float16", build=lambda: BertModel(CONFIG).half())
    saved(model.state_dict() | {name: torch.full((32,), torch.nan)}, path)
    report = checkpoints.load(path, lambda: BertModel(CONFIG))
    assert f"{name} holds numbers that are not finite" in str(report)
    counts = nn.BatchNorm1d(3).state_dict() | {"num_batches_tracked": torch.tensor(2**40)}
    small = nn.BatchNorm1d(3)
    small.num_batches_tracked = small.num_batches_tracked.int()
    refused(saved(counts, path), "num_batches_tracked has numbers", build=lambda: small)


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_case_25_half_precision_files(tmp_path, dtype, form):
    half, path = base().to(dtype), tmp_path / "m.pth"
    written(half.state_dict(), path, form)
    look, name = checkpoint_files.inspect(path), str(dtype).removeprefix("torch.")
    assert look.format == form
    assert {tensor.dtype for tensor in look.tensors.values()} == {name}
    assert checkpoints.load(path, lambda: BertModel(CONFIG).to(dtype)).model.dtype == dtype
    report = check(path, half.float())
    assert report.checked.startswith("CRC-32" if form == "zip" else "nothing")
    assert report.dtypes == {f"{name} to float32": len(half.state_dict())}
    same(recipe.load_checkpoint(path, lambda: BertModel(CONFIG)), half)


@pytest.mark.parametrize("names", ["both", "one"])
def test_tied_weights_stay_tied(tmp_path, names):
    tied, path = masked().eval(), tmp_path / "m.pth"
    state = tied.state_dict()
    if names == "one":
        del state[DECODER]
    for write in (torch.save, safetensors.torch.save_model):
        write(state if write is torch.save else tied, path)
        for got in (check(path, tied, masked).model, recipe.load_checkpoint(path, masked)):
            assert got.get_parameter(DECODER) is got.get_parameter(WORDS)
    assert path.stat().st_size < sum(v.nbytes for v in tied.state_dict().values())


def test_weights_that_differ_in_the_file_are_not_tied_in_silence(tmp_path):
    state, path = masked().state_dict(), tmp_path / "m.pth"
    saved(state | {DECODER: state[DECODER] + 1}, path)
    for load in (checkpoints.load, recipe.load_checkpoint):
        with pytest.raises(ValueError, match="are tied in the model, not in the file"):
            load(path, masked)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_what_is_tied_only_in_the_file_is_not_changed_together(tmp_path, legacy):
    state = masked().state_dict()
    path = saved(state, tmp_path / "m.pth", legacy)
    untied = BertConfig(**TINY, tie_word_embeddings=False)
    for load in (recipe.load_checkpoint, lambda *given: checkpoints.load(*given).model):
        got = load(path, lambda: BertForMaskedLM(untied))
        with torch.no_grad():
            got.get_parameter(DECODER).add_(1)
        assert torch.equal(got.get_parameter(WORDS), state[WORDS])


def test_new_weights_that_are_tied_stay_tied(tmp_path):
    state = {n: v for n, v in masked().state_dict().items() if n not in (WORDS, DECODER)}
    path = saved(state, tmp_path / "m.pth")
    got = checkpoints.load(path, masked, allow_missing=["word_embeddings", "decoder"]).model
    assert got.get_parameter(WORDS) is got.get_parameter(DECODER)
    assert 0 < got.get_parameter(WORDS).std() < 0.1


def test_stretched_tensors_and_parameters_in_the_place_of_buffers(tmp_path):
    wanted = nn.BatchNorm1d(3)
    changed = {"bias": torch.zeros(1).expand(3), "running_mean": nn.Parameter(torch.zeros(3))}
    path = saved(wanted.state_dict() | changed, tmp_path / "m.pth")
    got = check(path, wanted, lambda: nn.BatchNorm1d(3)).model
    assert "running_mean" in dict(got.named_buffers())
    assert not got.running_mean.requires_grad
    with torch.no_grad():
        got.bias += torch.arange(3)
    assert got.bias.tolist() == [0, 1, 2]


class Scaled(PreTrainedModel):
    """A class of one's own: nothing but its constructor says how its parts begin."""

    config_class = BertConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("table", torch.linspace(0, 1, 4), persistent=False)
        self.post_init()


def test_new_parts_never_hold_what_lay_in_memory(model, tmp_path):
    def build():
        parts = {"body": BertModel(CONFIG), "head": Scaled(CONFIG), "norm": nn.BatchNorm1d(3)}
        return nn.ModuleDict(parts)

    path = saved(model.state_dict(), tmp_path / "m.pth")
    got = checkpoints.load(path, build, allow_missing=["head", "norm"]).model
    same(got["head"], Scaled(CONFIG), run=False)
    same(got["norm"], nn.BatchNorm1d(3))
    same(got["body"], model)


def test_case_07_non_persistent_buffers_are_those_of_a_new_model(tmp_path):
    fresh, path = Scaled(CONFIG), tmp_path / "model.safetensors"
    fresh.save_pretrained(tmp_path)
    same(checkpoints.load(path, lambda: Scaled(CONFIG)).model, fresh, run=False)
    same(recipe.load_checkpoint(path, lambda: Scaled(CONFIG)), fresh, run=False)


def test_case_08_a_model_built_on_meta(model, tmp_path):
    path = saved(model.state_dict(), tmp_path / "m.pth")
    loaded = checkpoints.load(path, lambda: BertModel(CONFIG)).model
    assert not any(buffer.is_meta for buffer in loaded.buffers())

    def on_meta():
        with torch.device("meta"):
            return BertModel(CONFIG)

    refused(path, "embeddings.position_ids, embeddings.token_type_ids would stay", build=on_meta)


def test_nothing_is_allocated_before_the_weights(tmp_path):
    def build():
        net = masked()
        assert {parameter.device.type for parameter in net.parameters()} == {"meta"}
        assert {buffer.device.type for buffer in net.buffers()} == {"cpu"}
        assert net.get_parameter(DECODER) is net.get_parameter(WORDS)
        return net

    checkpoints.load(saved(masked().state_dict(), tmp_path / "m.pth"), build)
    assert next(nn.Linear(1, 1).parameters()).device.type == "cpu"


@pytest.mark.parametrize(
    "key", ["model_state_dict", "state_dict", "net_dict", "network", "model", "any name"]
)
def test_case_32_unwraps_one_level(model, tmp_path, key):
    optimizer = torch.optim.AdamW(base().parameters()).state_dict()
    content = {"epoch": 3, key: model.state_dict(), "optimizer": optimizer}
    path = saved(content | {"loss": torch.tensor(0.5)}, tmp_path / "m.pth")
    check(path, model)
    same(recipe.load_checkpoint(path, lambda: BertModel(CONFIG)), model)
    look = checkpoint_files.inspect(path)
    assert look.states == {key: ""}
    kinds = {"epoch": "int", key: "OrderedDict", "optimizer": "dict", "loss": "StoredTensor"}
    assert look.nesting == kinds


def test_case_32_asks_when_there_are_two(model, tmp_path):
    path = saved({"model": model.state_dict(), "ema": base(2).state_dict()}, tmp_path / "m.pth")
    refused(path, "'model', 'ema'", "key=")
    with pytest.raises(KeyError, match="'model', 'ema'"):
        recipe.read_state(recipe.read_file(path))
    check(path, model, key="model")
    check(path, base(2), key="ema")
    refused(path, "'model', 'ema'", key="emma")


def test_deeper_nesting_asks_and_nothing_inside_is_an_error(model, tmp_path):
    path = saved({"checkpoint": {"model": model.state_dict()}}, tmp_path / "m.pth")
    refused(path, "none, only checkpoint", "key=")
    check(path, model, key="checkpoint/model")
    for nothing in ({"epoch": 3, "lr": 0.1}, {}):
        refused(saved(nothing, tmp_path / "m.pth"), "none")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_case_35_a_file_from_two_gpus(model, tmp_path, on_gpu, legacy):
    path = saved(model.state_dict(), tmp_path / "m.pth", legacy)
    with pytest.raises(RuntimeError, match=r"CUDA|cuda"):
        torch.load(path)
    look = checkpoint_files.inspect(path)
    assert {tensor.device for tensor in look.tensors.values()} == {"cuda:0", "cuda:1"}
    assert len(look.tensors) == len(model.state_dict())
    assert look.format == ("legacy" if legacy else "zip")
    name = "encoder.layer.0.attention.self.query.weight"
    assert look.tensors[name] == ((32, 32), "float32", "cuda:1")
    check(path, model)
    same(recipe.load_checkpoint(path, lambda: BertModel(CONFIG)), model)


def test_case_37_harmless_objects_by_name(model, tmp_path):
    content = {
        "model": model.state_dict(), "best": np.float64(0.5), "args": argparse.Namespace(lr=0.1),
        "metrics": Metrics(), "date": datetime.date.today(), "history": np.arange(3),
    }  # fmt: skip
    path = saved(content, tmp_path / "m.pth")
    look = checkpoint_files.inspect(path)
    assert set(look.refused) == set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    assert look.nesting["metrics"] == f"{__name__}.Metrics"
    before = set(torch.serialization.get_safe_globals())
    refused(path, *look.refused, "allow_globals=[...]")
    numpy = [np._core.multiarray.scalar, np._core.multiarray._reconstruct, np.ndarray, np.dtype]
    harmless = [*numpy, Metrics, datetime.date]
    check(path, model, allow_globals=[*harmless, argparse.Namespace])
    refused(path, "argparse.Namespace", allow_globals=harmless)
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
    mark, path = tmp_path / "mark", tmp_path / "m.pth"
    for function in (shutil.copy, subprocess.call, eval, shutil.rmtree, sys.setrecursionlimit):
        name = f"{function.__module__}.{function.__name__}"
        arguments = (__file__, str(mark)) if function is shutil.copy else ()
        content = {"model": model.state_dict(), "x": Payload(function, *arguments)}
        saved(content, path, legacy)
        assert name in checkpoint_files.inspect(path).refused
        refused(path, name)
        refused(path, name, allow_globals=[argparse.Namespace])
        with pytest.raises(pickle.UnpicklingError):
            recipe.read_state(recipe.read_file(path))
        assert not mark.exists()
    torch.load(saved(Payload(shutil.copy, __file__, str(mark)), path), weights_only=False)
    assert mark.exists()  # it would have worked


def test_case_38_a_whole_model_needs_its_class(tmp_path, run_python):
    code = """
        import sys, torch
        class Net(torch.nn.Linear): pass
        for path, form in zip(sys.argv[1:], (True, False)):
            torch.save(Net(2, 2), path, _use_new_zipfile_serialization=form)
    """
    paths = [tmp_path / "zip.pth", tmp_path / "legacy.pth"]
    run_python(code, *paths, PYTHONWARNINGS="ignore")
    for path in paths:
        look = checkpoint_files.inspect(path)
        assert (look.format, look.whole) == (path.stem, "__main__.Net")
        refused(path, "whole model", "__main__.Net", "state_dict()")
        with pytest.raises(AttributeError, match="__main__"):
            torch.load(path, weights_only=False)


def rewritten(path, change=lambda name, data: data, compression=zipfile.ZIP_STORED):
    """The same archive, written by another program."""
    target = path.with_suffix(".new")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return target


def half(whole):
    return whole[: len(whole) // 2]


BROKEN = [
    ("zip", lambda whole: b"", r"\(0 bytes\) is incomplete"),
    ("zip", half, "is incomplete"),
    ("zip", lambda whole: whole[:3000] + b"\0" * 500 + whole[3500:], "Bad CRC|checksum"),
    ("zip", lambda whole: b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
    ("zip", lambda whole: b"<!DOCTYPE html><html><title>Sign in</title>", "web page"),
    ("zip", lambda whole: b'{"error": "Repository not found"}', "JSON"),
    ("zip", lambda whole: b"\x1f\x8b\x08\x00" + whole[:1000], "packed archive"),
    ("zip", lambda whole: b"these are the weights, honestly", "not a known checkpoint"),
    ("zip", lambda whole: pickle.dumps({"w": np.zeros(3)}), "plain pickle"),
    ("zip", lambda whole: b"PK\x03\x04 PK\x05\x06" + whole[:100], "zip archive|incomplete"),
    ("legacy", half, "is incomplete"),
    ("safetensors", half, "is incomplete"),
    ("safetensors", lambda whole: whole[:100] + b"\0" * 500 + whole[600:], "is corrupted"),
]


@pytest.mark.parametrize(("form", "damage", "cause"), BROKEN)
def test_case_40_broken_files_name_their_cause(model, tmp_path, form, damage, cause):
    path = tmp_path / "m.pth"
    written(model.state_dict(), path, form)
    content = damage(path.read_bytes())
    path.write_bytes(content)
    error = refused(path, path.name)
    assert re.search(cause, str(error)), error
    if re.search("is incomplete|is corrupted", str(error)):
        assert error.__cause__ is not None
        assert f"{len(content):,}" in str(error)
    assert path.read_bytes() == content


def test_other_formats_in_a_zip_are_refused(model, tmp_path):
    path = saved(model.state_dict(), tmp_path / "m.pth")
    newer = rewritten(path, lambda name, data: b"99\n" if name.endswith("/version") else data)
    refused(newer, "version 99")
    torch.save(model.state_dict(), path, pickle_protocol=4)
    refused(path, "Unsupported op")
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), path)
    refused(path, "TorchScript")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_case_40_an_archive_that_was_packed_again(model, tmp_path, compression):
    check(rewritten(saved(model.state_dict(), tmp_path / "m.pth"), compression=compression), model)


def test_case_43_a_folder_with_only_a_bin_file(model, tmp_path):
    model.config.save_pretrained(tmp_path)
    old = saved(model.state_dict(), tmp_path / "pytorch_model.bin", legacy=True)
    converted = checkpoints.load(old, lambda: BertModel(CONFIG)).model
    safetensors.torch.save_model(converted, tmp_path / "model.safetensors")
    old.unlink()
    same(AutoModel.from_pretrained(tmp_path), model)


WRAPPERS = {
    "all compiled": torch.compile,
    "all in DataParallel": nn.DataParallel,
    "a compiled body": lambda net: net.__setattr__("bert", torch.compile(net.bert)),
    "a body in DataParallel": lambda net: net.__setattr__("bert", nn.DataParallel(net.bert)),
    "compiled layers": lambda net: [
        net.bert.encoder.layer.__setitem__(at, torch.compile(layer))
        for at, layer in enumerate(net.bert.encoder.layer)
    ],
}


def classifier(seed=1):
    torch.manual_seed(seed)
    return BertForSequenceClassification(CONFIG).eval()


@pytest.mark.parametrize("kind", WRAPPERS)
def test_case_29_wrappers_anywhere_in_names_on_either_side(tmp_path, kind):
    def wrapped(net):
        made = WRAPPERS[kind](net)
        return made if isinstance(made, nn.Module) else net  # those in the middle change it

    wanted = classifier()
    path = saved(wrapped(classifier()).state_dict(), tmp_path / "m.pth")
    check(path, wanted, classifier)
    same(recipe.load_checkpoint(path, lambda: classifier(2)), wanted)
    path = saved(wanted.state_dict(), tmp_path / "m.pth")
    got = checkpoints.load(path, lambda: wrapped(classifier(2))).model.state_dict()
    assert all(map(torch.equal, got.values(), wanted.state_dict().values()))


@pytest.mark.parametrize("prefix", ["", "bert.", "model."])
@pytest.mark.parametrize(
    "around",
    [
        nn.DataParallel,
        torch.compile,
        lambda net: nn.ModuleDict({"net": nn.ModuleDict({"inner": net}), "more": nn.Linear(2, 2)}),
    ],
    ids=["DataParallel", "compile", "two levels"],
)
def test_a_body_is_found_at_any_depth_of_the_model(model, tmp_path, prefix, around):
    path = saved(prefixed(model.state_dict(), prefix), tmp_path / "m.pth")
    report = checkpoints.load(
        path, lambda: around(classifier(2)), allow_missing=["classifier", "more"]
    )
    bodies = [part for part in report.model.modules() if isinstance(part, BertModel)]
    same(bodies[0], model)
    assert all("classifier" in name or "more" in name for name in report.missing)


def test_a_name_that_the_model_has_is_not_brought_up_to_date(tmp_path):
    class Old(nn.Module):
        def __init__(self):
            super().__init__()
            self.LayerNorm = nn.ParameterDict({"gamma": torch.ones(3), "beta": torch.zeros(3)})

    wanted = Old()
    check(saved(wanted.state_dict(), tmp_path / "m.pth"), wanted, Old)


def test_a_model_in_several_files(model, tmp_path):
    sharded = tmp_path / "sharded"
    model.save_pretrained(sharded, max_shard_size="40KB")
    index = sharded / "model.safetensors.index.json"
    for path in (sharded, index):
        check(path, model)
    first, *others = sorted(sharded.glob("model-*"))
    refused(first, "one of the files of a model that is saved in several", ".index.json")
    with pytest.raises(CheckpointError, match="index of a model in several files"):
        checkpoint_files.inspect(index)
    content = others[0].read_bytes()
    others[0].unlink()
    refused(sharded, f"names {others[0].name}: not beside it", allow_missing=["encoder"])
    shutil.copy(first, others[0])
    refused(sharded, "differ, they are mixed")
    others[0].write_bytes(content[:-1])
    refused(sharded, others[0].name, "incomplete")
    index.write_text('{"weight_map"')
    refused(sharded, index.name, "corrupted")


def test_an_adapter_is_named_and_loaded_on_its_base(tmp_path):
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    wanted = peft.get_peft_model(base(), config).eval()
    wanted.save_pretrained(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    refused(file, "0 of whose 39", "PEFT adapter", "PeftModel.from_pretrained")
    refused(tmp_path, "PEFT adapter", "merge_and_unload")
    assert "PEFT adapter" in str(checkpoint_files.inspect(file))
    same(checkpoints.load_adapter(base(), tmp_path).merge_and_unload(), wanted.merge_and_unload())
    other = BertModel(BertConfig(**TINY | {"num_hidden_layers": 1}))
    with pytest.raises(CheckpointError, match="does not fit BertModel: base_model"):
        checkpoints.load_adapter(other, tmp_path)


def lightning(model, optimizers):
    content = {"epoch": 1, "pytorch-lightning_version": "2.5.0", "lr_schedulers": []}
    content["state_dict"] = prefixed(model.state_dict(), "model.")
    return content | {"optimizer_states": [one.state_dict() for one in optimizers]}


def stepped(net, trained=None):
    optimizer = torch.optim.AdamW(trained or net.parameters(), lr=1e-3)
    net(IDS)[0].sum().backward()
    optimizer.step()
    return optimizer


def test_case_39_an_optimizers_state_is_loaded_whole_or_refused(tmp_path):
    net, path = base(), tmp_path / "m.ckpt"
    wanted = stepped(net)
    contents = [wanted.state_dict(), {"optimizer": wanted.state_dict()}, lightning(net, [wanted])]
    for content in contents:
        optimizer = torch.optim.AdamW(net.parameters())
        checkpoints.load_optimizer(optimizer, saved(content, path))
        for parameter, state in optimizer.state.items():
            assert torch.equal(state["exp_avg"], wanted.state[parameter]["exp_avg"])
        assert optimizer.param_groups[0]["lr"] == 1e-3
    check(path, net)
    optimizer = torch.optim.AdamW(net.parameters())
    saved(lightning(net, [wanted, wanted]), path)
    with pytest.raises(CheckpointError, match="2 optimizers"):
        checkpoints.load_optimizer(optimizer, path)
    checkpoints.load_optimizer(optimizer, path, key="optimizer_states/1")
    with pytest.raises(CheckpointError, match="another optimizer, with settings"):
        checkpoints.load_optimizer(
            torch.optim.SGD(net.parameters()), path, key="optimizer_states/0"
        )
    named = list(net.named_parameters())
    saved(stepped(net, named).state_dict(), tmp_path / "named.pth")
    with pytest.raises(CheckpointError, match="another order"):
        checkpoints.load_optimizer(torch.optim.AdamW(named[::-1]), tmp_path / "named.pth")
    wide = BertModel(BertConfig(**TINY | {"intermediate_size": 48}))
    optimizer = torch.optim.AdamW(wide.parameters())
    with pytest.raises(CheckpointError, match="exp_avg of parameter"):
        checkpoints.load_optimizer(optimizer, path, key="optimizer_states/0")
    assert not optimizer.state
    refused(saved(wanted.state_dict(), path), "an optimizer's state without weights")


def zipped(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")


FOREIGN = [
    ("bert_model.ckpt.data-00000-of-00001", b"\1\2\3\4" * 9, "TensorFlow checkpoint"),
    ("bert_model.ckpt.index", b"\0\0\1\2" * 9, "TensorFlow checkpoint"),
    ("flax_model.msgpack", b"\x83\xa4bert" * 9, "Flax"),
    ("tf_model.h5", b"\x89HDF\r\n\x1a\n" * 9, "HDF5"),
    ("model.gguf", b"GGUF\3\0\0\0" * 9, "GGUF"),
    ("model.tflite", b"\x20\0\0\0TFL3" * 9, "TensorFlow Lite"),
    ("bert.keras", ("metadata.json", "config.json", "model.weights.h5"), "Keras 3 archive"),
    ("arrays.npz", ("w.npy",), "numpy.load"),
    ("model.zip", ("bert/config.json", "bert/model.safetensors"), "unpack it"),
    ("deepspeed", ("zero_to_fp32.py", "latest"), "DeepSpeed"),
    ("dcp", (".metadata", "__0_0.distcp"), "distributed checkpoint"),
    ("tf", ("bert_model.ckpt.index", "bert_config.json"), "TensorFlow checkpoint"),
    ("saved", ("saved_model.pb", "variables"), "SavedModel"),
    ("models--bert", ("blobs", "refs", "snapshots"), "snapshots/"),
    ("nothing", ("notes.txt",), "it holds notes.txt"),
]


@pytest.mark.parametrize(("name", "content", "words"), FOREIGN, ids=lambda value: str(value)[:20])
def test_files_and_folders_of_other_tools_are_named(tmp_path, name, content, words):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix:
        zipped(path, *content)
    else:
        path.mkdir()
        for member in content:
            (path / member).write_bytes(b"x")
    refused(path, name, words)


def damaged(rng, data, form, numbers):
    """Only zip has checksums: in the others, only what stands before the numbers changes."""
    data, kind = bytearray(data), rng.choice(["truncated", "flipped", "filled"])
    changed = {"zip": len(data), "legacy": len(data) - numbers - 900}.get(form, len(data) - numbers)
    if kind == "truncated":
        return data[: rng.choice([rng.randrange(len(data)), len(data) - 1, rng.randrange(40)])]
    for _ in range(rng.choice([1, 1, 20]) if kind == "flipped" else 0):
        data[rng.randrange(rng.choice([changed, 60]))] ^= 1 << rng.randrange(8)
    if kind == "filled":
        start = rng.randrange(changed)
        end = min(start + rng.choice([1, 512, 4096]), changed)
        data[start:end] = bytes(end - start)
    return data


def test_case_40_150_damaged_files_end_in_the_right_weights_or_a_named_cause(model, tmp_path):
    path, said = tmp_path / "m.pth", []
    numbers = sum(value.nbytes for value in model.state_dict().values())
    for seed in range(150):
        rng, form = random.Random(seed), ["zip", "legacy", "safetensors"][seed % 3]
        written(dict(model.state_dict()), path, form)
        path.write_bytes(damaged(rng, path.read_bytes(), form, numbers))
        try:
            report = checkpoints.load(path, lambda: BertModel(CONFIG))
        except CheckpointError as error:
            said.append(str(error))
        else:
            same(report.model, model)
    assert all(path.name in text for text in said)
    assert len(said) > 50
