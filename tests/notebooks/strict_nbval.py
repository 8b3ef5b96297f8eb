"""Run one notebook under strict nbval, in a process of its own."""

import re
import sys
import tempfile

from helpers.tools import measure, notebooks

LESSONS = notebooks.pages()
# Nothing listens on this port of this machine: a hub that refuses at once.
UNREACHABLE = "http://127.0.0.1:9"
# Failures of the machine and not of the page: nbval waits five seconds for an output message,
# whatever the cell's own limit is, and a kernel now and then dies before its first cell. A page
# gets one more chance for these alone.
HICCUP = re.compile(
    r"Timeout of 5 seconds waiting for output|Kernel dead on test start|Kernel died before replying"
)


def run_strictly(path, endpoint, **environment) -> measure.Run:
    """Run one notebook under nbval in a process of its own, against the hub at this address."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval",
        "--nbval-current-env",
        "--nbval-cell-timeout=120",
        "-q",
    ]
    environment |= {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:  # no exercise is done, as in the stored run
            environment["BERT_PROGRESS"] = folder
            run = measure.measure([*command, str(path)], cwd=notebooks.ROOT, env=environment)
        if not (run.status and HICCUP.search(run.output)):
            break
    return run
