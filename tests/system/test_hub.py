"""A real JupyterHub on loopback with the settings of docs/hub: eight learners run notebook 01."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from helpers.tools import notebooks

import pytest

pytest.importorskip("jupyterhub", reason="it is not there on Windows, nor without the test tools")
sys.path.append(str(notebooks.ROOT / "docs/hub"))
import rehearse
from learner import Learner, RehearsalError

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux"),
]
PAGE = "01_device_placement.ipynb"


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """Eight learners log in at once; the first runs the notebook alone, then seven at once."""
    folder = tmp_path_factory.mktemp("hub")
    try:
        rehearse.proxy()
    except RehearsalError as error:
        if os.environ.get("HUB") == "required":
            raise
        pytest.skip(str(error))
    with rehearse.hub(folder) as (address, password), ThreadPoolExecutor(8) as pool:
        learners = [Learner(address, f"learner-{number}", password) for number in range(8)]
        list(pool.map(Learner.log_in, learners))
        learners[0].run(PAGE)  # raises where a cell fails
        alone = rehearse.memory(rehearse.seats(folder)["learner-0"])
        list(pool.map(lambda learner: learner.run(PAGE), learners[1:]))
        seats = rehearse.seats(folder)
        hub = seats.pop("")
        yield SimpleNamespace(folder=folder, learners=learners, seats=seats, alone=alone)
    assert rehearse.seats(folder) == {}, "processes were left running"
    assert not any(process.is_running() for process in hub)


def test_every_seat_runs_its_own_copy_with_the_settings_of_the_recipe(room):
    assert len(room.seats) == 8
    for name, processes in room.seats.items():
        copy = room.folder / name / "bert-on-any-device"
        assert os.access(copy / PAGE, os.W_OK)
        assert len(notebooks.pages(copy)) == len(notebooks.pages())
        # The models lie in one place for all, and in nobody's home.
        assert sum(path.stat().st_size for path in copy.parent.rglob("*")) < 30e6
        assert len(processes) >= 2, "a server and a kernel"
        for about in (process.environ() for process in processes):
            assert (about["MEM_LIMIT"], about["CPU_LIMIT"]) == (str(3 * 2**30), "2.0")
            assert about["JUPYTER_CONFIG_PATH"].startswith(str(notebooks.ROOT / "docs/hub"))


def test_idle_kernels_end(room):
    log = (room.folder / "log").read_text(encoding="utf-8")
    assert log.count("Culling kernels with idle durations > 1800 seconds") == 8


def test_one_seat_more_costs_less_than_the_first_and_weights_are_in_memory_once(room):
    """The seats share the pages of the libraries."""
    seats = [rehearse.memory(processes) for processes in room.seats.values()]
    together = sum(seat["pss"] for seat in seats)
    assert (together - room.alone["pss"]) / 7 < 0.7 * room.alone["rss"]
    assert sum(seat["uss"] for seat in seats) < together
    cpu = sum(rehearse.cpu_seconds(processes) for processes in room.seats.values())
    print(f"8 seats hold {together / 1e9:.2f} GB and took {cpu:.0f} s of CPU time")
    for processes in room.seats.values():
        files = [part for process in processes for part in process.memory_maps()]
        weights = [part for part in files if part.path.endswith("model.safetensors")]
        assert sum(part.rss for part in weights) > 80e6, "MiniLM's file is mapped and read"
        assert sum(part.private_clean + part.private_dirty for part in weights) < 1e6


def test_a_wrong_password_and_another_learners_server_are_refused(room):
    first, second, *_ = room.learners
    with pytest.raises(RehearsalError, match="could not log in: 403"):
        Learner(first.address, "learner-9", "wrong password").log_in()
    for server, status in ((first.server, 200), (second.server, 403)):
        assert first.web.get(f"{server}/api/contents", timeout=30).status_code == status
