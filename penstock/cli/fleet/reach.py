"""A command's question to a running server."""

import json
from collections.abc import Callable

from penstock.errors import ConfigError

TIMEOUT_S = 10.0


def ask_server(
    url: str, path: str, key: str, way: Callable[[int, bytes], str], body: object = None, timeout_s: float = TIMEOUT_S
) -> bytes:
    """What a server answers, the body posted if there is one. Any status but 200 is an error, to which `way` adds the rest of
    its sentence."""
    from penstock.service.upstream.ask import ask  # asyncio

    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        answer = ask(url.rstrip("/") + path, headers=headers, body=data, timeout_s=timeout_s)
    except OSError as error:
        reason = str(error) or f"nothing came in {timeout_s:g} s"
        raise ConfigError(f"{url} does not answer: {reason}; is the server running?") from error
    if answer.status != 200:
        raise ConfigError(f"{url} answers {answer.status}{way(answer.status, answer.body)}")
    return answer.body
