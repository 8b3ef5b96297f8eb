"""The static site: built once from the stored notebooks, crawled, and seen at two widths."""

import importlib.util
import subprocess
import urllib.parse

from helpers.tools import browser, cli

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import sync_playwright

pytestmark = pytest.mark.browser
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
    return [page for page in (work / "html").rglob("*.html") if "_static" not in page.parts]


def test_links_resolve_and_pictures_have_words(site):
    pages = {page: BeautifulSoup(page.read_text("utf-8"), "html.parser") for page in site}
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


def test_no_page_is_wider_than_the_screen(site):
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.find(), args=["--no-sandbox"])
        for width in (375, 1280):
            shown = chromium.new_page(viewport={"width": width, "height": 800})
            for page in site:
                shown.goto(page.as_uri())
                assert shown.evaluate("document.documentElement.scrollWidth") <= width, page.name
