"""The built app: files read once, compressed once, sent with a policy that lets the page run nothing but them."""

import gzip
import mimetypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request

from penstock.server.http.faults import ApiError, ErrorKind

STATIC = Path(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
GREETING = b"Ollama is running"
"""What clients of that dialect look for at `/` before they ask anything."""
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"vary", b"accept, accept-encoding"),
)
NOT_BUILT = (
    b"<!doctype html><meta charset=utf-8><title>Penstock</title><h1>Penstock serves</h1>"
    b"<p>The web app has not been built: it takes npm. Run <code>make web</code> in the project and reload. "
    b"The API works without it: <a href=/docs>/docs</a>.</p>"
)


@dataclass(frozen=True, slots=True)
class WebFile:
    data: bytes
    packed: bytes
    content_type: bytes
    lasts: bool
    """Its name changes with its content."""


@cache
def _files() -> dict[str, WebFile]:
    """By path under `/`. What is not here is not served: no path of a request ever reaches the disk."""
    found = {}
    for path in sorted(STATIC.rglob("*")) if STATIC.is_dir() else ():
        if path.is_file():
            name = path.relative_to(STATIC).as_posix()
            kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
            data = path.read_bytes()
            found[name] = WebFile(data, gzip.compress(data, 9, mtime=0), kind.encode(), name.startswith("assets/"))
    return found


class FileAnswer:
    """A file as a response."""

    def __init__(self, file: WebFile) -> None:
        self._file = file

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        file = self._file
        accepted = dict(scope["headers"]).get(b"accept-encoding", b"")
        is_packed = b"gzip" in accepted and len(file.packed) < len(file.data)
        body = file.packed if is_packed else file.data
        headers = [
            (b"content-type", file.content_type),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"public, max-age=31536000, immutable" if file.lasts else b"no-cache"),
            *([(b"content-encoding", b"gzip")] if is_packed else []),
            *HEADERS,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def index(request: Request) -> FileAnswer:
    """The app, for those who read HTML; a line of text for everything else."""
    if "text/html" not in request.headers.get("accept", ""):
        return FileAnswer(WebFile(GREETING, GREETING, b"text/plain; charset=utf-8", lasts=False))
    built = _files().get("index.html")
    return FileAnswer(built or WebFile(NOT_BUILT, NOT_BUILT, b"text/html; charset=utf-8", lasts=False))


async def asset(request: Request) -> FileAnswer:
    found = _files().get(request.url.path.removeprefix("/"))
    if found is None:
        raise ApiError(ErrorKind.NOT_FOUND, "there is no such file; reload the page", code="not_found")
    return FileAnswer(found)
