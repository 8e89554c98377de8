"""The built web app as files: read once, compressed once, sent with a policy that lets the page run nothing but them.

Server and router both hand them out. Knows no request: server and router ask for a file by name.
"""

import gzip
import mimetypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "server" / "ui" / "static"
INDEX = "index.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
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

GREETING = b"Ollama is running"
"""What clients of that dialect look for at `/` before they ask anything."""

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class WebFile:
    data: bytes
    packed: bytes
    content_type: bytes
    lasts: bool
    """Its name changes with its content."""

    def answer(self, accepted_encodings: bytes) -> tuple[Headers, bytes]:
        """Headers but for the length, and the body."""
        is_packed = b"gzip" in accepted_encodings and len(self.packed) < len(self.data)
        headers = [
            (b"content-type", self.content_type),
            (b"cache-control", b"public, max-age=31536000, immutable" if self.lasts else b"no-cache"),
            *([(b"content-encoding", b"gzip")] if is_packed else []),
            *HEADERS,
        ]
        return headers, self.packed if is_packed else self.data


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


def has_web_app() -> bool:
    """It has been built."""
    return (STATIC / INDEX).is_file()


def web_file(path: str, accept: bytes = b"text/html") -> WebFile | None:
    """The file at a path of the address; `/` is the page, built or not, and a line of text for clients that read no HTML."""
    name = path.removeprefix("/") or INDEX
    if path == "/" and b"text/html" not in accept:
        return WebFile(GREETING, GREETING, b"text/plain; charset=utf-8", lasts=False)
    found = _files().get(name)
    if found is None and name == INDEX:
        return WebFile(NOT_BUILT, NOT_BUILT, b"text/html; charset=utf-8", lasts=False)
    return found
