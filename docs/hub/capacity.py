"""RAM and CPUs for a class on one server: `python -m helpers capacity --learners 30`.

Computed from seats that rehearse.py measured (src/helpers/data/seats.json, which names machine,
versions and date):

    RAM = system + hub + what all seats share + learners * what a seat holds for itself at its peak
    wait = CPU seconds of a seat * max(those who start together / CPUs, 1 / CPUs of one learner)

The system's share is an assumption. All seats are taken to be at their peak together, and the CPUs
to be as fast as those measured and shared out evenly, without loss.
"""

import argparse
import json
import sys

from helpers.core import files

SYSTEM = 10**9  # bytes, assumed
CPUS_EACH = 2  # the limit in jupyterhub_config.py
TEXT = """\
Measured on {date} with {learners} learners, who ran notebook {notebook} at the same time:
  {machine}
  A seat holds {private:.2f} GB for itself at its peak, all seats share {shared:.2f} GB.
  The hub and its proxy hold {hub:.2f} GB.
  A seat takes {log_in:.1f} s of CPU time to log in and {page:.0f} s to run all cells.
  Models: {models}.

Computed for {seats} learners, of whom {at_once} start at the same moment, on CPUs as fast as those:
  RAM      {ram:.1f} GB with all seats at their peak ({system:.0f} GB for the system is assumed)"""


def ram(seat: dict, learners: int) -> int:
    """Return the bytes of RAM for a class."""
    return SYSTEM + seat["hub_bytes"] + seat["shared_bytes"] + learners * seat["private_bytes"]


def wait(cpu_seconds: float, at_once: int, cpus: int) -> float:
    """Return the seconds until the last of those who start together is done."""
    return cpu_seconds * max(at_once / cpus, 1 / CPUS_EACH)


def main(rest: list[str]) -> int:
    """Say what a class needs, and how long it waits."""
    path = files.DATA / "seats.json"
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))["notebooks"]
    except ValueError:
        sys.exit(f"{path} is damaged: take it from the tutorial once more.")
    given = parse(rest, measured)
    seat, at_once = measured[given.notebook], given.at_once or given.learners
    sizes = {name: seat[f"{name}_bytes"] / 1e9 for name in ("private", "shared", "hub")}
    sizes |= {"ram": ram(seat, given.learners) / 1e9, "system": SYSTEM / 1e9}
    log_in, page = seat["log_in_cpu_seconds"], seat["cpu_seconds"]
    about = {"seats": given.learners, "at_once": at_once, "notebook": given.notebook}
    about |= {"log_in": log_in, "page": page}
    about["models"] = ", ".join(f"{name} {state}" for name, state in seat["assets"].items())
    print(TEXT.format_map(seat | sizes | about))
    for cpus in given.cpus:
        first, second = wait(log_in, at_once, cpus), wait(page, at_once, cpus)
        print(f"  {cpus:2} CPUs  {first:.0f} s to log in together, {second:.0f} s to run all cells")
    return 0


def parse(rest: list[str], measured: dict) -> argparse.Namespace:
    """Read the options; those that make no sense end the program with a sentence."""
    most = max(measured, key=lambda number: measured[number]["private_bytes"])
    parser = argparse.ArgumentParser("python -m helpers capacity", description=main.__doc__)
    parser.add_argument("--learners", type=count, required=True)
    parser.add_argument("--notebook", choices=sorted(measured), default=most)
    parser.add_argument("--at-once", type=count, help="who start together; default: all learners")
    parser.add_argument("--cpus", type=count, nargs="+", default=[4, 8, 16, 32, 64])
    given = parser.parse_args(rest)
    if (given.at_once or 0) > given.learners:
        parser.error(f"--at-once {given.at_once} is more than --learners {given.learners}")
    return given


def count(text: str) -> int:
    """Return a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
