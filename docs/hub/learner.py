"""A learner of a rehearsal: logs in to JupyterHub, opens a notebook and runs it, as people do."""

import contextlib
import json
import time
import uuid

import requests
import websocket

LIMIT = 600  # seconds that a cell or the start of a server may take


class RehearsalError(RuntimeError):
    """The rehearsal cannot go on; the message says why, and what to do where that is known."""


class Learner:
    """Speaks to the hub and to its own server through the interfaces that JupyterLab uses."""

    def __init__(self, address: str, name: str, password: str):
        self.address, self.name, self.password = address, name, password
        self.server = f"{address}/user/{name}"
        self.web = requests.Session()
        self.kernel = None

    def log_in(self) -> None:
        """Log in with the password and wait until the learner's own server has started."""
        self.web.get(f"{self.address}/hub/login", timeout=LIMIT)
        form = {"username": self.name, "password": self.password, "_xsrf": self._xsrf()}
        login = f"{self.address}/hub/login"
        answer = self.web.post(login, data=form, allow_redirects=False, timeout=LIMIT)
        if answer.status_code != 302:
            raise RehearsalError(f"{self.name} could not log in: {answer.status_code}")
        me = f"{self.address}/hub/api/users/{self.name}"
        headers = {"X-XSRFToken": self._xsrf()}
        token = self._answer("POST", f"{me}/tokens", headers=headers, json={})["token"]
        self.web.headers["Authorization"] = f"token {token}"
        self._answer("POST", f"{me}/server", json={})
        end = time.monotonic() + LIMIT
        while not self._answer("GET", me)["servers"].get("", {}).get("ready"):
            if time.monotonic() > end:
                raise RehearsalError(f"the server of {self.name} did not start")
            time.sleep(1)

    def _xsrf(self) -> str:
        return next(cookie.value for cookie in self.web.cookies if cookie.name == "_xsrf")

    def _answer(self, method: str, address: str, **options):
        answer = self.web.request(method, address, timeout=LIMIT, **options)
        if not answer.ok:
            raise RehearsalError(f"{self.name}: {method} {address}: {answer.text[:500]}")
        return answer.json() if answer.text else None

    def run(self, name: str) -> float:
        """Run all cells of the learner's own copy of a notebook; return the seconds it took.

        Raises:
            RehearsalError: If a cell fails.
        """
        path = f"bert-on-any-device/{name}"
        page = self._answer("GET", f"{self.server}/api/contents/{path}")
        wanted = {"path": path, "name": "", "type": "notebook", "kernel": {"name": "python3"}}
        start = time.perf_counter()
        self.kernel = self._answer("POST", f"{self.server}/api/sessions", json=wanted)["kernel"]
        channels = f"{self.server}/api/kernels/{self.kernel['id']}/channels"
        header = [f"Authorization: {self.web.headers['Authorization']}"]
        connection = websocket.create_connection(
            channels.replace("http", "ws", 1),
            header=header,
            timeout=LIMIT,
            skip_utf8_validation=True,  # in Python, byte by byte
        )
        with contextlib.closing(connection):
            for cell in page["content"]["cells"]:
                if cell["cell_type"] == "code":
                    self._run_cell(connection, cell["source"])
        return time.perf_counter() - start

    def _run_cell(self, connection: websocket.WebSocket, source: str) -> None:
        ident = uuid.uuid4().hex
        header = {"msg_id": ident, "msg_type": "execute_request", "session": self.name}
        header |= {"username": self.name, "version": "5.3"}
        content = {"code": source, "silent": False, "store_history": True, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        connection.send(json.dumps(message | {"channel": "shell"}))
        while True:
            received = connection.recv()
            answer = json.loads(received) if isinstance(received, str) else {}  # a picture's bytes
            mine = answer.get("parent_header", {}).get("msg_id") == ident
            if mine and answer["msg_type"] == "execute_reply":
                break
        if answer["content"]["status"] != "ok":
            failure = f"{answer['content'].get('ename')}: {answer['content'].get('evalue')}"
            raise RehearsalError(f"{self.name}: {failure}\nin the cell\n{source}")
