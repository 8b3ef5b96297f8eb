"""Time one arm of a comparison in a process of its own."""

import inspect
import json
import os
import pkgutil
import subprocess
import sys
import textwrap
from pathlib import Path

from helpers.core import machine, processes, stopwatch


class ArmError(RuntimeError):
    """An arm failed in its own process; the message ends with the last lines it wrote."""


def request(name: str, arm) -> dict:
    """Return what a child needs to know of a set-up: its source, or where to import it."""
    setup, kwargs = arm if isinstance(arm, list | tuple) else (arm, {})
    if isinstance(setup, str):
        return {"arm": name, "setup": setup, "source": None, "kwargs": kwargs}
    if not inspect.isfunction(setup) or setup.__closure__ or setup.__name__ == "<lambda>":
        message = "its set-up has to be a def of its own that uses no variables around it"
        raise ValueError(f"arm {name!r}: {message}")
    source = textwrap.dedent(inspect.getsource(setup))
    return {"arm": name, "setup": setup.__name__, "source": source, "kwargs": kwargs}


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
    cause = f"exit status {child.returncode}"
    if child.returncode == -9:
        cause += " (killed, probably out of memory)"
    last = "\n".join(child.stderr.strip().splitlines()[-8:])
    if "NameError" in last:
        last += "\nA set-up runs in a new process: it has to import and build all it uses."
    raise ArmError(f"arm {asked['arm']!r} failed in its own process, {cause}:\n{last}")


def child() -> None:
    """Read a request from standard input, and answer on standard output."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the arm prints must not get into the answer
    asked = json.load(sys.stdin)
    scope = {"__name__": "__arm__"}
    if asked["source"]:
        exec(compile(asked["source"], f"<set-up of {asked['arm']}>", "exec"), scope)
        make = scope[asked["setup"]]
    else:
        make = pkgutil.resolve_name(asked["setup"])
    fn, inputs, *extra = make(**asked["kwargs"])
    settings = {name: asked[name] for name in ("rounds", "warmup", "threads")}
    arms = {asked["arm"]: (fn, inputs)}
    (reply,) = stopwatch.measure(arms, sync=machine.synchronize, **settings)
    reply["extra"] = extra[0] if extra else None
    with answer:
        json.dump(reply | {"peak_bytes": processes.process_peak()}, answer)
