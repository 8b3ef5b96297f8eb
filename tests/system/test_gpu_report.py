"""gpu_report: all of its logic, on the CPU with small models; no GPU can be had here."""

import functools
import json

from helpers.core import cuda, machine
from helpers.lessons import roofline
from helpers.tools import cli as command
from helpers.tools import gpu_report

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
TINY = BertConfig(**SIZES, vocab_size=3000, max_position_embeddings=64)
SMALL = gpu_report.PLAN | {
    "memory": [(TINY, (2, 16), options) for *_, options in gpu_report.PLAN["memory"][:7]],
    "model": TINY,
    "shapes": [(1, 8), (4, 16)],
    "copies": 1,
    "budgets": (256,),
    "against_cpu": [(TINY, (1, 8))],
    "square": 64,
}


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:  # without a C++ compiler's half a minute
        patch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
        return gpu_report.report("cpu", SMALL)


def test_the_report_is_complete(result):
    assert json.loads(json.dumps(gpu_report._round(result)))["card"] == machine.cpu_name()
    assert len(result["memory"]) == result["summary"]["memory configurations"] == 7
    # In float32 the CPU's predictions are exact. Its 16-bit units, where it has them, take memory
    # of their own.
    full = [
        row for row in result["memory"] if not {"dtype", "mixed_precision"} & set(row["options"])
    ]
    assert len(full) == 4
    assert all(row["error"] < 0.01 for row in full)
    shapes = [
        (row["batch"], row["length"]) for row in result["throughput"] if row["dtype"] == "float32"
    ]
    assert shapes == SMALL["shapes"]
    assert all(row["TFLOP/s"] > 0 for row in result["throughput"] if "failed" not in row)
    assert [row["compiled"] for row in result["throughput"] if "compiled" in row] == [True]
    assert [row["arm"] for row in result["sentences"]] == [
        "naive",
        "embed, float32, 256 tokens",
        "embed, bfloat16, 256 tokens",
    ]
    assert result["against_cpu"][0]["CPU ms"] > 0
    for name in ("machine", "versions", "date", "units", "weights"):
        assert result[name]


def test_the_full_plan_is_as_large_as_promised_and_the_file_small(result):
    plan = gpu_report.PLAN
    assert len(plan["memory"]) >= 40
    assert {config.hidden_size for config, *_ in plan["memory"]} == {768, 1024}
    sizes = {
        name: len(json.dumps(gpu_report._round(result[name])) or 1)
        for name in ("memory", "throughput")
    }
    wanted = sizes["memory"] / 7 * len(plan["memory"]) + sizes["throughput"] / 5 * 2 * (
        len(plan["shapes"]) + 1
    )
    assert wanted < 100_000


def test_flops_by_hand_are_the_counters():
    """Eager attention: the counter of torch 2.13 does not know the CPU's fused kernel."""
    for length, texts in ((7, 1), (64, 3)):
        model = BertModel._from_config(TINY, attn_implementation="eager").eval()
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            model(input_ids=torch.ones(texts, length, dtype=torch.long))
        assert roofline.flops(TINY, length, texts) == counter.get_total_flops()


def test_the_roofline():
    base = BertConfig()
    weights = 12 * (4 * 768**2 + 2 * 768 * 3072)
    # One short text: reading the weights takes longer than computing with them. Many: the products
    # decide.
    assert roofline.bound(base, 8, 1, 989, 3350, 2) == pytest.approx(3350e9 / (2 * weights))
    assert roofline.bound(base, 128, 64, 989, 3350, 2) == pytest.approx(
        989e12 / roofline.flops(base, 128)
    )
    rates = [roofline.bound(base, 32, batch, 65, 320, 2) for batch in (1, 4, 16, 64)]
    assert rates == sorted(rates)


def test_cards_by_name():
    assert roofline.peaks("NVIDIA H100 80GB HBM3")[0] == 989
    assert roofline.peaks("NVIDIA H100 PCIe")[0] == 756
    assert roofline.peaks("NVIDIA A100-SXM4-40GB")[2] == 1555
    assert roofline.peaks("Tesla V100-SXM2-16GB")[2] == 900
    for other in (
        "NVIDIA GeForce RTX 9999",
        "NVIDIA L40S",
        "NVIDIA H200 NVL",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    ):
        assert roofline.peaks(other) is None


def test_without_a_card_the_command_says_why(monkeypatch, capsys, tmp_path):
    reason = cuda.CudaStatus(False, "no NVIDIA card was found in this machine")
    monkeypatch.setattr(cuda, "cuda_status", lambda: reason)
    assert command.main(["gpu-report", "--json", str(tmp_path / "report.json")]) == 1
    assert "needs a CUDA device: no NVIDIA card" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_with_a_card_the_report_is_written(monkeypatch, capsys, tmp_path, result):
    monkeypatch.setattr(cuda, "cuda_status", lambda: cuda.CudaStatus(True, ""))
    monkeypatch.setattr(gpu_report, "report", lambda: result)
    assert command.main(["gpu-report", "--json", str(tmp_path / "report.json")]) == 0
    assert "memory configurations" in capsys.readouterr().out
    monkeypatch.setattr(gpu_report, "RECORDED", tmp_path / "report.json")
    assert gpu_report.recorded()["memory"] == gpu_report._round(result["memory"])
    assert (tmp_path / "report.json").stat().st_size < 200_000


def test_the_recorded_report_if_there_is_one():
    """What the notebook shows has everything needed to read it."""
    found = gpu_report.recorded()
    if found is not None:
        assert gpu_report.RECORDED.stat().st_size <= 200_000
        assert found["summary"]["memory configurations"] >= 40
        assert {"card", "machine", "versions", "date", "units"} <= set(found)
