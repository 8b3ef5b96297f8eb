"""bench: the recorded run is whole, made by today's parts, and shows what the tutorial promises."""

import json

from helpers.tools import bench, notebooks

import pandas
import pytest


def test_the_recorded_runs_are_whole_ones_of_all_parts():
    parts = bench.load()["parts"]
    assert set(parts) == set(bench.PARTS)
    for part in parts.values():
        assert not part["quick"]
        assert "usable CPUs" in part["machine"]
        assert part["date"] > "2026"
    assert {row["notebook"] for row in parts["notebooks"]["rows"]} == {
        page.path.stem for page in notebooks.lessons()
    }
    assert [row["step"] for row in parts["pipeline"]["rows"]] == list(bench.PIPELINE)


def test_a_part_is_written_beside_those_that_are_there(tmp_path, monkeypatch, capsys):
    table = pandas.DataFrame({"arm": ["a"], "ms": [1.0]}).set_index("arm")
    parts = {
        name: lambda quick, name=name: bench.Part(table, {f"{name}_ratio": 2.0})
        for name in ("one", "other")
    }
    monkeypatch.setattr(bench, "PARTS", parts)
    target = tmp_path / "report.json"
    for name in parts:
        assert bench.main(True, [name], target) == 0
    report = json.loads(target.read_text())
    assert [part["ratios"] for part in report["parts"].values()] == [
        {"one_ratio": 2.0},
        {"other_ratio": 2.0},
    ]
    assert [part["rows"] for part in report["parts"].values()] == [[{"arm": "a", "ms": 1.0}]] * 2
    for other in ("{}", "[]", "no JSON", '{"parts": []}', '{"parts": {"one": []}}'):
        target.write_text(other)
        with pytest.raises(ValueError, match="no report"):
            bench.main(True, ["one"], target)
        assert target.read_text() == other


def test_it_shows_what_was_promised():
    ratios = {}
    for part in bench.load()["parts"].values():
        ratios |= part["ratios"]
    assert ratios["final_over_pasted"] >= 200
    assert ratios["final_share_of_accuracy"] >= 0.99
    assert ratios["smallest_over_pasted"] >= 500
    assert ratios["smallest_share_of_accuracy"] >= 0.95
    assert ratios["int8_over_float32"] >= 1.8
    assert abs(ratios["int8_points"]) <= 0.3
    assert ratios["int8_bytes_over_float32"] <= 0.27
    assert ratios["onnx_over_torch_worst"] <= 1
    assert ratios["embed_over_pasted"] >= 4
    assert ratios["checkpoint_peak_over_weights"] <= 1.2
    assert ratios["notebook_seconds_worst"] <= 90
    assert ratios["notebook_peak_gib_worst"] <= 1.5e9 / 2**30
