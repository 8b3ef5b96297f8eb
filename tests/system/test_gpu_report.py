"""gpu_report: all of its logic, on the CPU with small models; no GPU can be had here."""

import json

from helpers.core import cuda, machine
from helpers.lessons import roofline
from helpers.tools import cli as command
from helpers.tools import gpu_report

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertModel

pytestmark = pytest.mark.slow  # its fixture measures


@pytest.fixture(scope="module")
def plan(tiny_config):
    tiny, full = tiny_config(vocab_size=3000), gpu_report.full_plan()
    small = {
        "memory": [(tiny, (2, 16), options) for *_, options in full["memory"][:7]],
        "model": tiny,
        "shapes": [(1, 8), (4, 16)],
        "against_cpu": [(tiny, (1, 8))],
    }
    assert small.keys() == full.keys()
    return small


@pytest.fixture(scope="module")
def result(plan):
    return gpu_report.report("cpu", plan)


def test_the_report_is_complete(result, plan):
    assert json.loads(json.dumps(result))["gpu"] == machine.cpu_name()
    assert len(result["memory"]) == result["summary"]["memory configurations"] == 7
    # In float32 the CPU's predictions are exact. Its 16-bit units take memory of their own.
    half = {"dtype", "mixed_precision"}
    full = [row for row in result["memory"] if not half & set(row["options"])]
    assert len(full) == 4
    assert all(row["error"] < 0.01 for row in full)
    exact = [row for row in result["throughput"] if row["dtype"] == "float32"]
    assert [(row["batch"], row["length"]) for row in exact] == plan["shapes"]
    assert all(row["TFLOP/s"] > 0 for row in result["throughput"] if "failed" not in row)
    assert result["against_cpu"][0]["CPU ms"] > 0
    for name in ("machine", "versions", "date", "units", "weights"):
        assert result[name]


def test_flops_by_hand_are_the_counters(tiny_config):
    """Eager attention: the counter of torch 2.13 does not know the CPU's fused kernel."""
    config = tiny_config()
    for length, texts in ((7, 1), (64, 3)):
        model = BertModel._from_config(config, attn_implementation="eager").eval()
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            model(input_ids=torch.ones(texts, length, dtype=torch.long))
        assert roofline.flops(config, length, texts) == counter.get_total_flops()


def test_gpus_by_name():
    assert roofline.peaks("NVIDIA H100 80GB HBM3")[0] == 989
    assert roofline.peaks("NVIDIA H100 PCIe")[0] == 756
    assert roofline.peaks("NVIDIA A100-SXM4-40GB")[2] == 1555
    assert roofline.peaks("Tesla V100-SXM2-16GB")[2] == 900
    for other in ("NVIDIA L40S", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"):
        assert roofline.peaks(other) is None


def test_without_a_gpu_the_command_says_why(monkeypatch, capsys, tmp_path):
    reason = cuda.CudaStatus(False, "no NVIDIA card was found in this machine")
    monkeypatch.setattr(cuda, "cuda_status", lambda: reason)
    assert command.main(["gpu-report", "--json", str(tmp_path / "report.json")]) == 1
    assert "needs a CUDA device: no NVIDIA card" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_with_a_gpu_the_report_is_written(monkeypatch, capsys, tmp_path, result):
    monkeypatch.setattr(cuda, "cuda_status", lambda: cuda.CudaStatus(True, ""))
    monkeypatch.setattr(gpu_report, "report", lambda: result)
    assert command.main(["gpu-report", "--json", str(tmp_path / "report.json")]) == 0
    assert "memory configurations" in capsys.readouterr().out
    monkeypatch.setattr(gpu_report, "RECORDED", tmp_path / "report.json")
    for found, row in zip(gpu_report.recorded()["memory"], result["memory"], strict=True):
        assert found["measured"] == pytest.approx(row["measured"], rel=1e-3)
    assert (tmp_path / "report.json").stat().st_size < 200_000
