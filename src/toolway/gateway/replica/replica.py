"""One gateway of a cluster, from the first look at the record to the last: what joins record, bus, member and hub.

    replica = Replica(options)
    loaded = await replica.open(file)      # the configuration that all replicas have
    async with Hub(…, **replica.parts) as hub:
        replica.serve(hub, gateway)
        await replica.join(address)        # from now on servers are owned here

`shelf.py` keeps what is known of servers, `switch.py` where they are, `remote.py` goes there, `entry.py` lets others
in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from sqlalchemy.ext.asyncio import AsyncEngine

from toolway._version import __version__
from toolway.cluster.bus import Bus
from toolway.cluster.member import Member
from toolway.cluster.passes import Inspector
from toolway.cluster.record.api_keys import ApiKeys
from toolway.cluster.record.changes import Changes
from toolway.cluster.record.counts import Counts
from toolway.cluster.record.credentials import RecordTokens
from toolway.cluster.record.engine import open_engine, upgrade
from toolway.cluster.record.idempotency import RecordKeys
from toolway.cluster.record.lists import Lists
from toolway.cluster.record.nodes import Card, Nodes, Seen
from toolway.cluster.record.places import Held, Place, Places
from toolway.cluster.record.rates import Buckets
from toolway.cluster.record.registry import Registry
from toolway.cluster.record.sessions import Sessions
from toolway.config.formats import Loaded
from toolway.config.spec import Server
from toolway.errors import ToolwayError
from toolway.gateway.gateway import Gateway
from toolway.gateway.handshake import Handshake
from toolway.gateway.relay import Result
from toolway.gateway.replica.address import address_of
from toolway.gateway.replica.entry import Entry, NodeDoor, credential
from toolway.gateway.replica.links.known import Knowledge
from toolway.gateway.replica.links.peers import Peers
from toolway.gateway.replica.links.told import told_of
from toolway.gateway.replica.nodes_desk import NodesDesk
from toolway.gateway.replica.options import ClusterOptions
from toolway.gateway.replica.over_nats.calls import NatsCalls
from toolway.gateway.replica.over_nats.visit import Answer
from toolway.gateway.replica.owners import Owners
from toolway.gateway.replica.sessions.errands import METHOD as ERRAND
from toolway.gateway.replica.sessions.errands import Errands
from toolway.gateway.replica.sessions.sessions import SharedSessions
from toolway.gateway.replica.shared.breakers import Breakers
from toolway.gateway.replica.shared.keyring import ClusterKeyring
from toolway.gateway.replica.shared.limits import LeasedRates
from toolway.gateway.replica.shared.news import Following
from toolway.gateway.replica.shared.registry_source import Configuration, document_of
from toolway.gateway.replica.shared.shelf import Shelf
from toolway.gateway.replica.switch import Switch
from toolway.gateway.replica.troubles import nats_silent, record_silent
from toolway.gateway.sealed import Sealer
from toolway.gateway.sse import Sse
from toolway.gateway.visit import Tell
from toolway.hub import Hub
from toolway.model import Json
from toolway.protocol.wire import Message
from toolway.upstream.link import Link
from toolway.world import World

NATS_PATIENCE: Final = 3.0  # seconds to reach NATS at the start before it is told that none answers
FIRST_LEASE: Final = 10.0  # seconds at the start; what needs none is served without
TELL_LEAVING: Final = 2.0  # seconds for the record to take note that we leave
HAND_OVER: Final = 35.0  # seconds at the end for what is owned here: a call under way has 30
TOLD: Final = 200  # places in one piece of news

TakeConfig = Callable[[Loaded], Awaitable[None]]

log = logging.getLogger("toolway.cluster")


def boot_time() -> float:
    """Seconds that go on while the machine sleeps, and while we are stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


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
        self.owners = Owners(self.places)
        self.following = Following(Changes(self.engine), options.tenant)
        self.bus = Bus(options.cluster, self.id, self.following.heard, self._gap, options.tenant, self.sealer)
        self.following.tell = self.bus.tell
        self.nats_calls = NatsCalls(options.nats, options.nats_credentials, self.bus.root, self.id)
        self.peers = Peers(self.bus, lambda to: credential(self.sealer, self.id, to))
        self.shelf = Shelf(Lists(self.engine), options.tenant, self._fence, self._lists_written)
        self.switch = Switch(options.tenant, self, self.shelf)
        self.keyring = ClusterKeyring(ApiKeys(self.engine), options.tenant, token, boot_time)
        self.rates = LeasedRates(Buckets(self.engine), options.tenant, self._gateways, boot_time)
        self.keys = RecordKeys(self.engine, options.tenant, self._who, self.sealer)
        self.tokens = RecordTokens(self.engine, self.sealer, options.tenant)
        self.world = World(
            make_link=self.switch.make_link, wrap_link=self.switch.wrap_link, tell=told_of, divides=self.switch.divides
        )
        self.member: Member | None = None
        self._take_config: TakeConfig | None = None
        self.sessions: SharedSessions | None = None
        self._brought: Answer | None = None
        self._file = ""
        self._hub: Hub | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def parts(self) -> dict[str, Any]:
        """What a hub of ours is made with."""
        return {"world": self.world, "key_store": self.keys, "catalog_dir": self.shelf, "tokens": self.tokens}

    # -- the beginning ------------------------------------------------------------------------------------------------

    async def open(self, file: Loaded) -> Loaded:
        """Reach the record, in the form that this version knows; what all replicas are configured with: what the file
        says, where nobody has said it before. Raises `Unavailable` and `ConfigError`."""
        self._file = file.file
        try:
            await upgrade(self.engine)
            await self.shelf.look()
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
        if await self.registry.take(self.options.tenant, document, digest, force=force):
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
        self._hub = hub
        self.shelf.serve(hub)
        self.switch.serve(hub)
        self._take_config = take
        inspector = Inspector(self.id, self.sealer, self._fence_of, boot_time)
        self.entry = Entry(inspector, gateway.app.view_of_server)
        self.sessions = self._shared_sessions(gateway, inspector)
        self._brought = partial(self._answer, gateway.brought)
        gateway.let_nodes_in(NodeDoor(self.id, self.sealer).who, self.entry.take, self.switch.elsewhere)
        gateway.admin.cluster = self._desk()
        gateway.app.leaving = lambda: self.member is not None and self.member.draining
        if gateway.app.metrics is not None:
            gateway.app.metrics.cluster = self._gauges
        self.keyring.follow(self.following)
        self.following.on("registry", self._registry_changed)
        self.following.on("lists", self._lists_changed)
        self.following.on("logins", self._logins_changed)
        self.following.on_news("places", self._places_moved)
        self.following.on_news("restart", self._restart_asked)
        Breakers(hub.board, lambda: hub.servers, self.switch.has_owner).follow(self.following)
        try:
            await self.following.start()
        except Exception as exc:
            raise record_silent(exc) from None
        self.rates.start()

    def _shared_sessions(self, gateway: Gateway, inspector: Inspector) -> SharedSessions:
        tenant, errands = self.options.tenant, Errands(self, self.options.tenant)

        def made(handshake: Handshake, sse: Sse) -> SharedSessions:
            around = (Sessions(self.engine), errands, inspector, self.following, lambda: self.bus.connected)
            return SharedSessions(self.id, tenant, *around, handshake, sse)

        return gateway.share_sessions(made)

    def _answer(self, brought: Answer, server: str, message: Message, tell: Tell) -> Awaitable[Result]:
        """What another node brings over NATS."""
        if message.method == ERRAND and self.sessions is not None:
            return self.sessions.take(message.body, tell)
        return brought(server, message, tell)

    def _gauges(self) -> Mapping[str, float]:
        """How we stand, for `/metrics`."""
        member = self.member
        return {
            "nodes": len(member.nodes) if member is not None else 0,
            "owned": len(member.held) if member is not None else 0,
            "lease": member is not None and member.epoch is not None,
            "nats": self.bus.connected,
        }

    def _desk(self) -> NodesDesk:
        async def tell() -> None:
            self.following.say("places", {})
            if self.member is not None:
                self.member.look_soon()  # it may be ourselves that are meant

        def restart(server: str) -> None:
            self.following.say("restart", {"server": server})

        counts = Counts(self.engine)
        return NodesDesk(self.options, self.id, self.nodes, counts, lambda: self.bus.connected, tell, restart)

    async def join(self, host: str, port: int, *, tls: bool) -> str:
        """Take part: from now on servers are owned here. The name of the host by which others call us, if they do."""
        options = self.options
        address = await asyncio.to_thread(address_of, options, host, port, tls=tls)
        card = Card(self.id, address, __version__, options.capacity, options.labels, options.tenant)
        self.member = Member(card, self.nodes, self.places, self.switch, boot_time)
        self.member.on_moved = self._moved
        self.switch.join(self.member)
        self._tasks.append(asyncio.create_task(self.member.run()))
        if not address and self._brought is not None:
            self.nats_calls.listen(self._brought, self._epoch)
        await self._wait_leased()
        self.following.say("places", {})
        return urlsplit(address).hostname or ""

    async def _wait_leased(self) -> None:
        """Calls with a key that come before are refused: others would not know what became of them."""
        assert self.member is not None
        loop = asyncio.get_running_loop()
        until = loop.time() + FIRST_LEASE
        while self.member.epoch is None and loop.time() < until:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(0.02)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Hand over all that is owned here; in bounded time."""
        if self.member is None:
            return
        try:
            # First: else the others take us for the one who should have what we let go of, and hand it back to us.
            async with asyncio.timeout(TELL_LEAVING):
                await self.nodes.drain(self.id)
        except Exception as exc:
            log.warning("the record cannot be told that this node leaves: %s", type(exc).__name__)
        self.following.say("places", {})
        self.member.drain()
        loop = asyncio.get_running_loop()
        until = loop.time() + HAND_OVER
        while self.member.held and loop.time() < until:  # noqa: ASYNC110 - once in a life, and nobody else needs to know
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.following.close()
        if self.sessions is not None:
            await self.sessions.close()
        await self.rates.close()
        await self.shelf.close()
        await self.owners.close()
        await self.peers.close()
        await self.nats_calls.close()
        await self.bus.close()
        await self.keys.close()
        await self.tokens.close()
        await self.engine.dispose()

    # -- what links ask -----------------------------------------------------------------------------------------------

    @property
    def knowledge(self) -> Knowledge:
        return self.shelf

    def owns(self, server: str) -> bool:
        return self.switch.owns(server)

    def node(self, id: str) -> Seen | None:
        if self.member is None:
            return None
        found = self.member.node(id)
        if found is None:
            self.member.look_soon()
        return found

    def nodes_alive(self) -> Sequence[Seen]:
        return self.member.nodes if self.member is not None else ()

    def bus_link(self, seen: Seen, server: str) -> Link:
        return self.nats_calls.link(server, seen.card.id, seen.epoch)

    def _fence(self, server: str) -> int | None:
        return self.switch.fence(server)

    def _fence_of(self, tenant: str, server: str, instance: int) -> int | None:
        """Who comes for no server comes for this node, in its tenure."""
        if not server:
            return self._epoch() if tenant == self.options.tenant else None
        return self.member.holds(Place(tenant, server, instance)) if self.member is not None else None

    def _gateways(self) -> int:
        return len(self.member.nodes) if self.member is not None else 1

    def _epoch(self) -> int | None:
        return self.member.epoch if self.member is not None else None

    def _who(self) -> tuple[str, int] | None:
        epoch = self._epoch()
        return (self.id, epoch) if epoch is not None else None

    # -- what changes -------------------------------------------------------------------------------------------------

    def take(self, servers: Mapping[str, Server]) -> dict[str, Server]:
        """The servers as the hub of a replica has them: each starts where it is owned, and nowhere else."""
        self.shelf.forget(servers)
        self.switch.know(servers)
        return {name: replace(server, lazy=True) for name, server in servers.items()}

    def _lists_written(self, server: str) -> None:
        self.following.say("lists", {"server": server})

    async def _lists_changed(self, since: int) -> None:
        for server in await self.shelf.look(since):
            self.switch.found_out(server)

    async def _logins_changed(self, since: int) -> None:
        await self.tokens.look()

    def _restart_asked(self, body: Json) -> None:
        """At another node somebody asked for a restart of what may be ours."""
        server = body.get("server")
        if isinstance(server, str) and self._hub is not None and self.switch.owns(server):
            self._hub.restart(server)

    async def _registry_changed(self, since: int) -> None:
        found = await self.configuration.reload(self._file)
        if found is not None and self._take_config is not None:
            await self._take_config(found)

    def _moved(self, took: Sequence[Held], lost: Sequence[Held]) -> None:
        """What we own now, for those who look for its owner; and what others may take."""
        told = [[each.place.tenant, each.place.server, each.place.instance, each.node, each.fence] for each in took]
        for some in range(0, len(told), TOLD) if told else (0,):
            self.following.say("places", {"took": told[some : some + TOLD]})

    def _places_moved(self, body: Json) -> None:
        took = body.get("took")
        if isinstance(took, list):
            self.owners.hear(Held(Place(t, s, i), node, fence) for t, s, i, node, fence in took)
        if self.member is not None and not took:
            self.member.look_soon()  # somebody came, or let go of something

    def _gap(self) -> None:
        self.following.gap()
        if self.sessions is not None:
            self.sessions.gap()
        if self.member is not None:
            self.member.look_soon()
