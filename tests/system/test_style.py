"""Code and notebooks are linted and formatted; the package starts up quickly."""

import subprocess
import sys

from helpers.tools import notebooks

import pytest

PLACES = ["src", "tests", "notebooks", "docs", "tutorial.py"]


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff(command):
    run = [sys.executable, "-m", "ruff", *command, "--no-cache", *PLACES]
    result = subprocess.run(run, cwd=notebooks.ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_importing_helpers_is_quick_and_light():
    """It loads no torch and no NumPy, which read what it sets, in under 0.3 s (best of three)."""
    code = "import sys, time; t = time.perf_counter(); import helpers; "
    code += "print(time.perf_counter() - t, bool({'torch', 'numpy'} & set(sys.modules)))"
    runs = [
        subprocess.check_output([sys.executable, "-c", code], text=True).split() for _ in range(3)
    ]
    assert min(float(seconds) for seconds, _ in runs) < 0.3
    assert {loaded for _, loaded in runs} == {"False"}
