"""TLS settings of one server: an own CA and a client certificate, with real certificates and real connections."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
import ipaddress
import json
import socket
import ssl
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from toolway import CallError, Hub
from toolway.config.schema import Tls
from toolway.config.server_entry import parse_entry
from toolway.http import tls as module
from toolway.http.limits import HttpError
from toolway.http.tls import get_tls_context
from toolway.testing import FakeHttp, FakeWebSocket

pytestmark = pytest.mark.anyio

KINDS = pytest.mark.parametrize("kind", ["http", "sse", "websocket", "openapi"])
PASSWORD = "canary-password"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


class Authority:
    """A private CA and the certificates it signs."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._sign(self._name, self._key, is_ca=True).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, password: str = "") -> tuple[Path, Path]:
        """A certificate for 127.0.0.1 and its key, in two files."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        pem = serialization.Encoding.PEM
        lock: Any = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        cert_file, key_file = self._folder / f"{name}.pem", self._folder / f"{name}-key.pem"
        cert_file.write_bytes(self._sign(subject, key, is_ca=False).public_bytes(pem))
        key_file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, lock))
        return cert_file, key_file

    def server_context(self, *, requires_client: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue("server"))
        if requires_client:
            context.load_verify_locations(self.file)
            context.verify_mode = ssl.CERT_OPTIONAL  # the server itself refuses, so its handshake never fails
        return context

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_ca: bool) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            # Python 3.13 requires these of every chain (VERIFY_X509_STRICT).
            .add_extension(_key_usage(is_ca), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _key_usage(is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def behind_tls(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A port where TLS ends, in front of a plain one."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        opened: list[Any] = [writer.transport, writer]
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.start_tls(context)
            if context.verify_mode != ssl.CERT_NONE and not writer.get_extra_info("peercert"):
                raise OSError("no client certificate")
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
            opened += [writer.transport, up_writer.transport, up_writer]
            await asyncio.gather(_copy(reader, up_writer), _copy(up_reader, writer))
        for each in opened:
            if isinstance(each, asyncio.StreamWriter):
                each.close()  # after its transport is gone: only so Python 3.13 does not warn
            else:
                each.abort()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)
        with warnings.catch_warnings():  # asyncio itself leaves the socket of a handshake that the client ended
            warnings.simplefilter("ignore")
            gc.collect()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def _answer_api(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while b"\r\n" in await reader.read(65536):
        body = b'{"said": "hello"}'
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
    writer.close()


@asynccontextmanager
async def server_of(kind: str, context: ssl.SSLContext) -> AsyncIterator[dict[str, Any]]:
    """A server of this kind behind TLS; its entry."""
    async with AsyncExitStack() as stack:
        if kind == "openapi":
            api = await asyncio.start_server(_answer_api, "127.0.0.1", 0)
            stack.callback(api.close)
            port = await stack.enter_async_context(behind_tls(api.sockets[0].getsockname()[1], context))
            operation = {"get": {"operationId": "echo", "responses": {"200": {"description": "ok"}}}}
            document = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {"/echo": operation}}
            yield {"type": "openapi", "openapi": {"document": document}, "url": f"https://127.0.0.1:{port}"}
            return
        fake: Any = FakeWebSocket() if kind == "websocket" else FakeHttp(transport=kind)
        await stack.enter_async_context(fake)
        port = await stack.enter_async_context(behind_tls(fake.port, context))
        scheme = "wss" if kind == "websocket" else "https"
        yield {"url": f"{scheme}://127.0.0.1:{port}{'/sse' if kind == 'sse' else '/mcp'}", "type": kind}


async def fails(hub: Hub, tool: str) -> CallError:
    with pytest.raises(CallError) as caught:
        await hub.call_tool(tool, {}, timeout=10, max_attempts=1)
    return caught.value


@KINDS
@pytest.mark.promise("D16")
async def test_own_ca_is_trusted_for_its_server_only(kind: str, authority: Authority) -> None:
    async with server_of(kind, authority.server_context(requires_client=False)) as entry:
        own = {**entry, "tls": {"caFile": str(authority.file)}}
        async with Hub({"own": own, "other": entry}) as hub:
            await hub.call_tool("own.echo", {})
            assert (await fails(hub, "other.echo")).code == "E-HTTP-TLS"
            await hub.call_tool("own.echo", {})


@KINDS
@pytest.mark.promise("D16")
@pytest.mark.parametrize("password", ["", PASSWORD])
async def test_client_certificate_is_sent_to_server(kind: str, password: str, authority: Authority) -> None:
    cert_file, key_file = authority.issue("me", password)
    async with server_of(kind, authority.server_context(requires_client=True)) as entry:
        tls = {"caFile": str(authority.file), "certFile": str(cert_file), "keyFile": str(key_file)}
        own = {**entry, "tls": {**tls, "keyPassword": password} if password else tls}
        without = {**entry, "tls": {"caFile": str(authority.file)}}
        async with Hub({"own": own, "without": without}) as hub:
            await hub.call_tool("own.echo", {})
            await fails(hub, "without.echo")
            await hub.call_tool("own.echo", {})


def _refuse_clients(door: socket.socket, context: ssl.SSLContext) -> None:
    """End every handshake as OpenSSL does: with an alert that says why."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = door.accept()
            with context.wrap_socket(client, server_side=True, do_handshake_on_connect=False) as secured:
                with contextlib.suppress(ssl.SSLError):
                    secured.do_handshake()
                with contextlib.suppress(OSError):
                    secured.shutdown(socket.SHUT_WR)
                    while secured.recv(65536):  # else the end would be a reset, and the alert lost
                        pass


@pytest.mark.parametrize("scheme", ["https", "wss"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("certified", [False, True])
async def test_rejected_client_certificate_is_explained(
    scheme: str, version: ssl.TLSVersion, certified: bool, authority: Authority, tmp_path: Path
) -> None:
    cert_file, key_file = Authority(tmp_path, "stranger").issue("stranger-cert")
    tls = {"caFile": str(authority.file)}
    if certified:
        tls |= {"certFile": str(cert_file), "keyFile": str(key_file)}
    context = authority.server_context(requires_client=True)
    context.maximum_version = version
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=_refuse_clients, args=(door, context), daemon=True)
        thread.start()
        url = f"{scheme}://127.0.0.1:{door.getsockname()[1]}/mcp"
        async with Hub({"own": {"url": url, "tls": tls}}) as hub:
            error = await fails(hub, "own.echo")
        door.shutdown(socket.SHUT_RDWR)
        thread.join(30)
    assert error.executed == "no"
    if certified:
        assert "rejected the client certificate" in str(error)
    elif version == ssl.TLSVersion.TLSv1_3:
        assert "requires a client certificate" in str(error)
    assert error.code == "E-HTTP-TLS"


# -- files -------------------------------------------------------------------------------------------------------------


def _spoil(folder: Path, authority: Authority) -> dict[str, tuple[Tls, str]]:
    junk = folder / "junk.pem"
    junk.write_text("this is not a certificate")
    cert, key = (str(each) for each in authority.issue("one"))
    _, other_key = (str(each) for each in authority.issue("two"))
    _, locked = (str(each) for each in authority.issue("three", PASSWORD))
    ca, gone = str(authority.file), str(folder / "gone.pem")
    return {
        "missing CA": (Tls(gone), gone),
        "a folder": (Tls(str(folder)), str(folder)),
        "junk CA": (Tls(str(junk)), str(junk)),
        "missing certificate": (Tls(ca, gone), gone),
        "missing key": (Tls(ca, cert, gone), gone),
        "junk certificate": (Tls(ca, str(junk), key), str(junk)),
        "no key in the file": (Tls(ca, cert), cert),
        "key of another certificate": (Tls(ca, cert, other_key), other_key),
        "key without its password": (Tls(ca, cert, locked), "keyPassword is missing"),
        "key with a wrong password": (Tls(ca, cert, locked, "wrong-one"), "keyPassword is wrong"),
    }


@pytest.mark.parametrize(
    "kind",
    [
        *("missing CA", "a folder", "junk CA", "missing certificate", "missing key", "junk certificate"),
        *("no key in the file", "key of another certificate", "key without its password", "key with a wrong password"),
    ],
)
async def test_unusable_tls_file_is_named_with_hint(kind: str, tmp_path: Path, authority: Authority) -> None:
    settings, named = _spoil(tmp_path, authority)[kind]
    with pytest.raises(HttpError) as caught:
        await get_tls_context(settings)
    assert (caught.value.code, caught.value.bytes_sent) == ("E-TLS-FILE", 0)
    assert named in caught.value.reason
    assert caught.value.hint
    assert "wrong-one" not in caught.value.reason + caught.value.hint


@pytest.mark.promise("D16")
async def test_missing_tls_file_recovers_once_it_exists(authority: Authority) -> None:
    async with server_of("http", authority.server_context(requires_client=False)) as entry:
        copy = authority.file.with_name("later.pem")
        own = {**entry, "tls": {"caFile": str(copy)}, "restart": {"maxBackoff": "200ms"}, "maxRestarts": 1000}
        async with Hub({"own": own}) as hub:
            error = await fails(hub, "own.echo")
            assert (error.code, str(copy) in str(error)) == ("E-TLS-FILE", True)
            copy.write_bytes(authority.file.read_bytes())
            async with asyncio.timeout(20):
                while hub.status()["own"].state != "ready":
                    await asyncio.sleep(0.02)
            await hub.call_tool("own.echo", {})


async def test_tls_contexts_are_shared_until_their_files_change(authority: Authority, tmp_path: Path) -> None:
    shared = {id(await get_tls_context(None)) for _ in range(80)}
    assert len(shared) == 1
    settings = Tls(str(authority.file))
    first = await get_tls_context(settings)
    assert first is await get_tls_context(Tls(str(authority.file)))
    assert id(first) not in shared
    authority.file.write_bytes(authority.file.read_bytes() + b"\n")
    assert await get_tls_context(settings) is not first


async def test_tls_context_cache_is_bounded(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OWN_CONTEXTS", 3)
    monkeypatch.setattr(module, "_own_contexts", {})
    for number in range(6):
        copy = tmp_path / f"copy-{number}.pem"
        copy.write_bytes(authority.file.read_bytes())
        await get_tls_context(Tls(str(copy)))
    assert len(module._own_contexts) == 3


def test_key_password_is_masked(authority: Authority) -> None:
    from toolway.config.masking import build_masker, mask_value

    entry = {"url": "https://x/mcp", "tls": {"certFile": "c.pem", "keyPassword": PASSWORD}}
    server = parse_entry(entry)
    assert PASSWORD not in repr(server)
    assert PASSWORD not in json.dumps(mask_value(entry))
    masker: Callable[[str], str] = build_masker([server])
    assert PASSWORD not in masker(f"it is {PASSWORD}")
