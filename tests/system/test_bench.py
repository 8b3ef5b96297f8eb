"""bench: the recorded run is whole, made by today's parts, and shows what the tutorial promises."""

import json

from helpers.lessons import pipelines
from helpers.tools import bench, notebooks

import pandas
import pytest


def test_the_recorded_runs_are_whole_ones():
    """Of parts and notebooks that exist; the newest may be missing until they are measured."""
    parts = bench.load()["parts"]
    assert set(parts) <= set(bench.PARTS)
    for part in parts.values():
        assert not part["quick"]
        assert "usable CPUs" in part["machine"]
        assert part["date"] > "2026"
    recorded = {row["notebook"] for row in parts["notebooks"]["rows"]}
    assert recorded <= {lesson.path.stem for lesson in notebooks.lessons()}
    steps = [row["step"] for row in parts["pipeline"]["rows"]]
    assert steps == list(pipelines.STEPS | pipelines.BESIDE)
    assert parts["memory"]["ratios"]["memory_error_worst"] < 0.03  # of random configurations


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
    ratios = [part["ratios"] for part in report["parts"].values()]
    assert ratios == [{"one_ratio": 2.0}, {"other_ratio": 2.0}]
    assert [part["rows"] for part in report["parts"].values()] == [[{"arm": "a", "ms": 1.0}]] * 2
    for other in ("{}", "[]", "no JSON"):
        target.write_text(other)
        with pytest.raises(ValueError, match=r"is not a report|Expecting value"):
            bench.main(True, ["one"], target)
        assert target.read_text() == other
