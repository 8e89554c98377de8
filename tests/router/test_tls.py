"""TLS on every leg: client to router, router to server, with certificates of both sides and renewal while requests run."""

import json
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from penstock.errors import ConfigError
from penstock.service.config import TlsConfig
from penstock.service.edge.tls import TlsContexts
from tests.authority import Authority
from tests.machine import PATIENCE_S, wait_until
from tests.router.service import Service, routing
from tests.server.serving import Server, serving, user

BODY = {"messages": user("some words"), "max_tokens": 8, "seed": 1}


class Site:
    """A server and a router before it, which speak TLS alone and ask everybody for a certificate."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.authority = Authority(folder)
        self.stranger = Authority(folder, "stranger")
        self.own = self.authority.client("operator")
        ca = str(self.authority.file)
        self.server: Server = stack.enter_context(serving(*flags(self.authority.sign("server")), "--tls-client-ca", ca))
        self.pair = self.authority.sign("router")
        words = [*flags(self.pair), "--tls-client-ca", ca, "--replica-ca", ca, "--replica", self.server.url]
        self.router: Service = stack.enter_context(routing(*words))
        with self.client(self.router.url) as http:
            wait_until(lambda: '"ready"' in http.get("/router/replicas").text)

    def client(self, url: str, context: ssl.SSLContext | None = None) -> httpx.Client:
        return httpx.Client(base_url=url, verify=context or self.own, timeout=PATIENCE_S)

    def serial(self) -> int:
        """Of the certificate that the router shows to a new connection."""
        address = ("127.0.0.1", int(self.router.url.rpartition(":")[2]))
        with (
            socket.create_connection(address, PATIENCE_S) as plain,
            self.own.wrap_socket(plain, False, server_hostname="localhost") as shown,
        ):
            return int(shown.getpeercert()["serialNumber"], 16)


def flags(pair: tuple[Path, Path]) -> list[str]:
    return ["--tls-cert", str(pair[0]), "--tls-key", str(pair[1])]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path_factory.mktemp("tls"), stack)


def test_a_client_with_a_certificate_is_answered_through_every_leg(site):
    assert site.server.url.startswith("https://")
    assert site.router.url.startswith("https://")
    texts = []
    for url in (site.server.url, site.router.url):
        with site.client(url) as http:
            texts.append(http.post("/v1/chat/completions", json=BODY).json()["choices"])
            with http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as stream:
                assert [line for line in stream.iter_lines() if line][-1] == "data: [DONE]"
    assert texts[0] == texts[1]


def test_a_websocket_goes_over_tls_too(site):
    url = site.server.url.replace("https", "wss") + "/v1/chat/completions"
    with connect(url, ssl=site.own, proxy=None) as socket_:
        socket_.send(json.dumps(BODY))
        assert "choices" in json.loads(socket_.recv(timeout=PATIENCE_S))


@pytest.mark.parametrize("which", ["server", "router"])
@pytest.mark.parametrize("client", ["none", "foreign", "plain"])
def test_whoever_shows_no_certificate_of_ours_is_not_heard(site, which, client):
    url = getattr(site, which).url
    if client == "plain":
        url, context = url.replace("https", "http"), site.own
    elif client == "none":
        context = site.authority.client()
    else:
        context = site.authority.client()
        context.load_cert_chain(*site.stranger.sign("intruder"))
    with site.client(url, context) as http, pytest.raises((httpx.TransportError, ssl.SSLError)):
        http.get("/livez")
    with site.client(getattr(site, which).url) as http:
        assert http.get("/livez").status_code == 200


def test_a_renewed_certificate_is_shown_while_a_stream_goes_on(site):
    before = site.serial()
    with site.client(site.router.url) as http:
        long = BODY | {"stream": True, "max_tokens": 200}
        with http.stream("POST", "/v1/chat/completions", json=long) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data:")
            site.authority.sign("router")
            wait_until(lambda: site.serial() != before)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert http.post("/v1/chat/completions", json=BODY).status_code == 200


@pytest.mark.parametrize("which", ["server", "router"])
def test_authorities_of_clients_come_and_go_while_a_stream_goes_on(site, which):
    """New connections are judged by the file as it is now, also on the leg from router to server."""
    authority, stranger, url = site.authority, site.stranger, getattr(site, which).url
    own, foreign = authority.file.read_bytes(), stranger.file.read_bytes()
    newcomer = authority.client()
    newcomer.load_cert_chain(*stranger.sign("newcomer"))

    def is_heard(context: ssl.SSLContext) -> bool:
        try:
            with site.client(url, context) as http:
                return http.post("/v1/chat/completions", json=BODY).status_code == 200
        except (httpx.TransportError, ssl.SSLError):
            return False

    long = BODY | {"stream": True, "max_tokens": 400}
    with site.client(url) as http, http.stream("POST", "/v1/chat/completions", json=long) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data:")
        try:
            authority.file.write_bytes(own + foreign)
            wait_until(lambda: is_heard(newcomer))
            assert is_heard(site.own), "both are trusted"
        finally:
            authority.file.write_bytes(own)
        wait_until(lambda: not is_heard(newcomer))
        assert is_heard(site.own)
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_authorities_of_replicas_are_read_again(tmp_path):
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    tls = TlsContexts(TlsConfig())
    before = tls.outgoing(authority.file)
    assert tls.outgoing(authority.file) is before
    shutil.copy(other.file, authority.file)
    assert tls.look()
    after = tls.outgoing(authority.file)
    assert [one["subject"] for one in after.get_ca_certs()] != [one["subject"] for one in before.get_ca_certs()]
    authority.file.write_text("no certificate")
    assert not tls.look(), "a file that is none changes nothing"
    assert tls.outgoing(authority.file) is after


def test_a_certificate_that_does_not_fit_its_key_changes_nothing(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("one")
    tls = TlsContexts(TlsConfig(certificate, key))
    assert not tls.look(), "nothing changed"
    other, own_key = authority.sign("other")
    shutil.copy(other, certificate)
    assert not tls.look(), "a half is no pair"
    shutil.copy(own_key, key)
    assert tls.look()
    assert not tls.look()


def test_files_that_are_no_certificates_are_named_at_the_start(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("one")
    other, _ = authority.sign("two")
    with pytest.raises(ConfigError, match=r"--tls-cert .*two.crt.* cannot be used"):
        TlsContexts(TlsConfig(other, key))
    with pytest.raises(ConfigError, match="cannot be used"):
        TlsContexts(TlsConfig(tmp_path / "nowhere.crt", key))
    with pytest.raises(ConfigError, match="--tls-client-ca"):
        TlsContexts(TlsConfig(certificate, key, key))
    with pytest.raises(ConfigError, match="go together"):
        TlsConfig(certificate)
    with pytest.raises(ConfigError, match="--tls-cert"):
        TlsConfig(tls_client_ca=certificate)
