"""The web app before many replicas: its files, and which of its questions go to a replica.

What looks into an engine (events, requests, its machine) is not passed on: behind the router's one key every client would see
the requests of all.
"""

from penstock.service.router.proxy.incoming import Incoming
from penstock.service.webfiles import web_file

FOLDER = "/assets/"
PATHS = ("/", "/icon.svg")
ASKED = ("about", "simulate", "plan", "blocks", "calculators", "advice", "lint", "quizzes")
"""Questions that any replica answers alike."""


def page_answer(request: Incoming) -> tuple[bytes, bytes] | None:
    """Header lines and body of a file of the app; None if that is not what is asked for."""
    path = request.path
    if request.method != "GET" or not (path in PATHS or path.startswith(FOLDER)):
        return None
    found = web_file(path, request.headers.get(b"accept", b""))
    if found is None:
        return None
    headers, body = found.answer(request.headers.get(b"accept-encoding", b""))
    return b"".join(b"%b: %b\r\n" % pair for pair in headers), body


def is_for_any_replica(path: str) -> bool:
    prefix, _, rest = path.partition("/app/v1/")
    return not prefix and rest.partition("/")[0] in ASKED
