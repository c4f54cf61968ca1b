"""What a gateway gives its parts: servers in its process, rights of callers, and the end of their work."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

import pytest

from toolway.config.schema import Server
from toolway.gateway.gateway import Gateway
from toolway.gateway.part_set import PartSet
from toolway.gateway.principals import LOCAL_ADMIN
from toolway.hub.core import HubCore
from toolway.part_api import Gauge, Metric, Part, PartContext, PartRuntime

pytestmark = pytest.mark.anyio
OWN = Server(url="http://127.0.0.1:1")


class _Runtime(PartRuntime):
    def __init__(self, fails: bool) -> None:
        self.ended: list[str] = []
        self._fails = fails

    def servers(self) -> dict[str, Server]:
        return {"own": OWN, "shared": OWN}

    async def read_gauges(self) -> list[Gauge]:
        self._end("gauges")
        return [Gauge("toolway_example", 3), Gauge("toolway_unknown", 1)]

    def drain(self) -> None:
        self._end("drain")

    async def finish(self, timeout: float) -> None:
        self._end(f"finish {timeout:g}")

    def _end(self, what: str) -> None:
        self.ended.append(what)
        if self._fails:
            raise RuntimeError("broken part")


class _Example(Part):
    server_names = ("own", "shared")
    metrics: ClassVar[Mapping[str, Metric]] = {"toolway_example": Metric("An example.")}

    def __init__(self, name: str, fails: bool = False) -> None:
        self.name = name  # type: ignore[misc] # two parts of one class
        self.runtime = _Runtime(fails)

    def open(self, context: PartContext) -> PartRuntime:
        return self.runtime


async def test_configured_server_overrides_server_of_a_part() -> None:
    parts = PartSet(HubCore({}), None, parts=[_Example("one")])
    named = Server(url="http://127.0.0.1:2")
    assert parts.with_servers({"shared": named}) == {"shared": named, "own": OWN}
    assert parts.server_names == {"own", "shared"}


async def test_rights_are_denied_before_the_gateway_exists() -> None:
    async with HubCore({}) as hub:
        parts = PartSet(hub, None, parts=[])
        assert not parts.rights.may_call(LOCAL_ADMIN, "a.echo", None) and not parts.rights.may_see(
            LOCAL_ADMIN, "a.echo"
        )
        assert parts.rights.find_user("user:1") is None
        Gateway(hub, b"k" * 32, None, parts=parts)
        assert parts.rights.may_call(LOCAL_ADMIN, "a.echo", None)


async def test_failing_part_does_not_stop_others_from_closing(caplog: pytest.LogCaptureFixture) -> None:
    broken, other = _Example("broken", fails=True), _Example("other")
    parts = PartSet(HubCore({}), None, parts=[broken, other])
    with caplog.at_level(logging.ERROR, "toolway.gateway"):
        assert await parts.read_gauges() == [Gauge("toolway_example", 3)]
        parts.drain()
        await parts.finish(2.0)
    assert broken.runtime.ended == other.runtime.ended == ["gauges", "drain", "finish 2"]
    assert len(caplog.records) == 3
