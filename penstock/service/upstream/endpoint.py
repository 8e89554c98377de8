"""Where a server listens."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`path` comes before every route."""

    host: str
    port: int
    is_tls: bool
    path: str = ""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}"


def endpoint_of(url: str) -> Endpoint:
    """Read an address as people give it; a trailing /v1 is dropped."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no address of a server: {error}") from None
    is_clean = url.isascii() and url.isprintable() and " " not in url and not parts.username
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_clean:
        raise ConfigError(f"{url!r} is no address of a server; write http://HOST:PORT")
    is_tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Endpoint(parts.hostname, port or (443 if is_tls else 80), is_tls, path)
