"""Laws of the load client's HTTP: answers arrive whole however they are cut, connections are kept, faults are told apart."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.service.upstream.endpoint import endpoint_of
from penstock.tools.bench.client.http import Client
from tests.bench.stub import Stub


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("localhost:8000/", "http://localhost:8000"),
        ("https://api.example.com/v1", "https://api.example.com:443"),
        ("http://[::1]:9/base/v1/", "http://[::1]:9/base"),
    ],
)
def test_addresses_are_read_as_people_write_them(url, normal):
    assert endpoint_of(url).url == normal


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "http://x:99999", "http://x:y", "http://a b/", "http://x/\r\nq: 1"]
)
def test_other_words_are_no_address(url):
    with pytest.raises(ConfigError, match="no address"):
        endpoint_of(url)


@pytest.mark.parametrize("key", ["a\r\nx: y", "schlüssel"])
def test_a_key_cannot_carry_a_header_of_its_own(key):
    with pytest.raises(ConfigError, match="API key"):
        Client(endpoint_of("localhost"), key)


@pytest.mark.parametrize("is_split", [False, True])
def test_one_connection_carries_one_exchange_after_another(is_split):
    async def scenario():
        async with Stub(is_split=is_split) as stub:
            client = Client(endpoint_of(stub.url), "the-key")
            answers = [await client.fetch("GET", path) for path in ("/v1/models", "/none", "/v1/models")]
            client.close()
            return stub, answers

    stub, answers = asyncio.run(scenario())
    assert [status for status, _ in answers] == [200, 404, 200]
    assert answers[0][1] == answers[2][1] == b'{"data": [{"id": "stub"}]}'
    assert stub.num_connections == 1
    assert {headers["authorization"] for headers in stub.headers} == {"Bearer the-key"}


def test_a_connection_that_was_closed_meanwhile_is_replaced():
    async def scenario():
        async with Stub(closes=True) as stub:
            client = Client(endpoint_of(stub.url))
            statuses = [(await client.fetch("GET", "/v1/models"))[0] for _ in range(3)]
            client.close()
            return stub.num_connections, statuses

    assert asyncio.run(scenario()) == (3, [200, 200, 200])


def answer_with(data: bytes):
    """What a client makes of these bytes as the answer to its first request."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        writer.close()

    async def scenario():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            client = Client(endpoint_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
            return await client.fetch("GET", "/", timeout_s=10.0)
        finally:
            server.close()
            await server.wait_closed()

    return asyncio.run(scenario())


def test_a_body_without_a_length_ends_with_its_connection():
    assert answer_with(b"HTTP/1.1 200 OK\r\n\r\nall of it") == (200, b"all of it")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "closed the connection early"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", "closed the connection early"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal", "closed the connection early"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "unreadable answer"),
    ],
)
def test_half_an_answer_is_a_fault(data, fault):
    with pytest.raises(ConnectionError, match=fault):
        answer_with(data)


def test_nobody_listening_is_a_fault():
    async def scenario():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        await Client(endpoint_of(f"http://127.0.0.1:{port}")).fetch("GET", "/")

    with pytest.raises(ConnectionError, match="cannot connect"):
        asyncio.run(scenario())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no tool to make a certificate with")
def test_tls_is_spoken_and_certificates_are_checked(tmp_path: Path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def scenario(verify):
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        client = Client(endpoint_of(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"), verify=verify)
        try:
            return await client.fetch("GET", "/")
        finally:
            client.close()
            server.close()
            await server.wait_closed()

    assert asyncio.run(scenario(verify=False)) == (200, b"ok")
    with pytest.raises(ConnectionError, match="cannot connect"):
        asyncio.run(scenario(verify=True))
