"""Who may call: keys, host names that are ours, origins of web pages. Keys with limits are the gateway's."""

import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping

from penstock.service.config import ListenConfig, ServerConfig, is_loopback
from penstock.service.edge.refusal import forbidden, no_key
from penstock.service.edge.tokens import SignedTokens, read_jwt

PUBLIC_PATHS = ("/livez", "/readyz", "/health", "/", "/icon.svg")
"""What may be asked without a key: whether we live, and the page that asks for one."""
PUBLIC_FOLDER = "/assets/"
HEALTH_PATHS = ("/livez", "/readyz", "/health")
OWN_HOSTS = ("localhost", "127.0.0.1", "[::1]")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
MAX_SEEN_HOSTS = 64
ROUTER = "router"
"""The tenant whose key a router has: it says itself for whom it asks."""

HeaderMap = Mapping[bytes, bytes]
Pairs = list[tuple[bytes, bytes]]


class ApiKeys:
    """Keys are kept as digests and compared in constant time, all of them every time."""

    def __init__(self, keys: Iterable[str] = (), admin_keys: Iterable[str] = (), router_key: str = "") -> None:
        named = [
            *((f"key-{n}", key) for n, key in enumerate(keys)),
            *((f"admin-{n}", k) for n, k in enumerate(admin_keys)),
            *([(ROUTER, router_key)] if router_key else []),
        ]
        self._digests = [(name, hashlib.sha256(key.encode()).digest()) for name, key in named]

    def __len__(self) -> int:
        return len(self._digests)

    @staticmethod
    def is_admin(tenant: str) -> bool:
        return tenant.startswith("admin-")

    def tenant_of(self, key: bytes) -> str | None:
        """A name for the holder of the key that says nothing of the key itself."""
        given = hashlib.sha256(key).digest()
        found = None
        for name, digest in self._digests:
            if hmac.compare_digest(given, digest):
                found = name
        return found


class Access:
    """One for each listener."""

    def __init__(self, names: ListenConfig | ServerConfig, keys: ApiKeys) -> None:
        """Raises ConfigError for a file of signed tokens' that cannot be used."""
        self.keys = keys
        self.tokens = SignedTokens(read_jwt(names.jwt)) if names.jwt is not None else None
        self.is_open = not keys and self.tokens is None
        """No client needs a key."""
        self._hosts = {host.lower() for host in (*OWN_HOSTS, names.host, *names.allowed_host)}
        self._checks_host = is_loopback(names.host) or bool(names.allowed_host)
        self._seen_hosts: set[bytes] = set()
        """Of ours, as clients write them: with ports."""
        self._origins = {origin.lower().rstrip("/") for origin in names.allowed_origin}

    def check(self, method: str, headers: HeaderMap) -> None:
        """Raises Refusal for a host that is not ours, or for a page that may not write."""
        host = headers.get(b"host")  # only HTTP/1.0 leaves it out
        if self._checks_host and host is not None and host not in self._seen_hosts and not self._is_ours(host):
            raise forbidden("this host name is not allowed; allow it with --allowed-host", "host_not_allowed")
        origin = headers.get(b"origin")
        if origin and method not in SAFE_METHODS and not self._is_known(origin, host or b""):
            message = "pages of this origin may not call us; allow it with allowed-origin"
            raise forbidden(message, "origin_not_allowed")

    def tenant(self, method: str, path: str, headers: HeaderMap) -> str:
        """Whose request it is; empty where none is told from another. Raises Refusal for a key that opens nothing."""
        if self.is_open or is_public(path) or method == "OPTIONS":
            return ""
        tenant = self.holder(headers)
        if tenant is None:
            raise no_key()
        return tenant

    def holder(self, headers: HeaderMap) -> str | None:
        """The tenant whose key or token a request carries."""
        key = key_of(headers)
        tenant = self.keys.tenant_of(key)
        if tenant is not None or self.tokens is None:
            return tenant
        found = self.tokens.find(key, time.time())
        return f"jwt-{found.tenant}" if found is not None else None

    def cors(self, headers: HeaderMap) -> Pairs:
        """Headers that let a page we know read the answer."""
        origin = headers.get(b"origin")
        if not origin or origin.decode("latin-1").lower().rstrip("/") not in self._origins:
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-headers", b"authorization, content-type, x-api-key, x-request-id"),
            (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
            (b"access-control-expose-headers", b"x-request-id, retry-after, server-timing"),
            (b"vary", b"origin"),
        ]

    def _is_ours(self, host: bytes) -> bool:
        is_ours = _host_name(host) in self._hosts
        if is_ours and len(self._seen_hosts) < MAX_SEEN_HOSTS:
            self._seen_hosts.add(host)
        return is_ours

    def _is_known(self, origin: bytes, host: bytes) -> bool:
        """The page is ours, or the operator allowed it."""
        text, own = origin.decode("latin-1").lower().rstrip("/"), host.decode("latin-1").lower()
        return text in self._origins or text in (f"http://{own}", f"https://{own}")


def is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER)


def key_of(headers: HeaderMap) -> bytes:
    """The key a request carries, in either of the ways clients send it; empty if none."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")


def _host_name(host: bytes) -> str:
    """Without the port. What is no host name at all comes back as it is and is known to nobody."""
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdecimal() and not (name.startswith("[") and not name.endswith("]")) else text
