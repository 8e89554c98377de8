"""The built app, for those who ask with a browser."""

from typing import Any

from starlette.requests import Request

from penstock.service.server.http.faults import ApiError, ErrorKind
from penstock.service.webfiles import WebFile, web_file


class FileAnswer:
    """A file as a response."""

    def __init__(self, file: WebFile) -> None:
        self._file = file

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers, body = self._file.answer(dict(scope["headers"]).get(b"accept-encoding", b""))
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def asset(request: Request) -> FileAnswer:
    """A file of the app; of `/`, the app for clients that read HTML and a line of text for all others."""
    found = web_file(request.url.path, request.headers.get("accept", "").encode("latin-1"))
    if found is None:
        raise ApiError(ErrorKind.NOT_FOUND, "there is no such file; reload the page", code="not_found")
    return FileAnswer(found)
