"""Time one arm of a comparison in a process of its own."""

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

from helpers.core import stopwatch


class ArmError(RuntimeError):
    """An arm failed in its own process; the message ends with the last lines it wrote."""


def request(name: str, arm) -> dict:
    """Return what a child needs to know of a set-up: where to import it, and its arguments."""
    setup, kwargs = (arm, {}) if isinstance(arm, str) else arm
    return {"arm": name, "setup": setup, "kwargs": kwargs}


def run_child(asked: dict) -> dict:
    """Run a request in a process of its own, and return its answer."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, str(asked["threads"]))
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    environment["PYTHONIOENCODING"] = "utf-8"
    child = subprocess.run(
        [sys.executable, "-c", "from helpers.core import isolation; isolation.child()"],
        input=json.dumps(asked),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        check=False,
    )
    if child.returncode == 0 and child.stdout:
        return json.loads(child.stdout)
    last = "\n".join(child.stderr.strip().splitlines()[-8:])
    status = f"exit status {child.returncode}"
    raise ArmError(f"arm {asked['arm']!r} failed in its own process, {status}:\n{last}")


def child() -> None:
    """Read a request from standard input, and answer on standard output."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the arm prints must not get into the answer
    asked = json.load(sys.stdin)
    fn, inputs, *extra = pkgutil.resolve_name(asked["setup"])(**asked["kwargs"])
    settings = {name: asked[name] for name in ("rounds", "warmup", "threads")}
    arms = {asked["arm"]: (fn, inputs)}
    (reply,) = stopwatch.measure(arms, **settings)
    reply["extra"] = extra[0] if extra else None
    with answer:
        json.dump(reply, answer)
