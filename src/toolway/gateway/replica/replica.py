"""One gateway of a cluster, from the first look at the record to the last: what joins record, bus, member and hub.

    replica = Replica(options, token)
    loaded = await replica.open(file)              # the configuration that all replicas have
    async with Hub(…, **replica.parts) as hub:
        await replica.serve(hub, gateway, take)
        await replica.join(host, port, tls=False)  # from now on servers are owned here

`this_node.py` is what its parts ask for, `reception.py` what its gateway gets of it, `upkeep.py` how it follows the
others. `switch.py` knows where servers are, `links/` go there, `entry.py` lets others in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from sqlalchemy.ext.asyncio import AsyncEngine

from toolway._version import __version__
from toolway.cluster.boot_clock import boot_time
from toolway.cluster.bus import Bus
from toolway.cluster.member import Member
from toolway.cluster.record.api_keys import ApiKeys
from toolway.cluster.record.changes import Changes
from toolway.cluster.record.engine import open_engine, upgrade
from toolway.cluster.record.idempotency import RecordKeys
from toolway.cluster.record.lists import Lists
from toolway.cluster.record.nodes import Card, Nodes
from toolway.cluster.record.places import Places
from toolway.cluster.record.rates import Buckets
from toolway.cluster.record.record_shelf import RecordTokens
from toolway.cluster.record.registry import Registry
from toolway.config.formats import ROOT_KEYS, Loaded
from toolway.config.spec import Server
from toolway.errors import ToolwayError
from toolway.gateway.gateway import Gateway
from toolway.gateway.replica.address import address_of
from toolway.gateway.replica.links.told import told_of
from toolway.gateway.replica.options import ClusterOptions
from toolway.gateway.replica.over_nats.calls import NatsCalls
from toolway.gateway.replica.reception import Reception
from toolway.gateway.replica.sessions.sessions import SharedSessions
from toolway.gateway.replica.shared.keyring import ClusterKeyring
from toolway.gateway.replica.shared.limits import LeasedRates
from toolway.gateway.replica.shared.news import Following
from toolway.gateway.replica.shared.registry_source import Configuration, document_of
from toolway.gateway.replica.this_node import ThisNode
from toolway.gateway.replica.troubles import nats_silent, record_silent
from toolway.gateway.replica.upkeep import TakeConfig, Upkeep, tell_moved
from toolway.gateway.sealed import Sealer
from toolway.hub import Hub
from toolway.world import World

NATS_PATIENCE: Final = 3.0  # seconds to reach NATS at the start before it is told that none answers
FIRST_LEASE: Final = 10.0  # seconds at the start; what needs none is served without
TELL_LEAVING: Final = 2.0  # seconds for the record to take note that we leave
HAND_OVER: Final = 35.0  # seconds at the end for what is owned here: a call under way has 30

log = logging.getLogger("toolway.cluster")


class Replica:
    """Made in the process that joins, and in its loop. `token` is that of this machine."""

    def __init__(self, options: ClusterOptions, token: str) -> None:
        self.options = options
        self.id = options.new_id()
        self.sealer = Sealer(options.key, time.time)
        self.engine: AsyncEngine = open_engine(options.database)
        self.nodes, self.places = Nodes(self.engine), Places(self.engine)
        self.registry = Registry(self.engine, self.sealer)
        self.configuration = Configuration(self.registry, options.tenant)
        self.following = Following(Changes(self.engine), options.tenant)
        self.bus = Bus(options.cluster, self.id, self.following.heard, self._gap, options.tenant, self.sealer)
        self.following.tell = self.bus.tell
        self.nats_calls = NatsCalls(options.nats, options.nats_credentials, self.bus.root, self.id)
        self.node = self._this_node(Lists(self.engine))
        self.lists, self.switch = self.node.lists, self.node.switch
        self.keyring = ClusterKeyring(ApiKeys(self.engine), options.tenant, token, boot_time)
        self.rates = LeasedRates(Buckets(self.engine), options.tenant, self.node.gateways, boot_time)
        self.keys = RecordKeys(self.engine, options.tenant, self.node.who, self.sealer)
        self.tokens = RecordTokens(self.engine, self.sealer, options.tenant)
        self.world = World(
            make_link=self.switch.make_link, wrap_link=self.switch.wrap_link, tell=told_of, divides=self.switch.divides
        )
        self._reception: Reception | None = None
        self._file = ""
        self._tasks: list[asyncio.Task[Any]] = []

    def _this_node(self, lists: Lists) -> ThisNode:
        def listed(server: str) -> None:
            self.following.say("lists", {"server": server})

        tenant = self.options.tenant
        return ThisNode(self.id, tenant, self.sealer, self.places, lists, self.bus, self.nats_calls, listed)

    @property
    def member(self) -> Member | None:
        return self.node.member

    @property
    def sessions(self) -> SharedSessions | None:
        return self._reception.sessions if self._reception is not None else None

    @property
    def parts(self) -> dict[str, Any]:
        """What a hub of ours is made with."""
        return {"world": self.world, "key_store": self.keys, "catalog_dir": self.lists, "tokens": self.tokens}

    # -- the beginning ------------------------------------------------------------------------------------------------

    async def open(self, file: Loaded) -> Loaded:
        """Reach the record, in the form that this version knows; what all replicas are configured with: what the file
        says, where nobody has said it before. Raises `Unavailable` and `ConfigError`."""
        self._file = file.file
        try:
            await upgrade(self.engine)
            await self.lists.look()
            await self.tokens.look()
            await self.bring(file)
            found = await self._configuration(file)
        except ToolwayError:
            raise
        except Exception as exc:
            raise record_silent(exc) from None
        self._tasks.append(asyncio.create_task(self._reach_nats()))
        return found

    async def bring(self, file: Loaded, *, force: bool = False) -> None:
        """Let what a file says be the configuration of all, unless it was taken before."""
        if not file.file:
            return
        document, digest = await asyncio.to_thread(document_of, file.file)
        tenant = self.options.tenant
        if not force and not document[ROOT_KEYS[0]] and await self.registry.settings(tenant) is not None:
            # Somebody who starts with an empty file hardly means to end what all the others serve.
            log.warning("%s has no servers: what the cluster has configured stays", file.file)
            return
        if await self.registry.take(tenant, document, digest, force=force):
            self.following.say("registry", {})

    async def _configuration(self, file: Loaded) -> Loaded:
        found = await self.configuration.load(file.file)
        return found if found is not None else file

    async def _reach_nats(self) -> None:
        """Who starts while no NATS is there goes on without, and is told of changes a little later. The client tries by
        itself, again and again, and in silence."""
        opening = asyncio.ensure_future(self.bus.open(self.options.nats, self.options.nats_credentials or None))
        try:
            await asyncio.wait({opening}, timeout=NATS_PATIENCE)
            if not opening.done():
                log.warning("%s", nats_silent(self.bus.trouble or TimeoutError(f"not within {NATS_PATIENCE:g} s")))
            await opening
        except Exception as exc:
            log.error("%s", nats_silent(exc))
        finally:
            opening.cancel()

    async def serve(self, hub: Hub, gateway: Gateway, take: TakeConfig) -> None:
        """Be the hub's way to its servers, let other nodes into the gateway, and keep up with what others change:
        `take` takes another configuration. Raises what the record raises."""
        self.node.serve(hub)
        self._reception = Reception(
            gateway, self.node, self.options, self.engine, self.following, lambda: self.bus.connected
        )
        self.keyring.follow(self.following)
        Upkeep(self.node, self.configuration, self.tokens, hub, self._file, take).follow(self.following)
        try:
            await self.following.start()
        except Exception as exc:
            raise record_silent(exc) from None
        self.rates.start()

    async def join(self, host: str, port: int, *, tls: bool) -> str:
        """Take part: from now on servers are owned here. The name of the host by which others call us, if they do."""
        options = self.options
        address = await asyncio.to_thread(address_of, options, host, port, tls=tls)
        card = Card(self.id, address, __version__, options.capacity, options.labels, options.tenant)
        member = Member(card, self.nodes, self.places, self.switch, boot_time)
        member.on_moved = partial(tell_moved, self.following)
        self.node.join(member)
        self._tasks.append(asyncio.create_task(member.run()))
        if not address and self._reception is not None:
            self.nats_calls.listen(self._reception.answer, self.node.epoch)
        await self._wait_leased(member)
        self.following.say("places", {})
        return urlsplit(address).hostname or ""

    async def _wait_leased(self, member: Member) -> None:
        """Calls with a key that come before are refused: others would not know what became of them."""
        loop = asyncio.get_running_loop()
        until = loop.time() + FIRST_LEASE
        while member.epoch is None and loop.time() < until:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(0.02)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Hand over all that is owned here; in bounded time."""
        member = self.member
        if member is None:
            return
        try:
            # First: else the others take us for the one who should have what we let go of, and hand it back to us.
            async with asyncio.timeout(TELL_LEAVING):
                await self.nodes.drain(self.id)
        except Exception as exc:
            log.warning("the record cannot be told that this node leaves: %s", type(exc).__name__)
        self.following.say("places", {})
        member.drain()
        loop = asyncio.get_running_loop()
        until = loop.time() + HAND_OVER
        while member.held and loop.time() < until:  # noqa: ASYNC110 - once in a life, and nobody else needs to know
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.following.close()
        if self.sessions is not None:
            await self.sessions.close()
        await self.rates.close()
        await self.node.close()
        await self.nats_calls.close()
        await self.bus.close()
        await self.keys.close()
        await self.tokens.close()
        await self.engine.dispose()

    # -- what changes -------------------------------------------------------------------------------------------------

    def take(self, servers: Mapping[str, Server]) -> dict[str, Server]:
        """The servers as the hub of a replica has them: each starts where it is owned, and nowhere else."""
        self.lists.forget(servers)
        self.switch.know(servers)
        return {name: replace(server, lazy=True) for name, server in servers.items()}

    def _gap(self) -> None:
        self.following.gap()
        if self.sessions is not None:
            self.sessions.gap()
        self.node.look_soon()
