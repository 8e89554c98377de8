"""The built app, for those who ask with a browser."""

from typing import Any

from starlette.requests import Request

from penstock.service.server.http.faults import ApiError, ErrorKind
from penstock.service.webfiles import WebFile, web_file

GREETING = b"Ollama is running"
"""What clients of that dialect look for at `/` before they ask anything."""


class FileAnswer:
    """A file as a response."""

    def __init__(self, file: WebFile) -> None:
        self._file = file

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers, body = self._file.answer(dict(scope["headers"]).get(b"accept-encoding", b""))
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def index(request: Request) -> FileAnswer:
    """The app, for those who read HTML; a line of text for everything else."""
    if "text/html" not in request.headers.get("accept", ""):
        return FileAnswer(WebFile(GREETING, GREETING, b"text/plain; charset=utf-8", lasts=False))
    return await asset(request)


async def asset(request: Request) -> FileAnswer:
    found = web_file(request.url.path)
    if found is None:
        raise ApiError(ErrorKind.NOT_FOUND, "there is no such file; reload the page", code="not_found")
    return FileAnswer(found)
