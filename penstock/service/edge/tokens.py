"""Signed tokens of an identity provider (OpenID Connect, JWT) in place of keys: who signed them, for whom, until when.

Needs pyjwt (penstock[jwt]). Only public-key signatures count. The provider's keys are fetched at the start and again every few
minutes; while that fails, those that are known stay.
"""

import asyncio
import hashlib
import logging
import time
import tomllib
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.errors import ConfigError

LOGGER = logging.getLogger(__name__)
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
FETCH_S = 300.0
TIMEOUT_S = 5.0
MAX_KEYS_BYTES = 1 << 20
MAX_TOKEN_BYTES = 8192
MAX_KNOWN = 10_000
"""Tokens whose signature was found good, so that it is computed once."""
DISCOVERY = "/.well-known/openid-configuration"


class JwtSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Signed tokens of an identity provider, taken in place of keys."""

    issuer: str
    audience: str
    keys: str = ""
    """Where its public keys are: the address of its JWKS, or a file; empty asks the issuer (OpenID Connect discovery)"""
    tenant_claim: str = "tenant"
    """The claim that names the tenant"""

    def __post_init__(self) -> None:
        if not self.keys and not self.issuer.startswith(("https://", "http://")):
            raise ValueError("[jwt] has no `keys`, and its issuer is no address that could be asked for them")


class TokenHolder(NamedTuple):
    """Whom a token names."""

    subject: str
    tenant: str
    words: tuple[str, ...]
    """Of its `scope`."""
    expires_at: float


def read_jwt(path: Path) -> JwtSettings:
    """The table [jwt] of a TOML file; what else is there is not looked at."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text())["jwt"], JwtSettings)
    except (OSError, ValueError, KeyError, msgspec.ValidationError) as error:
        why = "there is no table [jwt]" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"--jwt {path} cannot be used: {why}; it says issuer, audience and keys") from error


class SignedTokens:
    """`look` on a thread; `find` on an event loop."""

    def __init__(self, settings: JwtSettings) -> None:
        try:
            import jwt
        except ImportError as error:
            raise ConfigError(
                "[jwt] needs a package that is not installed; pip install 'penstock[jwt]', or leave it out"
            ) from error
        self._jwt: Any = jwt
        self._settings = settings
        self._keys: dict[str, Any] = {}
        self._known: dict[bytes, TokenHolder] = {}
        self._fetched_s = -FETCH_S

    def look(self, unix_s: float) -> None:
        """Fetch the provider's keys, if it is time. Blocks."""
        if unix_s - self._fetched_s < FETCH_S:
            return
        self._fetched_s = unix_s
        try:
            found = self._jwt.PyJWKSet.from_dict(msgspec.json.decode(_read(self._where())))
            self._keys = {str(key.key_id): key for key in found.keys if key.key_id}
            self._known = {}
        except (OSError, ValueError, LookupError, self._jwt.PyJWTError) as error:
            LOGGER.warning("the keys of [jwt] cannot be fetched, those that are known stay: %s", error)

    async def watch(self) -> None:
        """Runs for ever."""
        while True:
            await asyncio.to_thread(self.look, time.time())
            await asyncio.sleep(FETCH_S)

    def find(self, token: bytes, unix_s: float) -> TokenHolder | None:
        """Whose token it is; None for one that is not signed as it must be."""
        if token.count(b".") != 2 or len(token) > MAX_TOKEN_BYTES:
            return None
        digest = hashlib.sha256(token).digest()
        holder = self._known.get(digest)
        if holder is None:
            holder = self._read(token)
            if holder is not None:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                self._known[digest] = holder
        return holder if holder is not None and unix_s < holder.expires_at else None

    def _where(self) -> str:
        """The provider's keys, as it says itself if nobody else does."""
        settings = self._settings
        if settings.keys:
            return settings.keys
        said = msgspec.json.decode(_read(settings.issuer.rstrip("/") + DISCOVERY))
        if said["issuer"] != settings.issuer or not str(said["jwks_uri"]).startswith(("https://", "http://")):
            raise ValueError(f"{settings.issuer} says that it is {said['issuer']} with keys at {said['jwks_uri']}")
        return str(said["jwks_uri"])

    def _read(self, token: bytes) -> TokenHolder | None:
        settings = self._settings
        try:
            key = self._keys.get(str(self._jwt.get_unverified_header(token).get("kid")))
            if key is None:
                return None
            claims = self._jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=settings.audience,
                issuer=settings.issuer,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (self._jwt.PyJWTError, ValueError):
            return None
        tenant, words = claims.get(settings.tenant_claim), str(claims.get("scope") or "").split()
        if not isinstance(tenant, str) or not 0 < len(tenant) <= 128 or "," in tenant or not tenant.isprintable():
            return None
        subject = str(claims["sub"])[:64].replace(",", "_")
        return TokenHolder(subject, tenant, tuple(words), float(claims["exp"]))


def _read(source: str) -> bytes:
    """Not by our own client: an issuer may be reached through a proxy, or by a redirect, and neither is sent a key of ours."""
    if source.startswith(("https://", "http://")):
        with urllib.request.urlopen(source, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read(MAX_KEYS_BYTES))
    return Path(source).read_bytes()
