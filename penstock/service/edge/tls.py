"""Certificates of a listener and of the connections it makes: read at start, and again when their files change.

Files that do not fit together change nothing: those before go on being used, and the log says why.
"""

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path

from penstock.errors import ConfigError
from penstock.service.config import TlsConfig

LOGGER = logging.getLogger(__name__)
LOOK_S = 1.0
"""Between two looks at the files."""
HANDSHAKE_S = 10.0
"""How long a client may take over the handshake."""


class TlsContexts:
    """The contexts of connections from now on: a listener's, and those for connections to replicas."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises ConfigError for files that cannot be used."""
        self._config = config
        self._outgoing: dict[Path | None, ssl.SSLContext] = {}
        self._stamps = _stamps(*self._paths())
        self.listener = self._shown = self._listening()
        """The first is what a listener is made with, None where plain HTTP is spoken; every handshake asks for the second."""
        if self.listener is not None:
            self.listener.sni_callback = self._choose

    def outgoing(self, ca: Path | None) -> ssl.SSLContext:
        """For servers that `ca` signs, or those whom the system trusts; asked for at every connection."""
        if ca not in self._outgoing:
            self._outgoing[ca] = self._calling(ca)
            self._stamps |= _stamps(ca)
        return self._outgoing[ca]

    def look(self) -> bool:
        """Take up renewed files, for connections made from now on; returns whether there were any."""
        stamps = _stamps(*self._paths())
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:  # all or nothing: a half that does not fit must not reach a connection
            shown, outgoing = self._listening(), {ca: self._calling(ca) for ca in self._outgoing}
        except ConfigError as error:
            LOGGER.error("certificates changed and cannot be used, those before stay: %s", error)
            return False
        self._shown, self._outgoing = shown, outgoing
        LOGGER.warning("certificates are read again: %s", ", ".join(str(path) for path in self._paths()))
        return True

    async def watch(self) -> None:
        """Runs for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def _choose(self, connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        """A listener's own context cannot be exchanged, and authorities once trusted cannot be taken out of it."""
        connection.context = self._shown or first

    def _listening(self) -> ssl.SSLContext | None:
        config = self._config
        if config.tls_cert is None:
            return None
        context = _context(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        if config.tls_client_ca is not None:
            _trust(context, config.tls_client_ca, "--tls-client-ca")
            context.verify_mode = ssl.CERT_REQUIRED
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.num_tickets = 0  # a resumed session would outlive the authority that vouched for it
        return context

    def _calling(self, ca: Path | None) -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_CLIENT)
        if ca is None:
            context.load_default_certs()
        else:
            _trust(context, ca, "--replica-ca")
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        config = self._config
        if config.tls_cert is None:
            return
        try:
            context.load_cert_chain(config.tls_cert, config.tls_key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--tls-cert {config.tls_cert} and --tls-key {config.tls_key} cannot be used: {_why(error)}; "
                "give a certificate and its own key, without a password, as PEM"
            ) from error

    def _paths(self) -> list[Path]:
        named = (self._config.tls_cert, self._config.tls_key, self._config.tls_client_ca, *self._outgoing)
        return [path for path in named if path is not None]


def _stamps(*paths: Path | None) -> dict[Path, tuple[int, int, int]]:
    """What changes when a file does, of those that are there."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            if path is not None:
                status = path.stat()
                found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _trust(context: ssl.SSLContext, path: Path, flag: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be used: {_why(error)}; give certificates as PEM") from error


def _why(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
