"""A model hub and a package index on the loopback address, which misbehave on demand.

Speaks as much of the hub's protocol as is used to load a pinned revision: resolve (HEAD and GET,
etags, commit, Range, large files redirected to a "download server").
"""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from helpers.models import catalogue

LARGE = 100_000  # bytes from which a file has a SHA-256 etag and is redirected, as on the hub


class HubServer:
    """Serve `repos` (hub id -> folder) and `packages` (a folder of archives) in a `with` block.

    `misbehave(pattern, mode, times)` makes requests whose path contains the regular expression
    fail: an HTTP status, "cut" (half of the bytes, then the connection closes), "stall" (half of
    the bytes, then nothing) or "silent" (the request is read and never answered); `times` limits
    how often. `requests` lists what was asked: (method, path, headers). A server that refuses
    connections is one whose `with` block has ended.
    """

    def __init__(self, repos: dict[str, Path], packages: Path | None = None):
        self.repos = repos
        self.packages = packages
        self.requests: list[tuple[str, str, dict]] = []
        self.rules: list[list] = []
        self.closing = threading.Event()
        self.digests: dict[Path, tuple[str, str]] = {}
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

    def misbehave(self, pattern: str, mode: str, times: int | None = None) -> None:
        self.rules.append([pattern, mode, times])

    def mode_of(self, path: str) -> str | None:
        for rule in self.rules:
            pattern, mode, times = rule
            if times != 0 and re.search(pattern, path):
                rule[2] = None if times is None else times - 1
                return mode
        return None

    def revision(self, hub_id: str) -> str:
        pinned = {asset.hub_id: asset.revision for asset in catalogue.CATALOGUE.values()}
        return pinned.get(hub_id) or hashlib.sha1(hub_id.encode()).hexdigest()

    def etag(self, file: Path) -> tuple[str, bool]:
        """The hub's etag (SHA-256 for large files, else git's blob id), and whether it is large."""
        if file not in self.digests:
            content = file.read_bytes()
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            large = len(content) >= LARGE or file.suffix in (".safetensors", ".bin")
            self.digests[file] = (hashlib.sha256(content).hexdigest() if large else git, large)
        return self.digests[file]


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, dict(self.headers)))
        self.mode = self.hub.mode_of(path)
        if self.mode == "silent":
            self.hub.closing.wait(60)
            self.close_connection = True
        elif self.mode in ("404", "429", "500"):
            self.answer(int(self.mode), b"", {"Retry-After": "30"} if self.mode == "429" else {})
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*match.groups())
        elif match := re.fullmatch(r"/large/([^/]+/[^/]+)/(.+)", path):
            self.file(self.hub.repos[match[1]] / match[2], {})
        elif (match := re.fullmatch(r"/simple/([^/]+)/?", path)) and self.hub.packages:
            name = re.escape(match[1]).replace(r"\-", "[-_.]")
            names = [file.name for file in self.hub.packages.iterdir()]
            found = [file for file in names if re.match(name + "-", file, re.IGNORECASE)]
            page = "".join(f'<a href="/packages/{file}">{file}</a>' for file in found)
            self.answer(200 if found else 404, page.encode(), {"Content-Type": "text/html"})
        elif path.startswith("/packages/") and self.hub.packages:
            self.file(self.hub.packages / Path(path).name, {})
        else:
            self.answer(404, b"")

    def resolve(self, hub_id: str, revision: str, name: str):
        if hub_id not in self.hub.repos or revision != self.hub.revision(hub_id):
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        folder = self.hub.repos[hub_id]
        commit = {"X-Repo-Commit": self.hub.revision(hub_id)}
        if not (folder / name).is_file():
            self.answer(404, b"", commit | {"X-Error-Code": "EntryNotFound"})
            return
        etag, large = self.hub.etag(folder / name)
        if not large:
            self.file(folder / name, commit | {"ETag": f'"{etag}"'})
            return
        size = (folder / name).stat().st_size
        # Another host name, as on the hub: whoever sends the user's token there has a bug.
        place = f"http://localhost:{self.hub.server.server_port}/large/{hub_id}/{name}"
        linked = {"X-Linked-ETag": f'"{etag}"', "X-Linked-Size": str(size), "Location": place}
        self.answer(302, b"", commit | linked)

    def file(self, path: Path, headers: dict):
        if not path.is_file():
            self.answer(404, b"")
            return
        content, status = path.read_bytes(), 200
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start, status = int(match[1]), 206
            shown = f"bytes {start}-{len(content) - 1}/{len(content)}"
            headers = headers | {"Content-Range": shown}
            content = content[start:]
        self.answer(status, content, headers | {"Accept-Ranges": "bytes"})

    def answer(self, status: int, body: bytes, headers: dict | None = None):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            half = self.mode in ("cut", "stall")
            self.wfile.write(body[: len(body) // 2] if half else body)
            self.close_connection = half
            if self.mode == "stall":
                self.hub.closing.wait(60)
