"""The real JupyterLab, started as a reader starts it, runs a lesson in a real browser."""

import ast
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from helpers.tools import measure, notebook_checks, notebooks
from helpers.tools.browser import MISSING
from helpers.tools.browser import find as find_browser

import pytest
from playwright.sync_api import sync_playwright

pytestmark = pytest.mark.browser

BROWSER = find_browser()
if not BROWSER and os.environ.get("BROWSER") != "required":
    pytest.skip(MISSING, allow_module_level=True)

# No sandbox for root in a container; the rest keeps the browser from asking the network for things
# of its own.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--no-first-run"]
TOKEN = "test"
# No autosave: a test leaves the stored notebook as it is. No windowing: all cells are in the page,
# also unseen ones.
SETTINGS = {
    "docmanager-extension/plugin": {"autosave": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}
# No cell has an output or a number: whatever is there later came from this run, and not from the
# file.
CLEARED = """() => !document.querySelector('.jp-Notebook .jp-OutputArea-output')
  && [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
    .every(one => one.textContent === '[ ]:')"""
# Every cell has its number, or one has failed (then those behind it never run).
FINISHED = """() => document.querySelector('[data-mime-type="application/vnd.jupyter.error"]')
  || [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
    .every(one => /^\\[\\d+\\]:$/.test(one.textContent))"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab as `tutorial.py lab --no-browser --port N` starts it; gives its address."""
    folder = tmp_path_factory.mktemp("lab")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "helpers", "lab", "--no-browser", "--allow-root"]
    environment = {
        name: str(folder / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR")
    }
    environment |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "HF_HUB_OFFLINE": "1"}
    for plugin, settings in SETTINGS.items():
        path = folder / "JUPYTERLAB_SETTINGS_DIR" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings), encoding="utf-8")
    command += [f"--port={port}", f"--IdentityProvider.token={TOKEN}"]
    with measure.temporary_folder() as variables, (folder / "log").open("w") as log:
        options = {"cwd": folder, "env": variables | environment, "stdout": log}
        server = subprocess.Popen(command, **options, stderr=subprocess.STDOUT)
        try:
            _wait_for(f"http://127.0.0.1:{port}/api", server, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)
            with pytest.raises(OSError, match="refused"):  # nothing of it is left running
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=2)


def _wait_for(address: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(address, timeout=2).close()
            return
        except OSError:
            assert server.poll() is None, log.read_text()
            time.sleep(0.25)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def browser():
    """A headless browser."""
    assert BROWSER, MISSING
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield browser
        browser.close()


def open_notebook(browser, lab, name):
    """Open a notebook without its stored outputs, so that all outputs are this run's."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(f"{lab}/lab/tree/notebooks/{name}?token={TOKEN}&reset")
    code = sum(
        cell["cell_type"] == "code"
        for cell in json.loads((notebooks.NOTEBOOKS / name).read_bytes())["cells"]
    )
    page.wait_for_function(
        "n => document.querySelectorAll('.jp-CodeCell').length === n", arg=code, timeout=60_000
    )
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.get_by_role("menuitem", name="Edit", exact=True).click()
    page.get_by_text("Clear Outputs of All Cells", exact=True).click()
    page.wait_for_function(CLEARED)
    return page


def run_all(browser, lab, name):
    """Open a notebook, run all cells, and wait until the last one is done; returns the page."""
    page = open_notebook(browser, lab, name)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.wait_for_function(FINISHED, timeout=300_000)
    return page


def errors(page) -> list[str]:
    """Texts of all error outputs and of everything written to stderr."""
    kinds = ("error", "stderr")
    selector = ",".join(
        f'.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.{kind}"]' for kind in kinds
    )
    return [element.inner_text() for element in page.query_selector_all(selector)]


def test_a_lesson_runs_in_the_browser(lab, browser):
    """The shortest with a picture: all run in a kernel elsewhere."""
    with run_all(browser, lab, "01_device_placement.ipynb") as page:
        assert errors(page) == []
        outputs = [one.inner_text() for one in page.query_selector_all(".jp-OutputArea-output")]
        assert any("all give the same vectors: True" in text for text in outputs)
        assert "Jupyter news" not in page.inner_text("body")
        assert page.evaluate(
            "() => [...document.querySelectorAll('.jp-Notebook img')].every(image => image.alt)"
        )


def test_the_printed_address_opens_the_first_lesson(lab, browser):
    with browser.new_page(viewport={"width": 1280, "height": 1000}) as page:
        page.goto(f"{lab}/?token={TOKEN}")  # what is printed leads to where this does
        page.wait_for_url("**/lab/tree/notebooks/00_start_here.ipynb**", timeout=30_000)
        page.locator(".jp-CodeCell").first.wait_for(timeout=60_000)


def run_cell(page, number, source=""):
    """Run the code cell with a number, or this source in it, wait until it is done; return it."""
    cell = page.locator(".jp-CodeCell").nth(number)
    cell.locator(".cm-content").click()
    if source:
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(source)
    page.keyboard.press("Control+Enter")
    page.wait_for_function(
        "cell => /^\\[\\d+\\]:$/.test(cell.querySelector('.jp-InputPrompt').textContent)",
        arg=cell.element_handle(),
        timeout=90_000,
    )
    return cell


def run_up_to(page, name, text, given=""):
    """Run the code cell that holds a text, before it those that bind what it needs; returns it.

    What takes long to compute is `given`: lines that then stand before the cell's own.
    """
    notebook = notebook_checks.load(notebooks.NOTEBOOKS / name)
    cells = [notebook_checks.source(cell) for cell in notebook_checks.code_cells(notebook)]
    last = next(number for number, source in enumerate(cells) if text in source)
    bound, read = names(given)
    wanted, chosen = (names(cells[last])[1] | read) - bound, []
    for number in reversed(range(last)):
        bound, read = names(cells[number])
        if bound & wanted:
            wanted |= read
            chosen.insert(0, number)
    for number in chosen:
        run_cell(page, number)
    return run_cell(page, last, given and given + cells[last])


def names(source):
    """The names that a cell binds, and those that it reads."""
    bound, read = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.FunctionDef):
            bound.add(node.name)
    return bound, read


def moved(page, cell, act):
    """Move a widget; returns the seconds until number and picture have followed."""
    caption, picture = cell.locator("figcaption"), cell.locator("figure img")
    old = [caption.inner_text(), picture.get_attribute("src")]
    start = time.perf_counter()
    act(cell)
    page.wait_for_function(
        """([cell, text, source]) => cell.querySelector('figcaption').innerText !== text
            && cell.querySelector('figure img').getAttribute('src') !== source""",
        arg=[cell.element_handle(), *old],
        timeout=10_000,
    )
    seconds = time.perf_counter() - start
    assert picture.get_attribute("alt") not in (None, "", caption.inner_text())  # it describes
    return seconds


def press(key, number=0):
    """Moves the slider with this number (-1: the last) by a key."""
    return lambda cell: cell.locator(".noUi-handle").nth(number).press(key)


def select(option, number=0):
    """Chooses in the list with this number."""
    return lambda cell: cell.locator("select").nth(number).select_option(option)


def tick(cell):
    """Clicks the only checkbox."""
    cell.locator("input[type=checkbox]").click()


# What notebook 08 measures and counts before its widget, made up.
PIPELINES = """
steps = ["baseline", "3 layers, int8"]
table = pd.DataFrame({"ms": [0.1, 1.0], "accuracy": [0.8, 0.9]}, index=steps)
curve = pd.DataFrame({"threshold": np.arange(0.5, 1.005, 0.01)}).assign(share=0.5, accuracy=0.85)
curve["ms"] = curve["threshold"]
threshold = 0.75
"""
# Notebook, words of the widget's cell, caption at first, moves and captions, what is given.
WIDGETS = {
    "memory": (
        "02_gpu_memory.ipynb",
        "= memory_explorer()",
        'predict_peak("bert-base", 32, 512, ',
        [
            (press("ArrowLeft", -1), '"bert-base", 32, 504, device="cuda"): '),  # the length
            (select("bert-large"), '"bert-large", 32, 504, '),
            (select("inference", 1), "8 GiB: fits"),
        ],
    ),
    "quantization": (
        "05_quantization.ipynb",
        "= quantization_explorer(",
        "6 bits, symmetric, one scale: 63 levels",
        [
            (press("ArrowRight"), "7 bits, symmetric, one scale: 127 levels"),
            (tick, "7 bits, asymmetric, one scale: 128 levels"),
            (select("per output channel"), "7 bits, asymmetric, a scale for each of 384 rows"),
        ],
    ),
    "temperature": (
        "06_distillation.ipynb",
        "= temperature_explorer()",
        "T = 2: probabilities 0.786, 0.175, 0.039",
        [
            (press("ArrowRight", -1), "T = 2.38: probabilities"),
            (press("ArrowLeft"), "T = 2.38: probabilities 0.690, 0.241, 0.068"),  # the first logit
        ],
    ),
    "pipelines": (
        "08_put_it_together.ipynb",
        "chooser.cascade_explorer(",
        "Threshold 0.75: the baseline answers ",
        [
            (press("ArrowRight"), "Threshold 0.76: "),
            (press("ArrowLeft"), "Threshold 0.75: "),
        ],
        PIPELINES,
    ),
}


@pytest.mark.parametrize("widget", WIDGETS.values(), ids=WIDGETS)
def test_a_widget_answers_when_it_is_moved(lab, browser, widget):
    name, words, caption, moves, *given = widget
    with open_notebook(browser, lab, name) as page:
        cell = run_up_to(page, name, words, *given)
        shown = cell.locator("figcaption")
        shown.wait_for(timeout=20_000)
        assert caption in shown.inner_text()
        times = []
        for act, caption in moves:
            times.append(moved(page, cell, act))
            assert caption in shown.inner_text()
        # The memory explorer predicts anew; the others only draw.
        assert max(times) < (5 if name.startswith("02") else 1), times
        assert errors(page) == []


def test_the_text_field_recolours_the_tokens_while_one_types(lab, browser):
    with open_notebook(browser, lab, "00_start_here.ipynb") as page:
        cell = run_up_to(page, "00_start_here.ipynb", "tokens.text_explorer(")
        cell.locator("figcaption", has_text="I wanted to love it.").wait_for(timeout=20_000)
        colours = "spans => spans.map(span => span.style.background)"
        before = cell.locator("figure span").evaluate_all(colours)
        cell.locator("input[type=text]").fill("")
        cell.locator("input[type=text]").press_sequentially("so dul")  # and no Enter
        cell.locator("figcaption", has_text="classify(['so dul'])").wait_for(timeout=10_000)
        after = cell.locator("figure span").evaluate_all(colours)
        assert len(before) == 8
        assert 4 <= len(after) <= 6
        assert not set(after) <= set(before)
        assert errors(page) == []
