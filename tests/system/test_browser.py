"""The browser of the tests: found, got, or said to be missing."""

import sys

from helpers.tools import browser

import pytest


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without a browser, whose only folder on PATH is returned."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(browser, "OWN", tmp_path / "own")
    monkeypatch.setattr(browser, "NAMES", browser.NAMES[:4])
    return tmp_path


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.skipif(sys.platform != "linux", reason="stubs are shell scripts")
def test_a_stub_that_does_not_start_is_passed_over(bare):
    assert browser.find() is None
    script(bare / "chromium-browser", "echo install the snap >&2; exit 1")
    assert browser.find() is None
    script(bare / "google-chrome", "exit 0")
    assert browser.find() == str(bare / "google-chrome")
    script(bare / "own/chromium-9/chrome-linux64/chrome", "exit 0")
    (bare / "google-chrome").unlink()
    assert browser.find() == str(bare / "own/chromium-9/chrome-linux64/chrome")
