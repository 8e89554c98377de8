"""Who may call: host names, origins of web pages, keys of the command line. Keys with limits are the gateway's."""

import hashlib
import hmac
from collections.abc import Iterable

from penstock.config import ListenConfig, is_loopback
from penstock.service.router.proxy.client import Incoming
from penstock.service.router.proxy.faults import Refusal

PUBLIC_PATHS = ("/livez", "/readyz", "/health")
OWN_HOSTS = ("localhost", "127.0.0.1", "[::1]")


class PlainKeys:
    """Kept as digests and compared in constant time, all of them every time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def number(self, key: bytes) -> int | None:
        given = hashlib.sha256(key).digest()
        found = None
        for number, digest in enumerate(self._digests):
            if hmac.compare_digest(given, digest):
                found = number
        return found


class Access:
    def __init__(self, config: ListenConfig) -> None:
        self.keys = PlainKeys(config.api_key)
        self._hosts = {host.lower() for host in (*OWN_HOSTS, config.host, *config.allowed_host)}
        self._checks_host = is_loopback(config.host) or bool(config.allowed_host)
        self._origins = {origin.lower().rstrip("/") for origin in config.allowed_origin}

    def check(self, request: Incoming) -> None:
        """Raises Refusal for a host or origin that is not ours."""
        headers = request.headers
        if self._checks_host and _host_name(headers.get(b"host", b"")) not in self._hosts:
            raise Refusal(
                403, "this host name is not one we go by; allow it with --allowed-host", code="host_not_allowed"
            )
        origin = headers.get(b"origin")
        if origin and request.method not in ("GET", "HEAD", "OPTIONS") and not self._is_known(origin, headers):
            raise Refusal(
                403, "pages of this origin may not call us; allow it with --allowed-origin", code="origin_not_allowed"
            )

    def cors(self, request: Incoming) -> bytes:
        """Header lines that let a page we know read the answer."""
        origin = request.headers.get(b"origin")
        if not origin or origin.decode("latin-1").lower().rstrip("/") not in self._origins:
            return b""
        return (
            b"access-control-allow-origin: %b\r\n"
            b"access-control-allow-headers: authorization, content-type, x-api-key, x-request-id\r\n"
            b"access-control-allow-methods: GET, POST, OPTIONS\r\nvary: origin\r\n" % origin
        )

    def _is_known(self, origin: bytes, headers: dict[bytes, bytes]) -> bool:
        text = origin.decode("latin-1").lower().rstrip("/")
        host = headers.get(b"host", b"").decode("latin-1").lower()
        return text in self._origins or text in (f"http://{host}", f"https://{host}")


def key_of(request: Incoming) -> bytes:
    """The key a request carries, in either of the ways clients send it; empty if none."""
    authorization = request.headers.get(b"authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() == b"bearer":
            return key.strip()
    return request.headers.get(b"x-api-key", b"")


def no_key() -> Refusal:
    return Refusal(
        401,
        "the API key is missing or wrong; send it as `Authorization: Bearer KEY`",
        code="invalid_api_key",
        headers=((b"www-authenticate", b"Bearer"),),
    )


def _host_name(host: bytes) -> str:
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdecimal() and not (name.startswith("[") and not name.endswith("]")) else text
