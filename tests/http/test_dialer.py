"""TLS and proxies: what is trusted, what is asked of whom, and that plaintext never stands in for TLS."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.upstream.raw_http import Conn, Received, always, loops, peer, reacting, response
from toolway.http import tls
from toolway.http.client import ClientLimits, HttpClient, HttpError, HttpTarget
from toolway.network import NetworkPolicy
from toolway.types import Certainty

pytestmark = pytest.mark.anyio

OK = response(200, b"ok")
HERE = NetworkPolicy(("127.0.0.0/8", "::1", "localhost"))


@pytest.fixture(params=loops(), ids=lambda p: "uvloop" if p[1]["use_uvloop"] else "asyncio")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
async def client(anyio_backend: Any):
    client = HttpClient(ClientLimits(connect_timeout=2), HERE)
    yield client
    client.close()
    await asyncio.sleep(0)


def certificate(path: Path, *names: str, days: int = 1) -> Path:
    """A self-signed certificate for `names`, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    began = dt.datetime.now(dt.UTC) - dt.timedelta(days=10)
    alternatives: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address(n)) if n[0].isdigit() else x509.DNSName(n) for n in names
    ]
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + dt.timedelta(days=10 + days))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + built.public_bytes(serialization.Encoding.PEM))
    return path


def serving(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


async def fetch(client: HttpClient, url: str) -> bytes:
    async with asyncio.timeout(10):
        async with client.send("POST", HttpTarget.parse(url), (), b"hi") as answer:
            return await answer.read(1000)


async def fault_of(client: HttpClient, url: str) -> HttpError:
    with pytest.raises(HttpError) as caught:
        await fetch(client, url)
    return caught.value


# -- TLS


async def test_certificate_authority_from_environment_is_trusted(
    client: HttpClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert = certificate(tmp_path / "cert.pem", "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    async with peer(always(OK), serving(cert)) as server:
        for _ in range(3):
            assert await fetch(client, server.url) == b"ok"
        assert server.connections == 1


@pytest.mark.parametrize("kind", ["untrusted", "other host", "expired"])
async def test_invalid_certificate_is_rejected_before_sending(
    client: HttpClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    names = ("other.test",) if kind == "other host" else ("127.0.0.1",)
    cert = certificate(tmp_path / "cert.pem", *names, days=-1 if kind == "expired" else 1)
    if kind != "untrusted":
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    seen: list[Received] = []

    async def react(conn: Conn, request: Received) -> None:
        seen.append(request)

    async with peer(reacting(react), serving(cert)) as server:
        fault = await fault_of(client, server.url)
    assert (fault.code, fault.certainty) == ("E-HTTP-TLS", Certainty.NOT_SENT)
    assert "certificate" in fault.reason
    assert "SSL_CERT_FILE" in fault.hint
    assert seen == []


async def test_https_never_falls_back_to_plaintext(client: HttpClient) -> None:
    heard = bytearray()

    async def script(conn: Conn) -> None:
        heard.extend(await conn.reader.read(1000))
        await conn.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with peer(script) as server:
        fault = await fault_of(client, server.url.replace("http:", "https:"))
        assert server.connections == 1
    assert (fault.code, fault.certainty) == ("E-HTTP-TLS", Certainty.NOT_SENT)
    assert b"POST" not in heard


async def test_hanging_tls_handshake_times_out() -> None:
    client = HttpClient(ClientLimits(connect_timeout=0.2), HERE)

    async def script(conn: Conn) -> None:
        await conn.gone()

    async with peer(script) as server:
        fault = await fault_of(client, server.url.replace("http:", "https:"))
    assert (fault.code, fault.certainty) == ("E-HTTP-TIMEOUT", Certainty.NOT_SENT)
    client.close()


async def test_connection_lost_over_tls_is_unknown(
    client: HttpClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert = certificate(tmp_path / "cert.pem", "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))

    async def script(conn: Conn) -> None:
        await conn.request()
        conn.reset()

    async with peer(script, serving(cert)) as server:
        fault = await fault_of(client, server.url)
    assert (fault.code, fault.certainty) == ("E-HTTP-RESET", Certainty.UNKNOWN)


@pytest.mark.parametrize("how", ["reset", "closed"])
async def test_server_that_leaves_during_handshake_means_not_sent(client: HttpClient, how: str) -> None:
    async def script(conn: Conn) -> None:
        await conn.reader.read(10)
        if how == "reset":
            conn.reset()

    async with peer(script) as server:
        fault = await fault_of(client, server.url.replace("http:", "https:"))
    assert (fault.code, fault.certainty) == ("E-HTTP-TLS", Certainty.NOT_SENT)


async def test_broken_tls_setup_is_a_tls_error(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(ca_file: str | None) -> ssl.SSLContext:
        raise ssl.SSLError("no authorities")

    monkeypatch.setenv("SSL_CERT_DIR", "/nowhere")
    monkeypatch.setattr(tls, "_new_context", fail)
    fault = await fault_of(client, "https://127.0.0.1:9/")
    assert (fault.code, fault.certainty) == ("E-HTTP-TLS", Certainty.NOT_SENT)


# -- proxies


async def test_http_request_goes_to_proxy_with_full_url(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Received] = []

    async def react(conn: Conn, request: Received) -> None:
        seen.append(request)
        await conn.send(OK)

    async with peer(reacting(react)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:p%40ss@127.0.0.1:{proxy.port}")
        assert await fetch(client, "http://upstream.test/mcp?a=1") == b"ok"
        assert await fetch(client, "http://upstream.test/mcp?a=1") == b"ok"
        assert proxy.connections == 1
    assert seen[0].target == "http://upstream.test/mcp?a=1"
    assert seen[0].headers["host"] == "upstream.test"
    assert seen[0].headers["proxy-authorization"] == "Basic bWU6cEBzcw=="


async def test_https_request_tunnels_through_proxy(
    client: HttpClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert = certificate(tmp_path / "cert.pem", "upstream.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    asked: list[Received] = []

    async with peer(always(OK), serving(cert)) as server:

        async def script(conn: Conn) -> None:
            request = await conn.request()
            assert request is not None
            asked.append(request)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            await conn.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(pump(conn.reader, writer), pump(reader, conn.writer))

        async with peer(script) as proxy:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
            for _ in range(3):
                assert await fetch(client, "https://upstream.test/mcp") == b"ok"
            assert proxy.connections == 1
            client.close()
            await asyncio.sleep(0.05)
    assert [(r.method, r.target) for r in asked] == [("CONNECT", "upstream.test:443")]


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nsurplus",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
        b"",
    ],
    ids=["407", "surplus", "nonsense", "endless", "closed"],
)
async def test_failed_proxy_tunnel_is_reported_and_not_sent(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    async def script(conn: Conn) -> None:
        await conn.request()
        await conn.send(answer)

    async with peer(script) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.port}")
        fault = await fault_of(client, "https://upstream.test/")
    assert (fault.code, fault.certainty) == ("E-HTTP-PROXY", Certainty.NOT_SENT)
    assert "proxy" in fault.reason


async def test_unknown_proxy_scheme_is_rejected(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    fault = await fault_of(client, "http://upstream.test/")
    assert (fault.code, fault.certainty) == ("E-HTTP-PROXY", Certainty.NOT_SENT)


async def test_private_addresses_are_not_requested_from_proxy(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks up names itself; what is spelt out is seen here."""
    async with peer(always(OK)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        for inside in ("10.0.0.1", "169.254.169.254", "[64:ff9b::7f00:1]", "0x0a000001"):
            for scheme in ("http", "https"):
                fault = await fault_of(client, f"{scheme}://{inside}/")
                assert (fault.code, fault.certainty) == ("E-HTTP-ADDRESS", Certainty.NOT_SENT)
        assert proxy.connections == 0
        assert await fetch(client, "http://far.example/") == b"ok"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_loopback_bypasses_proxy(client: HttpClient, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with peer(always(OK)) as server:
        assert await fetch(client, f"http://{host}:{server.port}/") == b"ok"


async def test_no_proxy_hosts_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", ".inside.test")
    client = HttpClient(ClientLimits(connect_timeout=2), replace(HERE, lookup=lambda _: ["127.0.0.1"]))
    async with peer(always(OK)) as server:
        assert await fetch(client, f"http://a.inside.test:{server.port}/") == b"ok"
    client.close()
