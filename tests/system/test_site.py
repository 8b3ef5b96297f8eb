"""The static site: built once from the stored notebooks, crawled, and seen at two widths."""

import importlib.util
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser

from helpers.tools import browser

import pytest
from playwright.sync_api import sync_playwright

pytestmark = pytest.mark.browser
if not (browser.find() and importlib.util.find_spec("sphinx_book_theme")):
    pytest.skip("no browser, or no Sphinx: see browser.MISSING, docs", allow_module_level=True)


class Page(HTMLParser):
    """The anchors of a page, its links and the pictures without words."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.mute = {""}, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors.add(found.get("id"))
        self.links += [found[name] for name in ("href", "src") if found.get(name)]
        self.mute += [found] if tag == "img" and not found.get("alt") else []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages by path, as `python -m helpers site FOLDER` builds them on GitHub."""
    work = tmp_path_factory.mktemp("site")
    for command in (["init"], ["remote", "add", "origin", "git@github.com:someone/bert.git"]):
        subprocess.run(["git", *command], cwd=work, check=True, capture_output=True)
    command = [sys.executable, "-m", "helpers", "site", str(work / "html")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_DIR", str(work / ".git"))
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = (work / "html").rglob("*.html")
    return {path: Page(path) for path in pages if "_static" not in path.parts}


def test_links_resolve_and_pictures_have_words(site):
    wrong = [f"{path.name}: {found}" for path, page in site.items() for found in page.mute]
    for path, page in site.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            file, anchor = map(urllib.parse.unquote, (parts.path, parts.fragment))
            target = (path.parent / file).resolve() if file else path
            if not target.exists() or anchor not in site.get(target, page).anchors:
                wrong.append(f"{path.name}: {link}")
    assert not wrong
    assert sum("mybinder.org/v2/gh/someone/bert/" in str(page.links) for page in site.values()) > 25


@pytest.mark.parametrize("width", [375, 1280])
def test_no_page_is_wider_than_the_screen(site, width):
    with sync_playwright() as playwright:
        shown = playwright.chromium.launch(executable_path=browser.find(), args=["--no-sandbox"])
        page = shown.new_page(viewport={"width": width, "height": 800})
        wide = []
        for path in site:
            page.goto(path.as_uri(), wait_until="domcontentloaded")
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append(path.name)
        shown.close()
    assert not wide
