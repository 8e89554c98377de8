"""Certificates of a listener and of the connections it makes: read at start, and again when their files change.

A pair that does not fit together changes nothing: the one before goes on being shown, and the log says why.
"""

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path

from penstock.config import TlsConfig
from penstock.errors import ConfigError

LOGGER = logging.getLogger(__name__)
LOOK_S = 1.0
"""Between two looks at the files."""
HANDSHAKE_S = 10.0
"""How long a client may take over the handshake."""


class TlsContexts:
    """The contexts that show one certificate: a listener's, and those for connections to replicas."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises ConfigError for files that cannot be used."""
        self._config = config
        self._contexts: list[ssl.SSLContext] = []
        self._outgoing: dict[Path | None, ssl.SSLContext] = {}
        self._stamp = self._file_stamp()
        self.listener: ssl.SSLContext | None = None
        """None where plain HTTP is spoken."""
        if config.tls_cert is not None:
            self.listener = _context(ssl.PROTOCOL_TLS_SERVER)
            self._show(self.listener)
            if config.tls_client_ca is not None:
                _trust(self.listener, config.tls_client_ca, "--tls-client-ca")
                self.listener.verify_mode = ssl.CERT_REQUIRED

    def outgoing(self, ca: Path | None) -> ssl.SSLContext:
        """For servers that `ca` signs, or those whom the system trusts."""
        if ca in self._outgoing:
            return self._outgoing[ca]
        context = self._outgoing[ca] = _context(ssl.PROTOCOL_TLS_CLIENT)
        if ca is None:
            context.load_default_certs()
        else:
            _trust(context, ca, "--replica-ca")
        if self._config.tls_cert is not None:
            self._show(context)
        return context

    def look(self) -> bool:
        """Take up a renewed certificate, for connections made from now on; returns whether there was one."""
        stamp = self._file_stamp()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._load(_context(ssl.PROTOCOL_TLS_SERVER))  # a half that does not fit must not reach a context in use
            for context in self._contexts:
                self._load(context)
        except ConfigError as error:
            LOGGER.error("the certificate changed and cannot be used, the one before stays: %s", error)
            return False
        LOGGER.warning("the certificate %s is read again", self._config.tls_cert)
        return True

    async def watch(self) -> None:
        """Runs for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def _show(self, context: ssl.SSLContext) -> None:
        self._load(context)
        self._contexts.append(context)

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

    def _file_stamp(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for path in (self._config.tls_cert, self._config.tls_key):
            with contextlib.suppress(OSError):
                if path is not None:
                    status = path.stat()
                    found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)


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
