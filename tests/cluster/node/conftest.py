"""A record that only one test has, and two gateways that the tests of a module share."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cluster.node.hop_lab import Cluster, cluster
from tests.gateway.full_server import FullHttp
from toolway.cluster.db.engine import open_engine, upgrade_schema

BOTH = ("one", "two")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def made_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all tables, which tests copy: to run all migrations takes longer than most tests."""
    file = tmp_path_factory.mktemp("made") / "record"

    async def make() -> None:
        engine = open_engine(f"sqlite:///{file}")
        await upgrade_schema(engine)
        await engine.dispose()

    asyncio.run(make())
    return file


@pytest.fixture
async def engine(made_record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncEngine]:
    shutil.copyfile(made_record, tmp_path / "record")
    with monkeypatch.context() as patched:  # on a busy machine a statement may take seconds
        patched.setattr("toolway.cluster.db.engine.DATABASE_TIMEOUT_S", 30.0)
        engine = open_engine(f"sqlite:///{tmp_path / 'record'}")
    yield engine
    await engine.dispose()


@pytest.fixture(scope="module")
def web() -> FullHttp:
    """A server of the handshake era on a socket of this process, so it can be asked what it saw."""
    return FullHttp("legacy")


@pytest.fixture
def forgets(web: FullHttp) -> None:
    """What `web` saw in the tests before."""
    web.server.stats.effects.clear()
    web.server.stats.cancelled.clear()


@pytest.fixture
async def nodes(shared_nodes: Cluster) -> Cluster:
    """The gateways of the module, once every server has an owner: on a busy machine a lease may just have ended."""
    await shared_nodes.settle()
    return shared_nodes


@pytest.fixture(scope="module", params=["http", "nats"])
async def shared_nodes(
    request: pytest.FixtureRequest, web: FullHttp, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    """Gateways that call each other over HTTP, and others that do so over NATS. A module says which servers they have:
    `servers_with(url of web)`, and which of them never start: `BROKEN`."""
    hidden, broken = BOTH if request.param == "nats" else (), getattr(request.module, "BROKEN", ())
    async with web:
        servers = request.module.servers_with(web.url)
        folder = tmp_path_factory.mktemp(request.param)
        async with cluster(folder, servers, names=BOTH, hidden=hidden, broken=broken) as made:
            yield made
