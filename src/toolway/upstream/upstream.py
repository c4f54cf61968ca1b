"""One live server, as its hub has it. Calls borrow the session of one that is ready, or wait for it; they never own a
link. What happens to the link is the supervisor's business.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mcp_types.jsonrpc import UNSUPPORTED_PROTOCOL_VERSION

from toolway.config.spec import Server
from toolway.events import Kind, StateChanged
from toolway.model import Attempt, Call, Certainty, Era, Json
from toolway.upstream.border import call_error, no_credential
from toolway.upstream.link import MOVED, NOT_HERE, Fault, RpcError
from toolway.upstream.probe import Agreement
from toolway.upstream.session import Session
from toolway.upstream.state import State
from toolway.upstream.status import Status
from toolway.upstream.subscriptions import Subscriptions, Wanted
from toolway.upstream.supervisor import Supervisor
from toolway.upstream.surroundings import Surroundings

MOST_MOVES: Final = 10  # of a server, while one call is about to be sent


class Upstream:
    __slots__ = ("_clock", "_life", "_task", "name", "server")

    def __init__(self, name: str, server: Server, around: Surroundings, hint: Era | None = None) -> None:
        self.name = name
        self.server = server
        self._life = Supervisor(name, server, around, hint)
        self._clock = asyncio.get_running_loop().time
        self._task: asyncio.Task[None] | None = None

    def start(self, after: asyncio.Task[None] | None = None) -> None:
        """Begin to live; what is started by it starts when `after` is done."""
        if not self.server.lazy:
            self._life.wanted.set()
        name = f"toolway upstream {self.name}"
        self._task = asyncio.get_running_loop().create_task(self._life.live(after), name=name)

    def retire(self, around: Surroundings) -> None:
        """Take no more calls. Those that the server has go on; those that wait for it hear that nothing was sent. For
        the rest of the world this is the end; what there is to tell after it is told to `around`."""
        life = self._life
        life.retired = True
        why = "removed or replaced; what was under way is finished"
        life.around.emit(StateChanged(self.name, life.state.value, State.STOPPED.value, why))
        life.around = life.lists.around = around
        life.waiters.refuse(life.unavailable)

    async def stop(self) -> None:
        """Stop the server and all that belongs to it; at most about 6 s."""
        self._life.stop.set()
        if self._task is not None:
            await asyncio.shield(self._task)

    def wake(self) -> None:
        """Start if it is not started yet, and also where earlier starts failed."""
        if self.state in (State.BACKING_OFF, State.FAILED):
            self.restart()
        self._life.wanted.set()

    def restart(self) -> None:
        """Start again now, whatever the state; earlier restarts are forgotten."""
        self._life.past.restarts.forgive()
        self._life.wanted.set()
        self._life.again.set()

    # -- calls --------------------------------------------------------------------------------------------------------

    async def call(self, call: Call, input_schema: object = None) -> Json:
        """One call. Waits for a server that is starting. Raises `CallError`."""
        life, clock = self._life, self._clock
        for tried in range(MOST_MOVES + 1):
            session = life.session
            if session is None or life.state is not State.READY or life.retired:
                session = await life.ready(call.attempt)
            life.last_used = clock()
            try:
                return await session.call(call, input_schema)
            except (Fault, RpcError) as exc:
                if self._is_stale(exc) and tried < _patience(exc) and await self._moved_on(session):
                    continue  # nothing was executed: the next link takes it
                raise call_error(exc, self.name, call.name, self.server.unprocessed) from exc
            finally:
                life.last_used = clock()
        raise AssertionError("unreachable")

    def _is_stale(self, exc: Fault | RpcError) -> bool:
        """Whether the link is no longer what it was: its process has just died, or the server changed its era."""
        if isinstance(exc, RpcError):
            if exc.code == UNSUPPORTED_PROTOCOL_VERSION:
                self._life.hint = None
                self._life.again.set()
            return exc.code == UNSUPPORTED_PROTOCOL_VERSION
        stale = exc.certainty is Certainty.C0 and not no_credential(exc.code) and exc.code != NOT_HERE
        if stale:
            self._life.suspect.set()
        return stale

    async def _moved_on(self, session: Session) -> bool:
        """Whether `session` is over, or is so within a moment."""
        for _ in range(10):
            if self._life.session is not session or self.state is not State.READY:
                return True
            await asyncio.sleep(0.05)
        return False

    async def sign_of_life(self) -> None:
        """Ask the server for one, within its health limit. Raises `CallError` where there is none."""
        session = await self._life.ready(Attempt())
        try:
            async with asyncio.timeout(self.server.health.timeout):
                await session.health()
        except Fault as exc:
            raise call_error(exc, self.name, "") from exc
        except TimeoutError:
            raise self._life.unavailable() from None

    async def fetch_now(self, kind: Kind) -> None:
        """Fetch a list at once. Raises `CallError`."""
        session = await self._life.ready(Attempt())
        try:
            await self._life.lists.fetch(session, kind)
        except (Fault, RpcError) as exc:
            raise call_error(exc, self.name, "") from exc

    def refresh(self, kind: Kind) -> None:
        """Fetch a list again soon."""
        self._life.lists.refresh(kind)

    async def subscribe(self, kind: Wanted, name: str) -> None:
        """Want to hear of a resource or a task, which a server that is not started cannot tell of."""
        self._life.wanted.set()
        await self.subscriptions.add(kind, name)

    @property
    def subscriptions(self) -> Subscriptions:
        return self._life.subscriptions

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def wait_ready(self, attempt: Attempt | None = None, *, urgent: bool = True) -> None:
        """Return when calls go through. Raises `Unavailable` when the start under way fails."""
        await self._life.ready(attempt if attempt is not None else Attempt(), urgent=urgent)

    async def wait_settled(self) -> None:
        """Return when the first start has ended, well or badly."""
        await self._life.settled.wait()

    async def wait_listed(self, kind: Kind, *, urgent: bool = True) -> None:
        """Return when the server has answered with this list, or has none."""
        await self._life.ready(Attempt(), urgent=urgent)
        await self._life.lists.wait(kind)

    # -- how it is ----------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        return self._life.status()

    @property
    def state(self) -> State:
        return self._life.state

    @property
    def session(self) -> Session | None:
        """What there is now, ready or not."""
        return self._life.session

    @property
    def waiting(self) -> int:
        """How many wait for it to be ready."""
        return len(self._life.waiters)

    @property
    def retired(self) -> bool:
        """Whether it takes no more calls."""
        return self._life.retired

    @property
    def stopping(self) -> bool:
        return self._life.stop.is_set()

    @property
    def busy(self) -> bool:
        """Whether the server has calls of ours."""
        session = self._life.session
        return session is not None and session.in_flight > 0

    @property
    def unused(self) -> bool:
        """Whether nobody calls it, waits for it or listens to it."""
        return not (self.busy or self._life.waiters or self.subscriptions)

    @property
    def agreement(self) -> Agreement | None:
        """What was agreed with the server that is ready now."""
        session = self._life.session
        return session.agreement if session is not None and self.state is State.READY else None

    @property
    def is_modern(self) -> bool:
        """Whether it is ready and speaks the modern era."""
        life = self._life
        session = life.session
        if session is None or session.agreement is None or life.state is not State.READY:
            return False
        return session.agreement.era == "modern"

    @property
    def era(self) -> Era | None:
        """The era that the server speaks, or spoke when it was last heard."""
        agreed = self.agreement
        return agreed.era if agreed is not None else self._life.hint


def _patience(exc: Fault | RpcError) -> int:
    """How many further links are tried by a call that was not sent. One is worth a second try; where the server is
    elsewhere, whoever has it then."""
    return MOST_MOVES if isinstance(exc, Fault) and exc.code == MOVED else 1
