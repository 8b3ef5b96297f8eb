"""The slides, in a browser: each fits, the arrow key turns them, nothing comes from elsewhere."""

from helpers.tools import browser, cli, notebooks

import pytest
from playwright.sync_api import sync_playwright

pytestmark = pytest.mark.browser
if not browser.find():
    pytest.skip(browser.MISSING, allow_module_level=True)
ONCE = "Run this once where there is a network"
FITS = "(at => at.scrollWidth <= 1280 && at.scrollHeight <= 720)(Reveal.getCurrentSlide())"


def test_slides_fit_and_need_no_network(tmp_path, capfd):
    if cli.main(["slides", str(tmp_path)]):
        assert ONCE in capfd.readouterr().err
        pytest.skip("reveal.js is not here, and there is no network")
    asked = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.find(), args=["--no-sandbox"])
        shown = chromium.new_page(viewport={"width": 1280, "height": 720})
        shown.on("request", lambda request: asked.append(request.url.split(":")[0]))
        for lesson in notebooks.lessons():
            page = tmp_path / f"{lesson.path.stem}.html"
            stored = lesson.path.read_text("utf-8").split("## Going deeper")[0]
            assert page.read_text("utf-8").count("Predict:") == stored.count("Predict:") > 0
            shown.goto(page.as_uri())
            shown.wait_for_function("Reveal.isReady()")
            for number in range(shown.evaluate("Reveal.getTotalSlides()")):
                assert shown.evaluate("Reveal.getSlidePastCount()") == number
                assert shown.evaluate(FITS), (page.name, number)
                shown.keyboard.press("ArrowRight")
    assert set(asked) <= {"file", "data"}


def test_without_reveal_a_sentence_says_how_to_get_it(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("BERT_ASSETS", str(tmp_path))
    assert cli.main(["slides", str(tmp_path / "slides")]) == 1
    assert ONCE in capfd.readouterr().err
