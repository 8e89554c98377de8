"""A hub on this machine that speaks as much of the Hugging Face protocol as a download needs."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "org/name"


class FakeHub(ThreadingHTTPServer):
    """Serves the files of one repository. What it does wrong is set by its fields."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(files)
        self.damage: dict[str, int] = {}
        """File -> how many of its next downloads arrive with a byte flipped."""
        self.cut: dict[str, int] = {}
        """File -> bytes after which its next download breaks off."""
        self.fault: tuple[int, str] | None = None
        """Status and error code answered to everything."""
        self.requests: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that hangs up is no concern of a test


@contextmanager
def fake_hub(files: Mapping[str, bytes]) -> Iterator[FakeHub]:
    with FakeHub(files) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlparse(self.path).path)
        self.server.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if self.server.fault is not None:
            self._refuse(*self.server.fault)
        elif path in (f"/api/models/{REPOSITORY}/revision/main", f"/api/models/{REPOSITORY}"):
            names = [{"rfilename": name} for name in self.server.files]
            self._send_json({"id": REPOSITORY, "modelId": REPOSITORY, "sha": COMMIT, "siblings": names})
        elif path == f"/api/models/{REPOSITORY}/tree/{COMMIT}":
            self._send_json([self._describe(name) for name in self.server.files])
        elif path.startswith(f"/{REPOSITORY}/resolve/"):
            _, name = path.removeprefix(f"/{REPOSITORY}/resolve/").split("/", 1)
            self._send_file(name)
        else:
            self._refuse(404, "RevisionNotFound" if REPOSITORY in path else "RepoNotFound")

    def _describe(self, name: str) -> dict[str, object]:
        data = self.server.files[name]
        described: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": _etag(name, data)[:40]}
        if _is_large(name):
            described["lfs"] = {"oid": _etag(name, data), "size": len(data), "pointerSize": 100}
        return described

    def _send_file(self, name: str) -> None:
        if name not in self.server.files:
            self._refuse(404, "EntryNotFound")
            return
        data = self.server.files[name]
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{_etag(name, data)}"')
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command == "GET":
            self._send_body(name, data, start)

    def _send_body(self, name: str, data: bytes, start: int) -> None:
        body = bytearray(data)
        if self.server.damage.get(name):
            self.server.damage[name] -= 1
            body[-1] ^= 1
        end = self.server.cut.pop(name, len(body))
        self.wfile.write(body[start:end])
        self.close_connection = end < len(body)

    def _send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf"))


def _etag(name: str, data: bytes) -> str:
    """Large files are named by their sha256, others by a shorter digest, as on the real hub."""
    digest = hashlib.sha256(data).hexdigest()
    return digest if _is_large(name) else digest[:40]
