"""The built app, for those who ask with a browser."""

from starlette.requests import Request

from penstock.service.server.http.answer import Plain
from penstock.service.server.http.faults import ApiError, ErrorKind
from penstock.service.webfiles import web_file


async def asset(request: Request) -> Plain:
    """A file of the app; of `/`, the app for clients that read HTML and a line of text for all others."""
    found = web_file(request.url.path, request.headers.get("accept", "").encode("latin-1"))
    if found is None:
        raise ApiError(ErrorKind.NOT_FOUND, "there is no such file; reload the page", code="not_found")
    ((_, kind), *headers), body = found.answer(request.headers.get("accept-encoding", "").encode("latin-1"))
    return Plain(body, kind.decode(), headers)
