"""The calls under way on one session, and whom of their callers a server means.

Over HTTP a server's question or log message comes on the stream of the call it belongs to. Over a pipe it does not say:
there calls of a gateway's clients that are known to ask take turns, and a question is that of the call whose turn it
is. Where it is nobody's turn, it goes to a call that waits for no other answer, of a tool that has asked before or else
of the tool that was called last, the earliest first. A pipe that asks questions is never shared by two authorization
contexts, so the worst that can happen is that the right person is asked in the wrong window.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND

from toolway.model import AskRefused, Asks, Attempt, Call, Json
from toolway.protocol.eras import ASK_CAPABILITIES, log_rank
from toolway.upstream.link import RpcError
from toolway.upstream.turns import Turns

ANSWER_TIME: Final = 900.0  # seconds a caller may take to answer one question
MOST_NAMES: Final = 1000  # of what is known to ask
_log = logging.getLogger(__name__)


class Callers:
    """`asks` answers for calls that name nobody else."""

    def __init__(self, server: str, asks: Asks) -> None:
        self._server = server
        self._asks = asks
        self._calls: dict[int, Call] = {}  # by the identity of their attempts, the latest last
        self._asking: set[str] = set()  # names of what is known to ask
        self._turns = Turns()
        self._open: dict[int, set[asyncio.Task[Any]]] = {}  # what a server of the handshake era waits for, by call

    def __len__(self) -> int:
        return len(self._calls)

    def enter(self, call: Call) -> None:
        self._calls[id(call.attempt)] = call

    async def wait_for_turn(self, call: Call) -> None:
        """On a pipe: until a question that comes would be this call's."""
        await self._turns.begin(call)

    def answered(self, call: Call) -> None:
        """The server has answered the call."""
        if call.asks is not None:
            self._turns.answered(call)

    def leave(self, call: Call) -> None:
        """The call is over, and nobody waits any more for what was asked in it."""
        self._calls.pop(id(call.attempt), None)
        if call.asks is not None:
            self._turns.leave(call)
        if self._open:
            for task in self._open.pop(id(call.attempt), ()):
                task.cancel()

    # -- questions ----------------------------------------------------------------------------------------------------

    async def answer(self, method: str, params: Json, about: Attempt | None) -> Json:
        """What a server of the handshake era asks in mid-call. Raises `RpcError` where it gets no answer."""
        if not self._calls:
            raise RpcError(INVALID_REQUEST, "no call is under way")
        call, task = self._meant(method, about), asyncio.current_task()
        assert task is not None
        waiting = self._open.setdefault(id(call.attempt), set())
        waiting.add(task)
        if about is None:
            self._turns.asked(call)
        try:
            answer = await self.ask(call, method, params)
            await self._turns.go_on(call)
            return answer
        except LookupError:
            raise RpcError(METHOD_NOT_FOUND, f"{method} is not supported by this client") from None
        except AskRefused as exc:
            raise RpcError(exc.code, exc.message, exc.data) from None
        except TimeoutError:
            raise RpcError(INTERNAL_ERROR, "the client did not answer in time") from None
        except Exception as exc:
            _log.exception("the callback for %s of %s failed", method, self._server)
            raise RpcError(INTERNAL_ERROR, "the client could not answer") from exc
        finally:
            waiting.discard(task)

    async def ask(self, call: Call, method: str, params: Json) -> Json:
        """The answer of one caller; the time he takes is his own. Raises `LookupError`, `AskRefused` and what the
        callback raises."""
        loop = asyncio.get_running_loop()
        call.attempt.ask_begins(loop.time())
        try:
            async with asyncio.timeout(ANSWER_TIME):
                return await self._asks_of(call).answer(self._server, method, params)
        finally:
            call.attempt.ask_ends(loop.time())

    def _meant(self, method: str, about: Attempt | None) -> Call:
        if about is not None and id(about) in self._calls:
            return self._calls[id(about)]
        if self._turns.at_work is not None:
            return self._turns.at_work
        wanted = ASK_CAPABILITIES.get(method, "")
        every = list(self._calls.values())
        able = [call for call in every if wanted in self._asks_of(call).capabilities] or every[-1:]
        free = [call for call in able if not call.attempt.is_asked] or able
        if len(every) == 1 and len(self._asking) < MOST_NAMES:
            self._asking.add(every[0].name)
        known = [call for call in free if call.name in self._asking]
        return known[0] if known else next(call for call in free if call.name == free[-1].name)

    def _asks_of(self, call: Call) -> Asks:
        return call.asks if call.asks is not None else self._asks

    # -- log messages -------------------------------------------------------------------------------------------------

    def tell(self, method: str, params: Json, about: Attempt | None) -> bool:
        """Give a log message to the calls that it belongs to; False where there are none."""
        if about is not None and id(about) in self._calls:
            chosen = [self._calls[id(about)]]
        else:
            chosen = [call for call in self._calls.values() if call.on_notice is not None]
            if len({call.caller for call in chosen}) > 1:
                return False  # nobody can tell whose it is
        told = False
        for call in chosen:
            if call.on_notice is not None and _loud_enough(params.get("level"), call.log_level):
                call.on_notice(method, params)
                told = True
        return told


def _loud_enough(level: object, wanted: str | None) -> bool:
    return wanted is None or log_rank(level) <= log_rank(wanted)
