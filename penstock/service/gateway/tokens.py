"""Signed tokens of an identity provider (OpenID Connect, JWT) in place of keys: who signed them, for whom, until when.

Needs pyjwt (penstock[jwt]). Only public-key signatures count. The provider's keys are fetched when a gateway begins
and again every few minutes; while that fails, those that are known stay.
"""

import hashlib
import logging
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import ConfigError
from penstock.service.gateway.keys import SCOPES, KeyRecord
from penstock.service.gateway.settings import JwtSettings

LOGGER = logging.getLogger(__name__)
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
FETCH_S = 300.0
TIMEOUT_S = 5.0
MAX_KEYS_BYTES = 1 << 20
MAX_TOKEN_BYTES = 8192
MAX_KNOWN = 10_000
"""Tokens whose signature was found good, so that it is computed once."""


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
        self._known: dict[bytes, KeyRecord] = {}
        self._fetched_s = -FETCH_S

    def look(self, unix_s: float) -> None:
        """Fetch the provider's keys, if it is time. Blocks."""
        if unix_s - self._fetched_s < FETCH_S:
            return
        self._fetched_s = unix_s
        try:
            found = self._jwt.PyJWKSet.from_dict(msgspec.json.decode(_read(self._settings.keys)))
            self._keys = {str(key.key_id): key for key in found.keys if key.key_id}
            self._known = {}
        except (OSError, ValueError, self._jwt.PyJWTError) as error:
            LOGGER.warning("the keys of [jwt] cannot be fetched, those that are known stay: %s", error)

    def find(self, token: bytes, unix_s: float) -> KeyRecord | None:
        """Whose token it is; None for one that is not signed as it must be."""
        if token.count(b".") != 2 or len(token) > MAX_TOKEN_BYTES:
            return None
        digest = hashlib.sha256(token).digest()
        record = self._known.get(digest)
        if record is None:
            record = self._read(token, digest)
            if record is not None:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                self._known[digest] = record
        return record if record is not None and record.is_valid(unix_s) else None

    def _read(self, token: bytes, digest: bytes) -> KeyRecord | None:
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
        if not isinstance(tenant, str) or not 0 < len(tenant) <= 128 or "," in tenant:
            return None
        subject = str(claims["sub"])[:64].replace(",", "_")
        scopes = ("inference", *(scope for scope in SCOPES if f"penstock:{scope}" in words and scope != "inference"))
        return KeyRecord(f"jwt:{subject}", digest, subject, tenant, scopes, expires_at=float(claims["exp"]))


def _read(source: str) -> bytes:
    if source.startswith(("https://", "http://")):
        with urllib.request.urlopen(source, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read(MAX_KEYS_BYTES))
    return Path(source).read_bytes()
