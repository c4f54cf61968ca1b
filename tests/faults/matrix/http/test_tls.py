"""Untrusted certificates, and servers that do not speak TLS. We never fall back to plaintext."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.fault_lab import WAYS, lab
from tests.faults.matrix.http.tls_server import TLS_RECORD, certificate, watching
from tests.faults.matrix.http.web_servers import web
from tests.timing import within
from toolway import Server, ServerUnavailable, Timeout
from toolway.testing import FakeHttp
from toolway.upstream.transports import streamable_http as http_link

pytestmark = pytest.mark.anyio

SECRET = {"Authorization": "Bearer canary"}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.fault("B3")
@pytest.mark.parametrize(
    ("kind", "sse"),
    [("expired", False), ("other host", False), ("untrusted", False), ("untrusted", True), ("no TLS at all", False)],
)
async def test_server_with_bad_certificate_receives_no_data(
    kind: str, sse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = "other.test" if kind == "other host" else "127.0.0.1"
    cert = certificate(tmp_path / "cert.pem", host, days=-1 if kind == "expired" else 1)
    if kind != "untrusted":
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    async with FakeHttp() as fake, watching(fake.port) as watcher:
        watcher.certificate = None if kind == "no TLS at all" else cert
        async with lab({"bad": Server(url=watcher.url, headers=SECRET, sse=sse)}) as bench:
            outcome = (await bench.call("bad.counter", timeout=10)).expect(ServerUnavailable, "no")
            assert outcome.error is not None and outcome.error.code == "E-HTTP-TLS"
            assert outcome.seconds < within(5)
        assert watcher.first_bytes() == {TLS_RECORD}
        assert fake.stats.connections == 0


@WAYS
@pytest.mark.fault("B3")
async def test_certificate_going_bad_stops_new_connections(
    era: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, other = certificate(tmp_path / "good.pem"), certificate(tmp_path / "other.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(good))
    async with web(era) as fake, watching(fake.port) as watcher:
        watcher.certificate, watcher.path = good, fake.endpoint.path
        server = Server(url=watcher.url, headers=SECRET, timeout=Timeout(total=10))
        async with lab({"bad": server}) as bench:
            fake.server.effects_path = str(bench.effects)
            (await bench.call("bad.counter")).expect(None)
            watcher.certificate = other
            before = watcher.secured
            busy = [bench.start("bad.sleep", {"seconds": 0.5}) for _ in range(3)]
            await asyncio.sleep(0.1)
            monkeypatch.setattr(http_link, "NEW_CONNECTION_MAX_IDLE_S", -1.0)  # a kept connection is not used again
            outcomes = [await bench.call("bad.counter", max_attempts=1) for _ in range(2)]
            failed = [each for each in (*outcomes, *[await each for each in busy]) if not each.ok]
            assert watcher.secured == before, "a connection was made in spite of its certificate"
            assert failed
            for outcome in failed:
                outcome.expect(ServerUnavailable, "no")
            watcher.certificate = good
            await bench.until(lambda: bench.hub.status()["bad"].state == "ready", 10)
            (await bench.call("bad.counter")).expect(None)
        assert watcher.first_bytes() == {TLS_RECORD}
