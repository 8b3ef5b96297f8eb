"""int8 models: what became of every byte, what they cannot do, files with equal logits."""

import collections
import functools
import warnings

from helpers.core import machine, quiet
from helpers.lessons import onnx_export, onnx_inference, quantize_onnx, quantize_torch
from helpers.models import batching, inspection
from helpers.recipes import int8

import numpy as np
import onnx as onnx_package
import pytest
import torch
from onnxruntime.quantization import quantize_dynamic
from peft import LoraConfig, get_peft_model
from transformers import BertForMaskedLM, BertForSequenceClassification

WAYS = {
    "torch_dynamic": quantize_torch.torch_dynamic,
    "torch_per_channel": functools.partial(quantize_torch.torch_dynamic, per_channel=True),
    "torchao_weights": quantize_torch.torchao_int8,
    "torchao_dynamic": functools.partial(quantize_torch.torchao_int8, activations=True),
}


@pytest.fixture(scope="module")
def new(tiny_model):
    """Tiny models whose outputs depend on all that goes in (the usual weights are too small)."""

    def make(kind=BertForSequenceClassification, vocabulary=500):
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_labels": 3}
        model = tiny_model(kind, vocab_size=vocabulary, **sizes)
        with torch.no_grad():
            for weight in (p for p in model.parameters() if p.ndim == 2):
                weight.mul_(4)
        return model

    return make


def batch(size=8, length=24, seed=0):
    return batching.two_segments(size, length, 500, np.random.default_rng(seed))


def tensors():
    return {name: torch.from_numpy(array) for name, array in batch().items()}


def logits(model):
    with torch.inference_mode():
        return model(**tensors())[0]


def answers(path):
    return onnx_inference.run(onnx_inference.session(path, threads=1), batch())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def model(new):
    return new()


@pytest.fixture(scope="module")
def reports(model):
    return {way: make(model) for way, make in WAYS.items()}


@pytest.fixture(scope="module")
def written(model, tmp_path_factory):
    return onnx_export.export(model, tmp_path_factory.mktemp("onnx") / "model.onnx")


@pytest.fixture(scope="module")
def large(new, tmp_path_factory):
    """A file whose vocabulary is most of its bytes."""
    path = tmp_path_factory.mktemp("large") / "model.onnx"
    return onnx_export.export(new(vocabulary=20_000), path)


def close(got, expected):
    """Whether int8 moved the logits, by less than a quarter of how much they differ among texts."""
    return 0 < np.abs(got - expected).max() < 0.25 * np.asarray(expected).std(axis=0).max()


NARROW = {"reduced_range": True}
SETTINGS = []
for changes in ({}, NARROW, {"per_channel": False}):
    SETTINGS += [changes | {"weights": w} for w in ("int8", "uint8")]


@pytest.mark.parametrize("changes", SETTINGS)
def test_case_59_types_and_ranges_agree_here(model, written, tmp_path, changes):
    report = quantize_onnx.onnx_dynamic(written, tmp_path / "int8.onnx", **changes)
    expected, got = logits(model).numpy(), answers(report.path)
    agreement = (got.argmax(-1) == expected.argmax(-1)).mean()
    off = np.abs(got - expected).max()
    seen = f"labels agree on {agreement:.0%}, logits are {off:.3f} off, {machine.cpu_features()}"
    print(seen)  # pytest -s shows it
    # An x86 CPU without VNNI may saturate: there only the reduced range has to be close.
    wide = machine.has_int8_dot_product() or not machine.cpu_features().get("avx2")
    if changes.get("reduced_range") or wide:
        assert close(got, expected), seen
    assert len(report.replaced) == 14 + 3
    assert {array.dtype.name for array in matrices(report.path)} == {changes.get("weights", "int8")}


def matrices(path):
    """The int8 matrices of the linear layers in a file."""
    stored = onnx_package.load(path).graph.initializer
    wanted = [tensor for tensor in stored if "embeddings" not in tensor.name]
    arrays = [onnx_package.numpy_helper.to_array(tensor) for tensor in wanted]
    arrays = [array for array in arrays if array.itemsize == 1 and array.ndim == 2]
    assert len(arrays) == 14
    return arrays


@pytest.mark.parametrize(("wide", "largest"), [(False, 64), (True, 127)])
def test_case_59_reduced_range_uses_seven_bits(written, tmp_path, monkeypatch, wide, largest):
    """The recipe chooses it by itself where the CPU needs it."""
    with monkeypatch.context() as windows:
        windows.setattr(int8.Path, "exists", lambda path: False)
        windows.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx_vnni": wide})
        assert int8.has_int8_dot_product() == wide
    assert int8.has_int8_dot_product() == machine.has_int8_dot_product()
    monkeypatch.setattr(int8, "has_int8_dot_product", lambda: wide)
    with quiet.quiet():
        int8.quantize(written, tmp_path / "recipe.onnx")
    quantize_onnx.onnx_dynamic(written, tmp_path / "int8.onnx", reduced_range=not wide)
    for path in tmp_path.iterdir():
        assert max(np.abs(array.astype(int)).max() for array in matrices(path)) == largest


def test_one_scale_a_column_or_a_matrix(written, tmp_path):
    def scales(**options):
        options |= {"operators": ["MatMul"]}
        report = quantize_onnx.onnx_dynamic(written, tmp_path / "int8.onnx", **options)
        graph = onnx_package.load(report.path).graph
        sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        return {sizes[name.replace("_quantized", "_scale")] for name in report.replaced}

    assert scales() == {(64,), (128,), (3,)}
    assert scales(per_channel=False) <= {(), (1,)}


@pytest.mark.parametrize("opset", [23, 18])
def test_case_65_groups_of_a_file_are_the_models(model, tmp_path, monkeypatch, opset):
    """Counted are the model's own matrices, whatever the exporter called or turned them."""
    monkeypatch.setattr(onnx_export, "OPSET", opset)
    source = onnx_export.export(model, tmp_path / "model.onnx")
    report = quantize_onnx.onnx_dynamic(source, tmp_path / "int8.onnx")
    tables = sum(m.weight.nbytes for m in model.modules() if isinstance(m, torch.nn.Embedding))
    linear = sum(m.weight.nbytes for m in model.modules() if isinstance(m, torch.nn.Linear))
    assert (report.before["embeddings"], report.before["linear"]) == (tables, linear)
    assert (report.after["embeddings"], report.after["linear"]) == (tables / 4, linear / 4)
    assert report.before["other"] < 0.05 * sum(report.before.values())


def test_case_65_groups_of_a_file_add_up_to_its_size(large, tmp_path):
    """Without its stored numbers a file is the graph; the difference is what was counted."""
    report = quantize_onnx.onnx_dynamic(large, tmp_path / "int8.onnx")
    for path, groups in ((large, report.before), (report.path, report.after)):
        file = onnx_package.load(path)
        for tensor in file.graph.initializer:
            for field in ("raw_data", "float_data", "int32_data", "int64_data"):
                tensor.ClearField(field)
        framing = 16 * len(file.graph.initializer)  # lengths and field numbers of the format
        stored = path.stat().st_size - file.ByteSize()
        assert abs(stored - sum(groups.values())) <= framing
    assert report.ratio < 0.3
    assert f"{len(report.replaced)} weights in int8" in str(report)
    assert f"embeddings {report.before['embeddings'] / 1e6:.1f}" in str(report)


def test_the_quantizers_default_would_write_a_file_that_cannot_be_opened(written, tmp_path):
    with quiet.quiet():
        quantize_dynamic(written, tmp_path / "trap.onnx")
    with pytest.raises(Exception, match="QAttention"):
        onnx_inference.session(tmp_path / "trap.onnx")
    report = quantize_onnx.onnx_dynamic(written, tmp_path / "int8.onnx")
    nodes = onnx_package.load(report.path).graph.node
    operators = collections.Counter(node.op_type for node in nodes)
    assert (operators["Attention"], operators["QAttention"]) == (2, 0)
    assert answers(report.path).shape == (8, 3)


def test_case_65_nothing_to_replace_in_a_file_keeps_the_target(written, tmp_path):
    """An int8 file has nothing left to replace: the quantizer writes its copy without a word."""
    done = quantize_onnx.onnx_dynamic(written, tmp_path / "int8.onnx")
    (tmp_path / "again.onnx").write_text("old")
    with pytest.raises(ValueError, match=r"no weight of .*int8\.onnx became int8"):
        quantize_onnx.onnx_dynamic(done.path, tmp_path / "again.onnx")
    assert names(tmp_path) == ["again.onnx", "int8.onnx"]
    assert (tmp_path / "again.onnx").read_text() == "old"
    with quiet.quiet(), pytest.raises(ValueError, match="or is int8"):
        int8.quantize(done.path, tmp_path / "recipe.onnx")
    assert not (tmp_path / "recipe.onnx").exists()


@pytest.mark.parametrize("way", WAYS)
def test_case_61_logits_are_near_float32(model, reports, way):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert close(logits(reports[way].model).numpy(), logits(model).numpy())
    assert len(reports[way].replaced) == 14
    WAYS[way](model)
    assert not inspection.int8_modules(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [BertForSequenceClassification, BertForMaskedLM])
def test_case_65_groups_of_a_module_are_its_weights(new, way, kind):
    """Also where the output layer shares the table: one before, a table and a matrix after."""
    model = new(kind, vocabulary=20_000)
    report = WAYS[way](model)
    assert sum(report.before.values()) == sum(parameter.nbytes for parameter in model.parameters())
    tables = sum(m.weight.nbytes for m in model.modules() if isinstance(m, torch.nn.Embedding))
    assert report.after["embeddings"] == report.before["embeddings"] == tables
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    vectors = sum(parameter.nbytes for parameter in model.parameters() if parameter.ndim == 1)
    matrices = sum(m.weight.numel() for m in linear)  # a byte for each number
    scales = sum(report.after.values()) - tables - matrices - vectors
    assert 0 < scales <= 8 * sum(len(m.weight) for m in linear)


Linear2 = type("Linear2", (torch.nn.Linear,), {})
NOTHING = [("torch_dynamic", Linear2(8, 8)), *((way, torch.nn.Embedding(10, 8)) for way in WAYS)]


@pytest.mark.parametrize(("way", "layer"), NOTHING)
def test_case_65_nothing_to_replace_is_an_error(way, layer):
    with pytest.raises(ValueError, match="nothing was quantized"):
        WAYS[way](torch.nn.Sequential(layer))


@pytest.mark.parametrize("way", WAYS)
def test_an_int8_model_is_not_quantized_again(reports, way):
    with pytest.raises((ValueError, NotImplementedError), match=r"float is replaced|Int8Tensor"):
        WAYS[way](reports[way].model)


@pytest.mark.parametrize("way", WAYS)
def test_case_64_an_int8_model_is_not_exported(reports, tmp_path, way):
    with pytest.raises(ValueError, match="export the float model"):
        onnx_export.export(reports[way].model, tmp_path / "model.onnx")
    assert not names(tmp_path)


def adapted(model):
    config = LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    with warnings.catch_warnings(action="ignore"):  # peft's, on merging
        return get_peft_model(model, config)


def backward(model):
    model.train()
    model(**tensors(), labels=torch.arange(8) % 3).loss.backward()


def test_case_69_adapters_on_int8_weights_get_gradients(model):
    wrapped = adapted(quantize_torch.torchao_int8(model).model)
    backward(wrapped)
    for name, parameter in wrapped.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        assert ("lora_" in name) == reached, name


def test_case_69_adapters_below_int8_activations_are_refused(model):
    wrapped = adapted(quantize_torch.torchao_int8(model, activations=True).model)
    with pytest.raises(RuntimeError, match="does not require grad"):
        backward(wrapped)


@pytest.mark.parametrize("way", WAYS)
def test_case_69_a_training_around_int8_layers_raises(model, way):
    """It would go on without them: embeddings and norms have gradients of their own."""
    with pytest.raises(RuntimeError, match="does not require grad"):
        backward(WAYS[way](model).model)


@pytest.mark.parametrize("way", WAYS)
def test_case_62_the_usual_way_of_saving_stores_no_weights(reports, tmp_path, way):
    with pytest.raises((AttributeError, RuntimeError), match=r"data_ptr|data pointer"):
        reports[way].model.save_pretrained(tmp_path)
    assert names(tmp_path) == ["config.json"]


@pytest.mark.parametrize("way", WAYS)
def test_case_62_equal_logits_after_loading_into_int8(new, reports, tmp_path, way):
    torch.save(reports[way].model.state_dict(), tmp_path / "int8.pth")
    again = WAYS[way](type(new())(new().config)).model
    with quiet.quiet():  # torch remarks on how it stored its own packed weights
        state = torch.load(tmp_path / "int8.pth", weights_only=True)
    again.load_state_dict(state, assign="torchao" in way)
    assert torch.equal(logits(again), logits(reports[way].model))


@pytest.mark.slow
def test_case_67_a_fresh_process_warns_of_nothing(written, tmp_path, run_python):
    """Torch would say something of deprecation."""
    code = """
        import sys, warnings
        from helpers.lessons import quantize_onnx, quantize_torch
        import torch
        warnings.simplefilter("error")
        quantize_torch.torch_dynamic(torch.nn.Sequential(torch.nn.Linear(8, 8)), per_channel=True)
        quantize_torch.torchao_int8(torch.nn.Sequential(torch.nn.Linear(8, 8)))
        quantize_onnx.onnx_dynamic(sys.argv[1], sys.argv[2])
    """
    assert run_python(code, written, tmp_path / "int8.onnx").stdout == ""


def test_case_62_a_state_in_a_float_model_is_lost(model, reports):
    """Made to pass with strict=False, all matrices stay random and the labels are others."""
    state = reports["torch_dynamic"].model.state_dict()
    torch.manual_seed(1)
    fresh = BertForSequenceClassification(model.config).eval()
    with pytest.raises(RuntimeError, match=r"Missing key.*query\.weight"):
        fresh.load_state_dict(state)
    lost = fresh.load_state_dict(state, strict=False)
    assert len(lost.missing_keys) == 2 * 14
    assert not close(logits(fresh).numpy(), logits(model).numpy())
    for way in ("torchao_weights", "torchao_dynamic"):
        with pytest.raises(RuntimeError, match=r"query\.weight"):
            fresh.load_state_dict(reports[way].model.state_dict())
