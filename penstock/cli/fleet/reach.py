"""A command's question to a running server, and the flags that say which."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.cli.serve import ADMIN_VARIABLE, KEY_VARIABLE
from penstock.errors import ConfigError

TIMEOUT_S = 10.0
ORDER_TIMEOUT_S = 150.0


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """The server to ask, as its admin."""

    url: str = "http://127.0.0.1:8000"
    """Address of the server"""
    api_key: str = ""
    """Admin key of the server, where it asks for keys; PENSTOCK_ADMIN_KEY holds one too"""

    def __post_init__(self) -> None:
        check_address(self.url)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        return ask_server(self.url, path, admin_key(self.api_key), _message, body, ORDER_TIMEOUT_S)


def check_address(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"the address is {url}; it begins with http:// or https://")


def admin_key(given: str) -> str:
    return given or os.environ.get(ADMIN_VARIABLE, "") or os.environ.get(KEY_VARIABLE, "")


def ask_server(
    url: str, path: str, key: str, way: Callable[[int, bytes], str], body: object = None, timeout_s: float = TIMEOUT_S
) -> bytes:
    """What a server answers, the body posted if there is one. Any status but 200 is an error, to which `way` adds the rest of
    its sentence."""
    from penstock.service.upstream.ask import ask  # asyncio

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body).encode()
    try:
        answer = ask(url.rstrip("/") + path, headers=headers, body=data, timeout_s=timeout_s)
    except OSError as error:
        reason = str(error) or f"nothing came in {timeout_s:g} s"
        raise ConfigError(f"{url} does not answer: {reason}; is the server running?") from error
    if answer.status != 200:
        raise ConfigError(f"{url} answers {answer.status}{way(answer.status, answer.body)}")
    return answer.body


def _message(_: int, answer: bytes) -> str:
    try:
        return f": {json.loads(answer)['error']['message']}"
    except (ValueError, LookupError, TypeError):
        return ": no reason given"
