"""placement on tiny models, with the meta device as the second device that every machine has."""

import collections
import dataclasses
import io
import json
import re
import tempfile
import warnings
from pathlib import Path

from helpers.core import tensors
from helpers.lessons import device_errors, placement
from helpers.recipes import device_placement
from helpers.tools import cli, notebooks

import accelerate
import pytest
import torch
from torch import nn
from transformers import (
    BatchEncoding,
    BertModel,
    DynamicCache,
)
from transformers.modeling_outputs import BaseModelOutput

META, CPU = torch.device("meta"), torch.device("cpu")
NO_GPU, ONE, TWO, MAC = {"cuda": 0}, {"cuda": 1}, {"cuda": 2}, {"cuda": 0, "mps": 1}
MODEL_STAYED = "The inputs moved and the model did not"
INPUTS_STAYED = "The model moved and the inputs did not"
WORDINGS = (Path(__file__).parent / "device_errors.tsv").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def tiny_bert(tiny_model):
    return lambda: tiny_model(BertModel)


def inputs():
    ids = torch.tensor([[2, 7, 9, 3]])
    return BatchEncoding(
        {"input_ids": ids, "token_type_ids": ids * 0, "attention_mask": ids * 0 + 1}
    )


class Scaled(nn.Module):
    """A table kept as a plain tensor: the mistake of case 2."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.table = torch.ones(4)

    def forward(self, x):
        return self.linear(x) * self.table


# Choosing a device


@pytest.fixture
def have(monkeypatch):
    """Let torch find so many devices."""

    def pretend(cuda=0, mps=0):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps > 0)

    return pretend


@pytest.mark.parametrize(
    ("spec", "counts", "expected"),
    [
        ("auto", NO_GPU, "cpu"),
        ("auto", TWO, "cuda:0"),
        ("auto", MAC, "mps:0"),
        ("auto", {"cuda": 1, "mps": 1}, "cuda:0"),
        ("cpu", TWO, "cpu"),
        (-1, TWO, "cpu"),
        (0, ONE, "cuda:0"),
        (1, TWO, "cuda:1"),
        ("cuda", ONE, "cuda:0"),
        ("cuda:1", TWO, "cuda:1"),
        (torch.device("cuda", 1), TWO, "cuda:1"),
        ("mps", MAC, "mps:0"),
        ("meta", NO_GPU, "meta"),
        (META, NO_GPU, "meta"),
    ],
)
def test_device_that_is_there(have, spec, counts, expected):
    have(**counts)
    assert placement.resolve_device(spec) == torch.device(expected)


@pytest.mark.parametrize(
    ("counts", "spec"),
    [
        *[(NO_GPU, spec) for spec in ("cuda:3", "cuda", 0, "mps", torch.device("mps"))],
        *[(ONE, "cuda:3"), (TWO, "cuda:3"), (TWO, 2), (TWO, "mps"), (MAC, "mps:1"), (MAC, "cuda")],
    ],
)
def test_case_10_ordinals(have, counts, spec):
    have(**counts)
    kind = "mps" if "mps" in str(spec) else "cuda"
    with pytest.raises(RuntimeError) as caught:
        placement.resolve_device(spec)
    assert f"{spec!r} was asked for" in str(caught.value)
    seen = f"sees {counts.get(kind, 0)} {kind} device(s), numbered from 0"
    assert seen in str(caught.value)


NEAR = ["gpu", "GPU:1", "CUDA:0", "cuda: 0", "0", "Cpu", "cuda:", "cuda0", "cpu:1", "AUTO", "MPS"]
JUNK_NAMES = ["", " ", "cuda:-1", "cuda:1.0", "tpu", "cuda:0 ", "\u0663"]
JUNK = [b"cpu", -2, True, False, 0.0, None, ["cuda"], object(), torch.ones(1)]


@pytest.mark.parametrize("spec", [*NEAR, *JUNK_NAMES, *JUNK])
def test_case_11_names_of_no_device(have, spec):
    have(**TWO)
    with pytest.raises(ValueError, match=r"is not the name of a device.*Accepted: 'auto', 'cpu'"):
        placement.resolve_device(spec)


def test_the_recipes_device_is_the_one_that_its_tensors_name(have):
    have(**NO_GPU)
    for name in ("auto", "cpu:0", "meta"):  # torch.device("cpu:0") != torch.device("cpu")
        device = device_placement.resolve_device(name)
        module = device_placement.move_to(nn.Linear(2, 2), device)
        assert device_placement.left_behind(module, device) == []
    for name in ("tpu", "cuda:0"):
        with pytest.raises((RuntimeError, AssertionError), match=r"tpu|CUDA"):
            device_placement.resolve_device(name)


def test_the_recipe_moves_what_it_is_given_and_names_what_stays():
    value = {"net": nn.Sequential(Scaled()), "x": [torch.ones(1), "text"]}
    moved = device_placement.move_to(value, META)
    assert (moved["x"][0].device, value["x"][0].device) == (META, CPU)
    assert device_placement.left_behind(moved["net"], META) == ["0.table"]


def test_case_02_plain_attributes_are_found():
    module = Scaled().to("meta")
    assert placement.left_behind(module, "meta") == ["table"]
    with pytest.raises(RuntimeError) as caught:
        module(torch.ones(2, 4, device="meta"))
    assert "Two devices" in device_errors.explain(caught.value)


def test_case_02_wherever_they_hide():
    @dataclasses.dataclass
    class Cache:
        keys: torch.Tensor

    module = Scaled()
    module.linear.masks = [torch.ones(1), {"deep": (torch.ones(1), None)}]
    module.cache = Cache(torch.ones(1))
    module.encoding = BatchEncoding({"ids": torch.ones(1)})
    module.layers = [nn.Linear(2, 2)]  # not an nn.ModuleList: neither moved nor trained
    module.alias = [module.linear.weight]  # PyTorch makes a new weight on meta, this stays
    module.me = [module]
    module.register_buffer("kept", torch.ones(1))
    assert placement.left_behind(module.to("meta"), "meta") == [
        "linear.masks[0]",
        "linear.masks[1]['deep'][0]",
        "table",
        "cache.keys",
        "encoding['ids']",
        "layers[0].weight",
        "layers[0].bias",
        "alias[0]",
    ]


def test_device_of(tiny_bert):
    model = tiny_bert()
    assert placement.device_of(model) == CPU
    model.pooler.to("meta")
    with pytest.raises(RuntimeError, match=r"39 on cpu, such as 'embeddings.*; 2 on meta"):
        placement.device_of(model)
    with pytest.raises(RuntimeError, match="none"):
        placement.device_of(nn.ReLU())


# Moving


def test_case_06_move_knows_every_container():
    Pair = collections.namedtuple("Pair", "left right")
    t = torch.ones
    batch = {
        "encodings": [inputs(), BatchEncoding({"ids": t(1)}, n_sequences=1)],
        "pair": Pair(t(1), None),
        "nested": (t(2), [t(3), {"x": t(4)}]),
        "output": BaseModelOutput(last_hidden_state=t(1, 2, 4)),
        "ordered": collections.OrderedDict(b=t(1), a=t(1)),
        "text": "cuda",
        "none": None,
    }
    moved = placement.move(batch, "meta")
    assert placement.left_behind(moved, "meta") == []
    assert moved["output"].last_hidden_state is moved["output"]["last_hidden_state"]
    assert isinstance(moved["encodings"][0], BatchEncoding)
    assert moved["encodings"][1].n_sequences == 1
    assert {key: type(value) for key, value in moved.items()} == {
        key: type(value) for key, value in batch.items()
    }
    assert (moved["pair"].right, moved["text"]) == (None, "cuda")
    assert placement.left_behind(batch, "cpu") == []  # the old one stays as it was


def test_move_warns_about_what_stays(tiny_bert):
    with pytest.warns(UserWarning, match=r"stayed behind.*table.*register_buffer"):
        moved = placement.move(Scaled(), "meta")
    assert moved.linear.weight.device == META
    cache = DynamicCache()
    cache.update(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), 0)
    with pytest.warns(UserWarning, match=r"stayed behind.*: layers\[0\]\.keys, layers"):
        placement.move(cache, "meta")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        placement.move(tiny_bert(), "meta")


def test_case_08_tensors_without_data_are_named(tiny_bert):
    state = tiny_bert().state_dict()
    with torch.device("meta"):
        model = tiny_bert()
    model.load_state_dict(state, assign=True)
    with pytest.raises(
        RuntimeError, match=r"embeddings\.position_ids, embeddings\.token_type_ids\. .*to_empty"
    ) as caught:
        placement.move(model, "cpu")
    assert "pooler" not in str(caught.value)
    assert model.pooler.dense.weight.device == CPU
    with pytest.raises(NotImplementedError) as plain:
        model.to("cpu")
    assert "without data" in device_errors.explain(plain.value)
    model.embeddings.position_ids = torch.arange(64).expand((1, -1))
    model.embeddings.token_type_ids = torch.zeros(1, 64, dtype=torch.long)
    assert placement.device_of(placement.move(model, "cpu")) == CPU
    with pytest.raises(RuntimeError, match=r"meta device: a\[0\]"):
        placement.move({"a": [torch.ones(1, device="meta")]}, "cpu")
    assert placement.move(torch.ones(1, device="meta"), "meta").device == META


# Calling


def test_case_01_device_of_the_model_that_is_called(tiny_bert):
    moved, called = tiny_bert().to("meta"), tiny_bert()
    encoded = placement.move(inputs(), placement.device_of(moved))
    with pytest.raises(RuntimeError) as caught:
        placement.check_call(called, encoded)
    text = str(caught.value)
    assert "input 'input_ids' is on meta" in text
    assert "'embeddings.word_embeddings.weight' is on cpu" in text
    assert "The inputs moved and the model did not" in text
    assert placement.check_call(called, inputs()) == CPU


def test_case_04_which_side_did_not_move(tiny_bert):
    with pytest.raises(RuntimeError, match="The model moved and the inputs did not"):
        placement.check_call(tiny_bert().to("meta"), inputs())
    mixed = inputs()
    mixed["attention_mask"] = mixed["attention_mask"].to("meta")
    with pytest.raises(
        RuntimeError, match=r"^input 'attention_mask' is.*The other inputs are there"
    ):
        placement.check_call(tiny_bert(), mixed)
    with pytest.raises(RuntimeError, match="input 'inputs' is on meta"):
        placement.check_call(nn.Linear(2, 2), torch.ones(2, device="meta"))


# The optimizer


def test_case_39_the_optimizer_comes_after_the_move():
    model = nn.Linear(4, 4)
    early = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    early.step()
    with pytest.raises(TypeError, match="then build the optimizer"):
        placement.move(early, "meta")
    placement.move(model, "meta")
    assert early.param_groups[0]["params"][0] is not model.weight  # on CUDA it is, elsewhere not
    assert early.state[early.param_groups[0]["params"][0]]["exp_avg"].device == CPU
    late = torch.optim.AdamW(model.parameters())
    late.load_state_dict(early.state_dict())
    assert late.param_groups[0]["params"][0] is model.weight
    assert late.state[model.weight]["exp_avg"].device == META


# Reading errors


def test_the_sections_to_read_are_there():
    rows = [row["read"] for row in device_errors.KNOWN["other"] if "read" in row]
    rows.append(device_errors.PLACEMENT.removeprefix("notebook ").replace(": ", " "))
    for notebook, _, heading in (row.partition(" ") for row in rows):
        (path,) = (page for page in notebooks.pages() if page.name.startswith(notebook))
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        lines = "".join("".join(cell["source"]) + "\n" for cell in cells).splitlines()
        assert any(re.fullmatch(rf"##+ (\d+\. )?{re.escape(heading)}", line) for line in lines), (
            heading
        )


def test_every_message_that_a_list_quotes_is_known_and_leads_where_a_list_does():
    wanted = {}  # what the lists "Find your error" quote, and the notebooks that they send to
    for lesson in notebooks.lessons():
        cells = json.loads(lesson.path.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
        for line in re.search(r"# Find your error\n(.+?)\n#", text, re.DOTALL)[1].splitlines():
            for quoted in re.findall("`([^`]+)`", line):
                targets = [lesson.number, *re.findall(r"\]\((\d\d)_", line)]
                wanted.setdefault(quoted, set()).update(targets)
    messages = {quoted for quoted in wanted if " " in quoted}  # else a name or a switch
    assert len(messages) > 40
    for quoted in messages:
        said = device_errors.explain_pasted(quoted)
        assert wanted[quoted] & set(re.findall(r"\(notebook (\d\d): ", said)), f"{quoted}: {said}"


@pytest.mark.parametrize(("wording", "meaning"), [line.split("\t") for line in WORDINGS])
def test_case_04_wordings(wording, meaning):
    assert meaning in device_errors.explain(RuntimeError(wording))
    assert meaning in device_errors.explain(f"some/file.py:12: RuntimeError: {wording}")


WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")


def test_the_command_explains_a_message_or_a_pasted_traceback(monkeypatch, capsys):
    pasted = Path(__file__).with_name("traceback.txt").read_text()  # of two exceptions, coloured
    pasted = "x" * 10**6 + "\n" + pasted  # data in one word must not take minutes
    assert cli.main(["explain", "CUDA", "out", "of", "memory"]) == 0
    assert "smaller batches. (notebook 02: Read the error)" in capsys.readouterr().out
    for text, meaning in ((pasted, "renumbered"), ("MyError: no", '"Find your error"')):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert cli.main(["explain"]) == int("Find" in meaning)
        assert meaning in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "meaning"),
    [
        (lambda: torch.device("gpu"), "resolve_device"),
        (lambda: torch.device("cuda: 0"), "resolve_device"),
        (lambda: torch.device(-1), "resolve_device"),
        (lambda: torch.device(""), "resolve_device"),
        (lambda: torch.ones(1, device="meta").numpy(), "without data"),
        (lambda: nn.Linear(2, 2, device="meta").to("cpu"), "without data"),
        (lambda: nn.Linear(2, 2)(torch.ones(1, 2, device="meta")), "Two devices"),
        (lambda: {}.to("cpu"), "move(inputs, device)"),
        pytest.param(lambda: torch.ones(1).to("cuda"), "cuda_status", marks=WITHOUT_CUDA),
    ],
)
def test_errors_of_the_installed_torch(make, meaning):
    with pytest.raises((RuntimeError, TypeError, AttributeError, AssertionError)) as caught:
        make()
    assert meaning in device_errors.explain(caught.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_case_04_on_a_real_gpu(tiny_bert):
    with pytest.raises(RuntimeError) as caught:
        tiny_bert()(**placement.move(inputs(), "cuda:0"))
    assert MODEL_STAYED in device_errors.explain(caught.value)
    with pytest.raises(RuntimeError) as caught:
        tiny_bert().to("cuda:0")(**inputs())
    assert INPUTS_STAYED in device_errors.explain(caught.value)


# Models that another library placed or packed


@pytest.mark.parametrize("way", ["all on disk", "a part on disk"])
def test_a_model_that_accelerate_placed_is_called_as_it_is(tiny_bert, tmp_path, way):
    model, batch = tiny_bert(), inputs()
    wanted = model(**batch)[0]
    if way == "all on disk":
        accelerate.disk_offload(model, tmp_path, execution_device=CPU)
    else:
        parts = {"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"}
        accelerate.dispatch_model(model, parts, offload_dir=tmp_path)
    assert placement.device_of(model) == placement.check_call(model, batch) == CPU
    with pytest.raises(RuntimeError, match=r"accelerate placed this model \(.*call it"):
        placement.move(model, "cpu")
    assert torch.equal(model(**batch)[0], wanted)


def test_a_device_map_of_several_devices_is_not_moved(tiny_bert):
    model = tiny_bert()
    model.hf_device_map = {"0": "cpu", "1": "disk"}
    with pytest.raises(RuntimeError, match="0: cpu, 1: disk"):
        placement.move(model, "meta")
    model.hf_device_map = {"": 0}  # one device: an ordinary model
    assert placement.move(model, "meta").device == META


def test_weights_that_refuse_to_move_are_named():
    class In8Bit(nn.Linear):  # as bitsandbytes' models do
        def to(self, *args, **kwargs):
            warnings.warn("`.to` is not supported for 8-bit models", stacklevel=2)
            return self

    with pytest.warns(UserWarning, match="8-bit"), pytest.raises(RuntimeError) as caught:
        placement.move(In8Bit(2, 2), "meta")
    assert "did not move: weight, bias. Quantized weights" in str(caught.value)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization:DeprecationWarning")
def test_packed_int8_weights_stay_and_are_counted(tiny_bert):
    model = torch.ao.quantization.quantize_dynamic(tiny_bert(), {nn.Linear})
    packed = {name for name, kind, _ in tensors.walk(model) if kind == "packed"}
    assert len(packed) == 13
    assert set(placement.left_behind(model.to("meta"), "meta")) >= packed
    fused = nn.Sequential(torch.ao.nn.intrinsic.quantized.dynamic.LinearReLU(4, 4))
    assert placement.left_behind(fused.to("meta"), "meta") == ["0.weight"]


@pytest.mark.parametrize("around", [lambda net: [net], lambda net: {"net": (net,)}])
def test_a_placed_model_in_a_container_or_with_two_hooks_is_not_moved(tiny_bert, around):
    model = accelerate.dispatch_model(tiny_bert(), {"": "cpu"}, force_hooks=True)
    with pytest.raises(RuntimeError, match="accelerate placed"):
        placement.move(around(model), "meta")
    linear = nn.Linear(4, 4)
    accelerate.disk_offload(linear, tempfile.mkdtemp(), execution_device="cpu")
    assert placement.device_of(linear) == CPU
    with pytest.raises(RuntimeError, match="accelerate placed"):
        placement.move(around(linear), "meta")
