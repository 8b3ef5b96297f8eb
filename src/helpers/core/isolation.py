"""One arm of a comparison in a process of its own."""

import inspect
import json
import os
import pkgutil
import subprocess
import sys
import textwrap
from pathlib import Path

from helpers.core import machine, processes
from helpers.core.stopwatch import _measure


class ArmError(RuntimeError):
    """An arm failed in its own process.

    The message names it and ends with the last lines it wrote.
    """


def _request(name: str, arm) -> dict:
    """What a child needs to know about an arm's set-up: its source, or where to import it from."""
    setup, kwargs = arm if isinstance(arm, list | tuple) else (arm, {})
    request = {"arm": name, "setup": setup, "source": None, "kwargs": kwargs}
    if isinstance(setup, str):
        return request
    if not inspect.isfunction(setup) or setup.__closure__ or setup.__name__ == "<lambda>":
        raise ValueError(
            f"arm {name!r}: its set-up has to be a def of its own that uses no variables around it"
        )
    try:
        return request | {
            "setup": setup.__name__,
            "source": textwrap.dedent(inspect.getsource(setup)),
        }
    except (OSError, TypeError) as error:
        raise ValueError(
            f"arm {name!r}: the source of its set-up cannot be read: give 'module:function'"
        ) from error


def _run_child(request: dict) -> dict:
    threads = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(request["threads"])
    )
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    command = [sys.executable, "-c", "from helpers.core.isolation import _child; _child()"]
    environment = os.environ | threads | {"PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"}
    options = {"capture_output": True, "encoding": "utf-8", "errors": "replace", "env": environment}
    child = subprocess.run(
        command, input=json.dumps(request), check=False, **options
    )  # Ctrl-C kills the child
    if child.returncode == 0 and child.stdout:
        return json.loads(child.stdout)
    cause = f"exit status {child.returncode}" + (
        " (killed, often for want of memory)" * (child.returncode == -9)
    )
    last = "\n".join(child.stderr.strip().splitlines()[-8:])
    hint = (
        "\nA set-up runs in a new process: it has to import and build all it uses."
        if "NameError" in last
        else ""
    )
    raise ArmError(f"arm {request['arm']!r} failed in its own process, {cause}:\n{last}{hint}")


def _child() -> None:
    """The other side of `_run_child`.

    Reads a request from standard input, answers on standard output.
    """
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the arm prints must not get into the answer
    request = json.load(sys.stdin)
    scope = {"__name__": "__arm__"}
    if request["source"]:
        exec(compile(request["source"], f"<set-up of {request['arm']}>", "exec"), scope)
    make = scope[request["setup"]] if request["source"] else pkgutil.resolve_name(request["setup"])
    made = make(**request["kwargs"])
    if not (isinstance(made, tuple | list) and len(made) in (2, 3) and callable(made[0])):
        raise TypeError(f"a set-up returns (fn, inputs) or (fn, inputs, extra), not {made!r:.80}")
    fn, inputs, extra = [*made, None][:3]
    settings = {name: request[name] for name in ("rounds", "warmup", "threads")}
    (reply,) = _measure({request["arm"]: (fn, inputs)}, sync=machine.synchronize, **settings)
    reply |= {"extra": extra, "peak_bytes": processes.process_peak()}
    with answer:
        json.dump(reply, answer)
