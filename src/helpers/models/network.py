"""Ask servers with little patience, and take downloads up again."""

import functools
import http.client
import re
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from helpers.core.files import sha256 as sha256_of
from helpers.core.progress import progress_bar

PATIENCE = 4  # seconds that a silent server may cost before the next source is asked


class UnavailableError(Exception):
    """One source cannot serve; the message is the reason, and the next source is tried."""


class SilentError(UnavailableError):
    """A source did not answer in time."""


def within(seconds: float, call: Callable, *args, **kwargs):
    """Return what a call returns; TimeoutError after `seconds`, the look-up of names included."""
    answer = Future()

    def work():
        try:
            answer.set_result(call(*args, **kwargs))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return answer.result(seconds)


@contextmanager
def asking(place: str) -> Iterator[None]:
    """Turn errors into UnavailableError, which says what a place answered or why it did not."""
    try:
        yield
    except UnavailableError:
        raise
    except Exception as error:
        response = getattr(error, "response", error)
        if code := getattr(response, "status_code", None) or getattr(error, "code", None):
            raise UnavailableError(f"{place} answered {code}") from None
        said = f"{type(error).__name__}: {error}".split("\n")[0]
        if re.search("timed? ?out", said, re.IGNORECASE):
            raise SilentError(f"{place} did not respond within {PATIENCE} s") from None
        raise UnavailableError(f"{place} could not be reached ({said})") from None


def fetch_file(
    url: str, target: Path, size: int, sha256: str | None, title: str, headers: dict | None = None
) -> None:
    """Download to `target` by way of a .part file that a later call goes on with.

    A connection that breaks is taken up again as long as each try brings new bytes.

    Raises:
        UnavailableError: For what the network did, and for a wrong digest.
        OSError: For what the disk did; nothing is left behind.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part, before = target.with_name(target.name + ".part"), -1
    try:
        with progress_bar(size, desc=title, unit="B", unit_scale=True) as bar:
            while (have := part.stat().st_size if part.exists() else 0) < size:
                if have == before:
                    got = f"{have / 1e6:.1f} of {size / 1e6:.1f} MB"
                    raise UnavailableError(f"{title} was cut off at {got}")
                before, asked = have, dict(headers or {})
                if have:
                    asked["Range"] = f"bytes={have}-"
                blocks = _blocks(url, asked, title)
                with part.open("ab" if next(blocks) == 206 else "wb") as file:
                    bar.n = file.tell()
                    for block in blocks:
                        file.write(block)
                        file.flush()  # what has come survives a kill
                        bar.update(len(block))
        if part.stat().st_size != size or (sha256 and sha256_of(part) != sha256):
            part.unlink()
            raise UnavailableError(f"{title} has a wrong size or SHA-256")
        part.replace(target)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _blocks(url: str, headers: dict, title: str) -> Iterator:
    """Yield the answer's HTTP status, then its bytes as they come, until they end."""
    request = urllib.request.Request(url, headers=headers)
    with asking(title), _opener().open(request, timeout=PATIENCE) as response:
        yield response.status
        try:
            while block := response.read1(1 << 18):
                yield block
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            return


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    """Open links with the system's certificates, and with those and the proxy of pip."""
    import certifi

    command = [sys.executable, "-P", "-m", "pip", "config", "list"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    settings = dict(re.findall(r"\.(cert|proxy)='(.+)'$", listing, re.MULTILINE))
    context = ssl.create_default_context()
    for file in {certifi.where(), settings.get("cert", certifi.where())}:
        context.load_verify_locations(file)
    proxies = dict.fromkeys(("http", "https"), settings["proxy"]) if "proxy" in settings else None
    handlers = urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler(proxies)
    return urllib.request.build_opener(*handlers)
