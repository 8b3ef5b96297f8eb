"""Code and notebooks are linted and formatted, and the package keeps its promises about imports and size."""

import ast
import subprocess
import sys

from helpers.tools import notebooks

import pytest

PLACES = ["src", "tests", "notebooks", "tutorial.py"]


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff(command):
    run = [sys.executable, "-m", "ruff", *command, "--no-cache", *PLACES]
    result = subprocess.run(run, cwd=notebooks.ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_importing_helpers_is_quick_and_light():
    """`import helpers` loads no torch and takes less than 0.3 s (the best of three, in fresh interpreters)."""
    code = "import sys, time; t = time.perf_counter(); import helpers; "
    code += "print(time.perf_counter() - t, 'torch' in sys.modules)"
    runs = [
        subprocess.check_output([sys.executable, "-c", code], text=True).split() for _ in range(3)
    ]
    assert min(float(seconds) for seconds, _ in runs) < 0.3
    assert {loaded for _, loaded in runs} == {"False"}


def test_starting_up_is_quiet():
    """Importing helpers and then a model class writes nothing to stderr, torchao's and torch's remarks included."""
    code = "import helpers; from transformers import BertConfig, BertModel; BertModel(BertConfig(num_hidden_layers=1))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stderr == ""


def test_the_floors_of_the_package_hold():
    """A module imports only from floors below its own."""
    floors = [
        {"files", "machine", "timing", "plots", "scores", "pretend"},
        {"assets", "batching", "lessons"},
        {"placement", "memory", "checkpoints", "onnx", "quantization", "distillation", "embedding"},
        {"sentiment"},
        {"widgets", "exercises", "doctor", "bench", "recipes", "gpu_report", "__main__"},
    ]
    level = {name: number for number, names in enumerate(floors) for name in names}
    package = notebooks.ROOT / "src" / "helpers"
    for path in package.rglob("*.py"):
        if path == package / "__init__.py":
            continue
        own = path.relative_to(package).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and (
                node.level or (node.module or "").startswith("helpers")
            ):
                tail = (node.module or "").removeprefix("helpers").strip(".")
                names = [tail.split(".")[0]] if tail else [alias.name for alias in node.names]
            for name in names:
                allowed = level[name] < level[own] or (
                    level[name] == level[own] and level[name] in (0, 4)
                )
                assert allowed, f"{own} imports {name}"
