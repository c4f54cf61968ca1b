"""What all tests share: async tests run on asyncio, and nothing touches the user's own folders."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from toolway.secrets import detection

# No limit on the time of an example: on a busy machine any may take long.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


def pytest_collection_finish() -> None:
    """Exclude what was imported and collected from garbage collection: a collection would take .2 s of CPU time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_tls_context() -> Iterator[None]:
    """Let clients of httpx2 share one TLS context: each reads all certificates of the system, even for `http://`."""
    if "httpx2" not in sys.modules:
        yield
        return
    import httpcore2

    make = httpcore2.default_ssl_context
    made: dict[tuple[str | None, ...], ssl.SSLContext] = {}

    def reuse(*, _trust_env: bool = True) -> ssl.SSLContext:
        files = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")) if _trust_env else ()
        if files not in made:
            made[files] = make(_trust_env=_trust_env)
        return made[files]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", reuse)
        yield


@pytest.fixture(scope="session", autouse=True)
def _clients_may_leave() -> Iterator[None]:
    """Let clients leave the servers that tests write themselves at any time, even before they said anything.

    Otherwise the end of input that such a server reads fails the test, and it depends on the machine whether it does.
    """
    start = asyncio.start_server

    def start_server(answer: Any, *args: Any, **options: Any) -> Any:
        if not getattr(answer, "__module__", "").startswith("tests."):
            return start(answer, *args, **options)

        @functools.wraps(answer)
        async def answer_until_left(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                if (task := answer(reader, writer)) is not None:
                    await task
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        return start(answer_until_left, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "start_server", start_server)
        yield


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that another test has resolved, such as the word "secret", is not masked in this one."""
    monkeypatch.setattr(detection._masker, "_values", {})
    monkeypatch.setattr(detection._masker, "_replace", None)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TOOLWAY_SECRETS", "file")  # not the keychain of whoever runs the tests
    for name in ("TOOLWAY_CONFIG", "TOOLWAY_STATE", "TOOLWAY_TOKEN", "TOOLWAY_SECRETS_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.environ.get("TOOLWAY_PLANS") == "off" and item.get_closest_marker("fast_path"):
        pytest.skip("asserts that calls take the fast path, which TOOLWAY_PLANS=off turns off")
