"""Signed tokens: only what the provider signed, for us, in time, names a tenant."""

import json
import time

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.service.gateway.gateway import Gateway
from penstock.service.gateway.schema import GATEWAY
from penstock.service.gateway.settings import GatewaySettings
from penstock.service.store.database import SqliteDatabase

PRIVATE, OTHER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
PUBLIC = PRIVATE.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def gateway(tmp_path):
    key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(PRIVATE.public_key())) | {"kid": "one", "alg": "ES256"}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [key]}))
    rules = {"jwt": {"issuer": "https://id.example", "audience": "penstock", "keys": str(tmp_path / "keys.json")}}
    database = SqliteDatabase(tmp_path / "g.db", [GATEWAY])
    made = Gateway(msgspec.convert(rules, GatewaySettings), database, time.time())
    yield made
    made.ledger.close()
    database.close()


def token(signer=PRIVATE, algorithm: str = "ES256", kid: str = "one", **claims) -> bytes:
    good = {"iss": "https://id.example", "aud": "penstock", "sub": "me", "tenant": "acme", "exp": time.time() + 60}
    claims = {name: value for name, value in (good | claims).items() if value is not None}
    return jwt.encode(claims, signer, algorithm, headers={"kid": kid}).encode()


def test_a_token_names_its_tenant_until_it_expires(gateway):
    good = token(scope="penstock:usage other")
    record = gateway.identify(good, time.time())
    assert (record.tenant, record.key_id, record.scopes) == ("acme", "jwt:me", ("inference", "usage"))
    assert gateway.identify(good, time.time() + 61) is None, "also one that was good before"
    assert gateway.identify(b"psk_x_y", time.time()) is None


@pytest.mark.parametrize(
    "bad",
    [
        {"exp": time.time() - 60},
        {"exp": None},
        {"aud": "others"},
        {"iss": "https://evil.example"},
        {"tenant": None},
        {"tenant": "a,b"},
        {"tenant": 3},
        {"kid": "two"},
        {"signer": OTHER},
        {"signer": PUBLIC.decode().replace("PUBLIC KEY", "X").encode(), "algorithm": "HS256"},
        {"signer": None, "algorithm": "none"},
    ],
)
def test_anything_else_opens_nothing(gateway, bad):
    assert gateway.identify(token(**bad), time.time()) is None
    assert gateway.identify(token()[:-2] + b"xx", time.time()) is None
