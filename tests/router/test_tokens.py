"""Signed tokens: only what the provider signed, for us, in time, names a tenant, at gateway, server and router."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.errors import ConfigError
from penstock.service.config import ListenConfig, ServerConfig
from penstock.service.edge.tokens import DISCOVERY, JwtSettings, SignedTokens, read_jwt
from penstock.service.gateway.gateway import Gateway
from penstock.service.gateway.schema import GATEWAY
from penstock.service.gateway.settings import GatewaySettings
from penstock.service.store.database import SqliteDatabase
from tests.machine import PATIENCE_S, wait_until
from tests.router.service import routing
from tests.server.serving import serving, user

PRIVATE, OTHER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
PUBLIC = PRIVATE.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def key_set() -> str:
    key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(PRIVATE.public_key())) | {"kid": "one", "alg": "ES256"}
    return json.dumps({"keys": [key]})


@pytest.fixture
def gateway(tmp_path):
    (tmp_path / "keys.json").write_text(key_set())
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
        {"tenant": "a\nb"},
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


class Provider:
    """An identity provider that says where its keys are."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = provider.pages.get(self.path)
                self.send_response(200 if body is not None else 404)
                self.end_headers()
                self.wfile.write((body or "").encode())

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}/realm"
        self.says(self.issuer)
        self.pages["/keys"] = key_set()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def says(self, issuer: str) -> None:
        keys = self.issuer.replace("/realm", "/keys")
        self.pages["/realm" + DISCOVERY] = json.dumps({"issuer": issuer, "jwks_uri": keys})

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


def test_a_provider_that_says_it_is_another_gives_no_keys(provider, caplog):
    tokens = SignedTokens(JwtSettings(provider.issuer, "penstock"))
    provider.says("https://evil.example")
    try:
        tokens.look(0.0)
        assert tokens.find(token(iss=provider.issuer), 0.0) is None
        assert "evil.example" in caplog.text
    finally:
        provider.says(provider.issuer)
    tokens.look(1000.0)
    assert tokens.find(token(iss=provider.issuer), time.time()).tenant == "acme"


ROUTER_KEY = "router-key-of-some-length"
LENGTH = {"max_tokens": 4}
ASKED = {
    "/v1/chat/completions": {"messages": user("hello")} | LENGTH,
    "/v1/messages": {"messages": user("hello"), "model": "default"} | LENGTH,
    "/v1/responses": {"input": "hello", "max_output_tokens": 4},
    "/api/chat": {"model": "default", "messages": user("hello"), "options": {"num_predict": 4}},
}


@pytest.fixture(scope="module", params=["server", "router"])
def url(request, provider, tmp_path_factory) -> Iterator[str]:
    file: Path = tmp_path_factory.mktemp("jwt") / "jwt.toml"
    file.write_text(f'[jwt]\nissuer = "{provider.issuer}"\naudience = "penstock"\n')
    with ExitStack() as stack:
        if request.param == "server":
            server = stack.enter_context(serving("--jwt", str(file)))
        else:
            behind = stack.enter_context(serving("--router-key", ROUTER_KEY))
            words = ("--jwt", str(file), "--replica", behind.url)
            server = stack.enter_context(routing(*words, PENSTOCK_REPLICA_KEY=ROUTER_KEY))
        headers = {"authorization": f"Bearer {token(iss=provider.issuer).decode()}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S) as http:
            wait_until(lambda: http.post("/v1/chat/completions", json=ASKED["/v1/chat/completions"]).status_code == 200)
        yield server.url


def test_servers_and_routers_take_tokens_in_every_dialect_and_keep_tenants_apart(url, provider):
    def client(**claims: object) -> httpx.Client:
        signed = token(iss=provider.issuer, **claims).decode()
        return httpx.Client(base_url=url, headers={"x-api-key": signed}, timeout=PATIENCE_S)

    with client() as http, client(tenant="other") as other, client(exp=time.time() - 60) as late:
        for path, body in ASKED.items():
            for is_stream in (False, True):
                assert http.post(path, json=body | {"stream": is_stream}).status_code == 200
                assert late.post(path, json=body | {"stream": is_stream}).status_code == 401
        kept = http.post("/v1/responses", json=ASKED["/v1/responses"] | {"store": True}).json()["id"]
        assert http.get(f"/v1/responses/{kept}").status_code == 200
        assert other.get(f"/v1/responses/{kept}").status_code == 404
        unload = http.post("/v1/unload_lora_adapter", json={"lora_name": "any"})
        assert unload.status_code in (403, 404), "an admin's alone, and none of a router's"
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as nobody:
        assert nobody.get("/v1/models").status_code == 401
        assert nobody.get("/livez").status_code == 200


def test_a_file_that_says_no_provider_is_refused_and_one_that_does_opens_a_listener(tmp_path):
    file = tmp_path / "jwt.toml"
    for text, why in (
        ("", "no table"),
        ("[jwt]\nissuer = 'me'\naudience = 'x'\n", "no address"),
        ("[jwt]\n", "missing"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=why):
            read_jwt(file)
    for config in (ServerConfig, ListenConfig):
        with pytest.raises(ConfigError, match="there is no key"):
            config(host="0.0.0.0").check_keyed()
        config(host="0.0.0.0", jwt=file).check_keyed()
