"""A TLS server that looks at the first bytes of every connection before it says anything, and its certificates."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

TLS_RECORD = b"\x16\x03"  # how a TLS handshake begins; no HTTP request does


def certificate(path: Path, host: str = "127.0.0.1", *, days: int = 1) -> Path:
    """A self-signed certificate for an address or a name, with its key; expired where `days` is negative."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    began = dt.datetime.now(dt.UTC) - dt.timedelta(days=10)
    numeric = host[0].isdigit()
    name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host)) if numeric else x509.DNSName(host)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(dt.datetime.now(dt.UTC) + dt.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + built.public_bytes(pem))
    return path


class Watcher:
    """Passes TLS connections on to a plain HTTP server, and remembers how each of them began."""

    def __init__(self, target: int, door: socket.socket) -> None:
        self.beginnings: list[bytes] = []
        self.secured = 0  # handshakes that succeeded
        self.certificate: Path | None = None  # None: speak no TLS at all
        self.path = "/mcp"
        self.port: int = door.getsockname()[1]
        self._target = target
        self._door = door

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}{self.path}"

    def first_bytes(self) -> set[bytes]:
        """The first bytes of all connections that sent any."""
        return {beginning for beginning in self.beginnings if beginning}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as connections:
            while True:
                client, _ = await loop.sock_accept(self._door)
                connections.create_task(self._serve(client))

    async def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            self.beginnings.append(await _peek(client))
            if self.certificate is None:
                await asyncio.get_running_loop().sock_sendall(client, b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, ssl=context)
            self.secured += 1
            await self._carry(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection("127.0.0.1", self._target)
        back = asyncio.create_task(_copy(up, writer))
        try:
            await _copy(reader, down)
        finally:
            back.cancel()
            for each in (writer, down):
                each.transport.abort()


async def _peek(client: socket.socket) -> bytes:
    """The first two bytes, left where they are."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    client.setblocking(False)
    loop.add_reader(client, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(client)
    return client.recv(2, socket.MSG_PEEK)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()


@asynccontextmanager
async def watching(target: int) -> AsyncIterator[Watcher]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.setblocking(False)
        watcher = Watcher(target, door)
        running = asyncio.create_task(watcher.run())
        try:
            yield watcher
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
