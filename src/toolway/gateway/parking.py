"""Calls that wait for the person behind a modern client, while an older server holds its question open.

Such a server asks in mid-call, by a request of its own. A modern client cannot be asked: it is answered with
`input_required` and comes back. Between the two the call is parked here: bounded in number and in time, found again
only by the sealed handle that the client was given, and cancelled if nobody returns.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from mcp_types.jsonrpc import MISSING_REQUIRED_CLIENT_CAPABILITY

from toolway.errors import CallError, ProtocolError
from toolway.gateway import failures
from toolway.gateway.failures import Failure
from toolway.gateway.visit import Visit
from toolway.model import Call, Json, Reply
from toolway.protocol.eras import ASK_CAPABILITIES

LONGEST: Final = 900.0  # seconds a call stays parked
MOST: Final = 4000  # parked at once, half of them by one principal
GATHER: Final = 0.02  # seconds in which questions that are asked together come together
MAX_ASKS: Final = 32  # open questions of one call
NAME: Final = "toolway/inputKey"  # in `_meta` of a question: what the server calls it
LONGEST_NAME: Final = 64


@dataclass(slots=True)
class _Ask:
    method: str
    params: Json
    answer: asyncio.Future[Json]
    told: bool = False  # the client has been asked


class Ear:
    """Where to is told what belongs to a call: to the request of the client that waits for it now, if one does."""

    def __init__(self, visit: Visit, meta: Json) -> None:
        self.turn_to(visit, meta)

    def turn_to(self, visit: Visit, meta: Json) -> None:
        token = meta.get("progressToken")
        self._token = token if isinstance(token, str | int) and not isinstance(token, bool) else None
        self._visit: Visit | None = visit

    def rest(self) -> None:
        self._visit = None

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._visit is None or self._token is None:
            return
        params: Json = {"progressToken": self._token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        self._visit.tell("notifications/progress", params)

    def notice(self, method: str, params: Json) -> None:
        if self._visit is not None and self._visit.hears(params.get("level")):
            self._visit.tell(method, params)


class Deaf:
    """The `Asks` of a call whose client can be asked nothing: it is answered at once, so nothing has to be parked."""

    def __init__(self) -> None:
        self.capabilities: Json = {}
        self.missing: set[str] = set()  # capabilities that the server asked for in vain

    async def answer(self, server: str, method: str, params: Json) -> Json:
        self.missing.add(ASK_CAPABILITIES.get(method, method))
        raise LookupError(method)


class Leg:
    """One call of a modern client to an older server, over as many rounds as it takes.

    It is the `Asks` of the call: what the server asks is kept until the client has been told and has answered."""

    def __init__(
        self, ear: Ear, capabilities: Json, can_answer: Callable[[Json, str, Json], bool], given: object = None
    ) -> None:
        self.id = ""  # while it is parked
        self.capabilities = capabilities
        self.ear = ear
        self.owner: tuple[str, ...] = ()  # whose it is, and for what: set when it is parked
        self._can_answer = can_answer
        self._given: Json = dict(given) if isinstance(given, dict) else {}  # answers that came with the call itself
        self._asks: dict[str, _Ask] = {}
        self._numbers = itertools.count(1)
        self._missing: set[str] = set()  # capabilities that the server asked for in vain
        self._news = asyncio.Event()
        self._task: asyncio.Task[Reply] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def begin(self, call: Call, work: Coroutine[Any, Any, Reply]) -> None:
        self.call = call
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(lambda _: self._news.set())

    async def answer(self, server: str, method: str, params: Json) -> Json:
        """For the session: the client's answer, whenever it comes."""
        if len(self._asks) >= MAX_ASKS:
            raise LookupError(method)
        if not self._can_answer(self.capabilities, method, params):
            self._missing.add(ASK_CAPABILITIES.get(method, method))
            raise LookupError(method)
        key = self._key(params)
        if isinstance(self._given.get(key), dict):
            answer: Json = self._given.pop(key)
            return answer
        ask = self._asks[key] = _Ask(method, params, asyncio.get_running_loop().create_future())
        self._news.set()
        try:
            return await ask.answer
        finally:
            del self._asks[key]

    def _key(self, params: Json) -> str:
        """The name of a question: the server's own, where it gave one, or a number."""
        meta = params.get("_meta")
        name = meta.get(NAME) if isinstance(meta, dict) else None
        if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name not in self._asks:
            return name
        return f"ask-{next(self._numbers)}"

    async def next(self) -> Reply | Json:
        """The reply, or the questions that the client is to be asked. Raises `CallError`, and `Failure` where the
        server failed because it asked what this client cannot be asked. Cancelling it cancels the call."""
        assert self._task is not None
        try:
            while True:
                await self._news.wait()
                if self._task.done():
                    return self._outcome(self._task)
                self._news.clear()
                if any(not ask.told for ask in self._asks.values()):
                    await asyncio.sleep(GATHER)
                    if self._task.done():
                        return self._outcome(self._task)
                    return self._questions()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _outcome(self, task: asyncio.Task[Reply]) -> Reply:
        """How the call ended. One that failed for want of an answer says so in the words of the modern era."""
        try:
            reply = task.result()
        except ProtocolError as exc:
            if self._missing:
                raise lacks(self._missing, exc.evidence) from None
            raise
        if self._missing and reply.is_error:
            raise lacks(self._missing, reply.text)
        return reply

    def _questions(self) -> Json:
        for ask in self._asks.values():
            ask.told = True
        return {
            key: {"method": ask.method, "params": ask.params}
            for key, ask in self._asks.items()
            if not ask.answer.done()
        }

    def take(self, responses: object) -> None:
        """The client came back. A question that it has not answered is asked again."""
        given = responses if isinstance(responses, dict) else {}
        for key, ask in self._asks.items():
            response = given.get(key)
            if isinstance(response, dict) and not ask.answer.done():
                ask.answer.set_result(response)
            else:
                ask.told = False
                self._news.set()

    def cancel(self) -> None:
        self.wake()
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(_forget_outcome)

    # -- while it is parked -------------------------------------------------------------------------------------------

    def sleep(self, until: Callable[[Leg], None], seconds: float) -> None:
        self._expiry = asyncio.get_running_loop().call_later(seconds, until, self)

    def wake(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    @property
    def over(self) -> bool:
        return self._task is None or self._task.done()


class Parking:
    def __init__(self, most: int = MOST, longest: float = LONGEST) -> None:
        self._legs: dict[str, Leg] = {}
        self._most = most
        self._longest = longest

    def __len__(self) -> int:
        return len(self._legs)

    def __contains__(self, id: str) -> bool:
        return id in self._legs

    def park(self, leg: Leg, owner: tuple[str, ...]) -> str:
        """Keep a call until its client returns. Raises `Failure` where there is no room."""
        if len(self._legs) >= self._most or self._of(owner[0]) >= max(1, self._most // 2):
            leg.cancel()
            raise failures.of_crowded(leg.call)
        leg.ear.rest()
        leg.owner = owner
        leg.id = secrets.token_urlsafe(12)  # another one in every round: an old handle leads nowhere
        self._legs[leg.id] = leg
        leg.sleep(self._expire, self._longest)
        return leg.id

    def _of(self, principal: str) -> int:
        return sum(leg.owner[0] == principal for leg in self._legs.values())

    def fetch(self, id: str, owner: tuple[str, ...]) -> Leg | None:
        """The parked call, once, and only for whom it was parked and with what was asked then."""
        leg = self._legs.get(id)
        if leg is None or leg.owner != owner:
            return None
        del self._legs[id]
        leg.wake()
        return leg

    def close(self) -> None:
        for leg in list(self._legs.values()):
            self._expire(leg)

    def _expire(self, leg: Leg) -> None:
        self._legs.pop(leg.id, None)
        leg.cancel()


def lacks(capabilities: set[str], said: str) -> Failure:
    """The client did not declare what the server needs. That it was called cannot be taken back."""
    needed: Json = {name: {} for name in sorted(capabilities)}
    facts = {"requiredCapabilities": needed, "executed": "yes", "certainty": "C3", "said": said[:500]}
    return Failure(MISSING_REQUIRED_CLIENT_CAPABILITY, f"the server needs {', '.join(needed)} of its client", facts)


def _forget_outcome(task: asyncio.Task[Reply]) -> None:
    """Nobody asks what became of a call that was left; that it failed is no complaint."""
    if not task.cancelled():
        error = task.exception()
        assert error is None or isinstance(error, CallError | Exception)
