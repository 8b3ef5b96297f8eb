"""The static site: built once from the stored notebooks, crawled, and seen at two widths."""

import contextlib
import html
import importlib.util
import subprocess
import urllib.parse

from helpers.lessons import memory, training_step
from helpers.tools import browser, cli, notebooks
from helpers.widgets.memory import DTYPES, LEVERS, MODES, memory_explorer

import pytest
import torch
import transformers
from bs4 import BeautifulSoup
from playwright.sync_api import TimeoutError, sync_playwright

pytestmark = [pytest.mark.system, pytest.mark.browser]
if not (browser.find() and importlib.util.find_spec("sphinx_book_theme")):
    pytest.skip(f"{browser.MISSING}; or Sphinx: docs/", allow_module_level=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages, as `python -m helpers site FOLDER` builds them from a clone of GitHub's."""
    work = tmp_path_factory.mktemp("site")
    for command in ("init", "remote add origin git@github.com:someone/bert.git"):
        subprocess.run(["git", *command.split()], cwd=work, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_DIR", str(work / ".git"))
        assert cli.main(["site", str(work / "html")]) == 0
        assert cli.main(["site", str(work)]) == 2  # it holds other files
    assert sorted(path.name for path in work.iterdir()) == [".git", "html"]
    pages = (page for page in (work / "html").rglob("*.html") if "_static" not in page.parts)
    return {page.relative_to(work / "html").as_posix(): page for page in pages}


def test_links_resolve_and_pictures_have_words(site):
    pages = {page: BeautifulSoup(page.read_text("utf-8"), "html.parser") for page in site.values()}
    anchors = {page: {tag["id"] for tag in soup.find_all(id=True)} for page, soup in pages.items()}
    wrong = []
    for page, soup in pages.items():
        wrong += [(page.name, str(tag)[:80]) for tag in soup.find_all("img") if not tag.get("alt")]
        for tag in soup.find_all(["a", "link", "img", "script"]):
            link = urllib.parse.urlsplit(tag.get("href") or tag.get("src") or "")
            file, anchor = map(urllib.parse.unquote, (link.path, link.fragment))
            if not (link.scheme or link.netloc):
                target = (page.parent / file).resolve() if file else page
                there = target.exists() and (not anchor or anchor in anchors[target])
                wrong += [] if there else [(page.name, link.geturl())]
        assert "mybinder.org/v2/gh/someone/bert/" in str(soup.find_all("a", "launch")), page.name
    assert not wrong


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=browser.find(), args=["--no-sandbox"])


def test_no_page_is_wider_than_the_screen(site, chromium):
    for width in (375, 1280):
        shown = chromium.new_page(viewport={"width": width, "height": 800})
        for page in site.values():
            shown.goto(page.as_uri())
            with contextlib.suppress(TimeoutError):  # scripts still lay the page out after loading
                shown.wait_for_function("w => document.documentElement.scrollWidth <= w", arg=width)
            assert shown.evaluate("document.documentElement.scrollWidth") <= width, page.name


def test_search_finds_a_word_and_a_notebook_offers_its_recipe(site, chromium):
    shown, page = chromium.new_page(), site["notebooks/02_gpu_memory.html"]
    shown.goto(site["search.html"].as_uri() + "?q=LoRA")
    shown.wait_for_selector("#search-results a >> text=memory")
    shown.goto(page.as_uri())
    recipe = page.parent / shown.get_attribute("a[download] >> text=Code", "href")
    assert recipe.read_bytes() == notebooks.recipes()["02"].read_bytes()
    shown.click("main >> text=Will it fit?")


def test_code_is_copied_whole_and_outputs_have_no_button(site, chromium):
    shown = chromium.new_page()
    shown.goto(site["recipes/int8.html"].as_uri())
    shown.evaluate("document.oncopy = () => window.copied = document.activeElement.value")
    shown.click("button.copybtn")
    assert shown.evaluate("copied").strip() == notebooks.recipes()["05"].read_text("utf-8").strip()
    shown.goto(site["notebooks/05_quantization.html"].as_uri())
    assert shown.locator(".cell_input .copybtn").count() > 20
    assert shown.locator(".cell_output .copybtn").count() == 0


# Every lever, every number format, the smallest and the largest sizes.
CHOICES = [("minilm", "training, AdamW", "float32", lever, 1, 32) for lever in LEVERS]
CHOICES += [("bert-large", "training, SGD", "mixed precision", lever, 64, 512) for lever in LEVERS]
CHOICES += [("bert-base", "inference", dtype, "none", 8, 128) for dtype in DTYPES]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_will_it_fit_agrees_with_the_memory_explorer(site, chromium, choice, monkeypatch):
    """Number for number, as printed; and its code trains what was predicted."""
    fit, explorer = chromium.new_page(), memory_explorer()
    fit.goto(site["fit.html"].as_uri())
    with contextlib.ExitStack() as together:  # else each change would be predicted
        for control, value in zip(explorer.children, choice, strict=False):
            together.enter_context(control.hold_trait_notifications())
            control.value = value
            if fit.is_enabled(f"#fit-{control.description}"):
                fit.select_option(f"#fit-{control.description}", label=str(value))
    said = fit.get_attribute("#fit-bar", "aria-label")
    assert "GiB" in said
    assert said in html.unescape(explorer.children[-1].value)
    model, mode, dtype, lever, *size = choice
    options = DTYPES[dtype] | LEVERS[lever]
    peak = memory.predict_peak(model, *size, device="cuda", **MODES[mode], **options)
    parts = fit.locator("#fit-parts tbody td:nth-child(2)").all_inner_texts()
    assert parts == [f"{peak.terms.get(name, 0) / 2**30:.2f}" for name in memory.TERMS]

    config = transformers.BertConfig(hidden_size=24, num_hidden_layers=7, intermediate_size=8)
    load = transformers.AutoModelForSequenceClassification
    tiny = lambda name, dtype: load.from_config(config, dtype=dtype)  # noqa: E731
    monkeypatch.setattr(load, "from_pretrained", tiny)
    monkeypatch.syspath_prepend(notebooks.recipes()["02"].parent)
    ran = {"batch": {"input_ids": torch.ones(2, 4).long(), "labels": torch.tensor([0, 1])}}
    exec(fit.inner_text("#fit-own").replace('"cuda"', '"cpu"'), ran)
    options.pop("mixed_precision", None)
    expected = training_step.build_model(config, mode != "inference", "cpu", **options)
    trained = lambda model: [(p.requires_grad, p.dtype) for p in model.parameters()]  # noqa: E731
    assert trained(ran["model"]) == trained(expected)


def test_will_it_fit_keeps_the_choice_and_needs_no_mouse_or_javascript(site, chromium):
    fit, page = chromium.new_page(), site["fit.html"].as_uri()
    fit.goto(page)
    usual = fit.inner_text("#fit-total")
    fit.focus("#fit-batch")
    fit.keyboard.press("ArrowUp")
    chosen, address = fit.inner_text("#fit-total"), fit.url
    for url, total in {address: chosen, f"{page}#batch=x&lever=": usual}.items():
        fit.goto("about:blank")
        fit.goto(url)
        assert fit.inner_text("#fit-total") == total != "0.00 GiB"
    fit.click("[data-copies=fit-call]")
    fit.wait_for_selector("#fit-copied:not(:empty)")
    plain = chromium.new_context(java_script_enabled=False).new_page()
    plain.goto(page)
    assert usual in plain.inner_text("main noscript")
    assert chosen != usual
