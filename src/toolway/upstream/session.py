"""One link in one era: stamps what goes out, sorts what comes in, answers what a server may ask.

A session is made when a link is opened and ends with it. It knows nothing of restarts, lists or other servers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from toolway._version import __version__
from toolway.config.spec import EraSetting
from toolway.model import AskRefused, Asks, Attempt, Call, Certainty, Era, Json, OnProgress
from toolway.protocol import eras
from toolway.upstream import probe
from toolway.upstream.bucket import Bucket
from toolway.upstream.callers import Callers
from toolway.upstream.finding import FIND_TIME, OLD_AND_WRONG
from toolway.upstream.link import Fault, Link, Request, RpcError

CLIENT_INFO: Final[Json] = {"name": "toolway", "version": __version__}
MAX_ROUNDS: Final = 8  # of input that a server may ask for in one call
NOTICES: Final = (100.0, 1000.0)  # notifications a second, and in one burst
SESSION_GONE: Final = "E-HTTP-SESSION"  # the server forgot the handshake; nothing was executed

USUAL_LEVEL: Final = "info"  # where a caller wants log messages and has not said which
OF_CALL: Final = "toolway/ofCall"  # marks, for our own ears, a log message that a caller has got

Listener = Callable[[str, Json], None]
#: Another link to the same server, where what it refused with allows for one.
Older = Callable[[Fault | RpcError], Link | None]
_log = logging.getLogger(__name__)


class Session:
    def __init__(self, server: str, link: Link, asks: Asks, listener: Listener) -> None:
        self.link = link
        self.agreement: probe.Agreement | None = None
        self._clock = asyncio.get_running_loop().time
        self.last_heard = self._clock()
        self._server = server
        self._asks = asks
        self._listener = listener
        self._callers = Callers(server, asks)
        self._level = -1  # of log messages that a server of the handshake era was asked for
        self._takes_turns = False
        self._acknowledged: asyncio.Event | None = None  # while a subscription waits for it
        self._progress: dict[int, OnProgress] = {}
        self._last_token = 0
        self._handshakes = 0
        self._healing = asyncio.Lock()
        self._estranged = False  # the server has forgotten us, and no new handshake has succeeded yet
        self._rate = Bucket(*NOTICES, self.last_heard)
        self.dropped = 0  # notifications beyond the rate
        self.on_renewed: Callable[[], None] | None = None  # the server has forgotten what it was told

    async def open(self, setting: EraSetting, hint: Era | None, older: Older | None = None) -> None:
        """Open the link and agree on the era. `older` is asked for another link where the refusal of this one may mean
        that it is of the wrong transport. Raises `Fault` or `RpcError`."""
        await self.link.open(self)
        try:
            agreed = await self._agree(setting, hint)
        except (Fault, RpcError) as exc:
            link = older(exc) if older is not None else None
            if link is None or not await self._changed_to(link):
                raise
            agreed = await self._agree(setting, hint)
        if agreed.era == "modern":
            self.link.adopt("modern", agreed.version)
        facts = self.link.facts()
        # A pipe does not say whose question it brings, and only a process has one; nor does the stream of HTTP+SSE.
        self._takes_turns = agreed.era == "handshake" and (facts.pid is not None or facts.transport == "sse")
        self.agreement = agreed

    async def _agree(self, setting: EraSetting, hint: Era | None) -> probe.Agreement:
        if self.link.facts().modern:
            setting = "modern"
        return await probe.agree(self.link, setting, hint, CLIENT_INFO, self._asks.capabilities)

    async def _changed_to(self, link: Link) -> bool:
        """Whether `link` opens; it is then the link of this session. Raises `Fault` where it is the right one, and the
        server at fault."""
        try:
            async with asyncio.timeout(FIND_TIME):
                await link.open(self)
        except BaseException as exc:
            await link.close()
            if isinstance(exc, TimeoutError) or (isinstance(exc, Fault) and exc.code != OLD_AND_WRONG):
                return False
            raise
        before, self.link = self.link, link
        await before.close()
        return True

    @property
    def agreed(self) -> probe.Agreement:
        assert self.agreement is not None, "the session is not open"
        return self.agreement

    # -- asking the server --------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return len(self._callers)

    async def call(self, call: Call, input_schema: object = None) -> Json:
        """One call, through as many rounds of input as the server asks for. Raises `Fault` or `RpcError`."""
        params = call.params
        token = self._watch_progress(call.on_progress) if call.on_progress is not None else None
        if token is not None:
            params = _with_meta(params, "progressToken", token)
        try:
            if self._takes_turns:
                await self._callers.wait_for_turn(call)
            self._callers.enter(call)
            if call.on_notice is not None or call.log_level is not None:
                params = await self._ask_for_log(call.log_level, params)
            declared = call.capabilities
            if declared is None and call.asks is not None:
                declared = call.asks.capabilities
            result = await self.request(
                call.method, params, call.attempt, input_schema=input_schema, capabilities=declared
            )
            if (
                result.get("resultType") == "input_required"
                and not call.hands_back
                and call.method in eras.MAY_ASK_BACK
            ):
                result = await self._rounds(call, params, result, input_schema, declared)
            self._callers.answered(call)
            return result
        finally:
            self._callers.leave(call)
            if token is not None:
                del self._progress[token]

    async def request(
        self,
        method: str,
        params: Json,
        attempt: Attempt | None = None,
        *,
        input_schema: object = None,
        capabilities: Json | None = None,
    ) -> Json:
        """One request and its result, as they are. Raises `Fault` or `RpcError`."""
        attempt = attempt if attempt is not None else Attempt()
        if self._estranged:
            await self._shake_hands_again(self._handshakes)
        seen = self._handshakes
        for last_try in (False, True):
            request = self._stamped(method, params, attempt, input_schema, capabilities)
            try:
                result = await self.link.request(request)
                self.last_heard = self._clock()
                return result
            except RpcError:
                self.last_heard = self._clock()  # a refusal is a sign of life too
                raise
            except Fault as exc:
                if exc.code != SESSION_GONE or last_try:
                    raise
            attempt.certainty = Certainty.C0  # it was refused, so the second sending is the first that counts
            await self._shake_hands_again(seen)
        raise AssertionError("unreachable")

    async def health(self) -> None:
        """Ask for a sign of life. Any answer is one; raises `Fault` where there is none."""
        try:
            if self.agreed.era == "modern":
                await self.request("server/discover", {})
            else:
                await self.request("ping", {})
        except RpcError:
            pass

    async def listen(self) -> bool:
        """Hear of changed lists until the server ends the stream. False where it cannot tell of any."""
        wanted = eras.listen_filter(self.agreed.capabilities)
        if self.agreed.era != "modern" or not wanted:
            return False
        return await self._listen_to(wanted)

    async def listen_for(self, wanted: Mapping[str, Sequence[str]], acknowledged: asyncio.Event) -> bool:
        """The same for these resources and tasks of a modern server; it says when it has begun."""
        self._acknowledged = acknowledged
        return await self._listen_to(dict(wanted))

    async def _listen_to(self, wanted: Json) -> bool:
        declared = None
        if "taskIds" in wanted:  # nobody else may listen to tasks
            declared = {**self._asks.capabilities, "extensions": {eras.TASKS: {}}}
        try:
            await self.request("subscriptions/listen", {"notifications": wanted}, capabilities=declared)
        except RpcError as exc:
            return exc.code != METHOD_NOT_FOUND
        return True

    def _stamped(
        self, method: str, params: Json, attempt: Attempt, input_schema: object, capabilities: Json | None
    ) -> Request:
        """The request as the era wants it."""
        agreed, version = self.agreed, None
        if agreed.era == "modern":
            version = agreed.version
            declared = capabilities if capabilities is not None else self._asks.capabilities
            params = eras.stamp(params, version, CLIENT_INFO, declared)
        # A loss on a stale connection could not be told from a loss after the work; for a call that matters.
        return Request(method, params, attempt, version, input_schema, method == "tools/call")

    async def _shake_hands_again(self, seen: int) -> None:
        """Initialise once for all requests that found their session forgotten. Until that has succeeded, every
        request tries it first. Raises `Fault`: whatever went wrong, the request itself was not executed."""
        async with self._healing:
            if self._handshakes != seen and not self._estranged:
                return
            self._estranged = True
            self.link.forget_session()
            try:
                self.agreement = await probe.initialize(self.link, CLIENT_INFO, self._asks.capabilities)
            except (Fault, RpcError) as exc:
                raise Fault(f"no new session could be begun: {exc}", Certainty.C0, code="E-HTTP-SESSION-NEW") from exc
            self._handshakes += 1
            self._estranged = False
            self._level = -1
            if self.on_renewed is not None:
                self.on_renewed()

    async def _rounds(
        self, call: Call, params: Json, result: Json, input_schema: object, capabilities: Json | None
    ) -> Json:
        """Answer what the server asks for, until it has what it wants."""
        for _ in range(MAX_ROUNDS - 1):
            call.attempt.worst = Certainty.C2
            asked = {**params, "inputResponses": await self._answers(call, result)}
            if isinstance(result.get("requestState"), str):
                asked["requestState"] = result["requestState"]
            try:
                result = await self.request(
                    call.method, asked, call.attempt, input_schema=input_schema, capabilities=capabilities
                )
            except Fault as exc:
                # What the earlier rounds did cannot be taken back by a later one that was never sent.
                exc.certainty = max(exc.certainty, Certainty.C2)
                raise
            if result.get("resultType") != "input_required":
                return result
        raise Fault(f"the server asked for input more than {MAX_ROUNDS} times", Certainty.C2, code="E-ROUNDS")

    async def _answers(self, call: Call, result: Json) -> Json:
        """What the server asks for, all of it at the same time. Raises `Fault` where something gets no answer."""
        wanted = result.get("inputRequests")
        wanted = wanted if isinstance(wanted, dict) else {}
        answers = await asyncio.gather(*(self._answer(call, ask) for ask in wanted.values()))
        return dict(zip(wanted, answers, strict=True))

    async def _answer(self, call: Call, ask: object) -> Json:
        method = ask.get("method") if isinstance(ask, dict) else None
        params = ask.get("params") if isinstance(ask, dict) else None
        try:
            return await self._callers.ask(call, str(method), params if isinstance(params, dict) else {})
        except (LookupError, AskRefused, TimeoutError) as exc:
            why = f": {exc.message}" if isinstance(exc, AskRefused) else ", and nobody is there to answer"
            raise Fault(
                f"the server asks for {method}{why}",
                Certainty.C2,
                code="E-NO-ANSWER",
                fix="give the hub a callback for it: Hub(…, elicitation=…, sampling=…, roots=…)",
            ) from None

    async def _ask_for_log(self, level: str | None, params: Json) -> Json:
        """Ask for log messages from this level on, in the way of the era; `params` as they are then. A caller without
        a level leaves it to the server, as long as there is a server to which that can be left."""
        if self.agreed.era == "modern":
            return _with_meta(params, LOG_LEVEL_META_KEY, level or USUAL_LEVEL)
        if level is not None and "logging" in self.agreed.capabilities and eras.log_rank(level) > self._level:
            self._level = eras.log_rank(level)
            with suppress(Fault, RpcError):  # a server that does not let itself be asked is called all the same
                await self.request("logging/setLevel", {"level": level})
        return params

    # -- what the server sends ----------------------------------------------------------------------------------------

    def on_notification(self, method: str, params: Json, about: Attempt | None = None) -> None:
        self.last_heard = now = self._clock()
        if method not in eras.LIST_CHANGES and not self._rate.take(now):
            self.dropped += 1  # a change of a list is never lost: it only marks the list, however often it is told
            return
        if method == "notifications/progress":
            self._on_progress(params)
        elif method == "notifications/subscriptions/acknowledged":
            if self._acknowledged is not None and not eras.tells_of_lists(params.get("notifications")):
                self._acknowledged.set()
        else:
            told = method == "notifications/message" and self._callers.tell(method, params, about)
            self._listener(method, {**params, OF_CALL: True} if told else params)

    async def on_request(self, method: str, params: Json, about: Attempt | None = None) -> Json | None:
        if self.agreement is not None and self.agreement.era == "modern":
            return None  # no such thing in this era
        if method == "ping":
            return {}
        return await self._callers.answer(method, params, about)

    def _watch_progress(self, on_progress: OnProgress) -> int:
        self._last_token += 1
        self._progress[self._last_token] = on_progress
        return self._last_token

    def _on_progress(self, params: Json) -> None:
        token = params.get("progressToken")
        watcher = self._progress.get(token) if isinstance(token, int) and not isinstance(token, bool) else None
        progress = params.get("progress")
        if watcher is None or not isinstance(progress, int | float):
            return
        total = params.get("total")
        message = params.get("message")
        try:
            watcher(
                progress,
                total if isinstance(total, int | float) else None,
                message if isinstance(message, str) else None,
            )
        except Exception:
            _log.exception("the progress callback of a call to %s failed", self._server)


def _with_meta(params: Json, key: str, value: object) -> Json:
    meta = params.get("_meta")
    return {**params, "_meta": {**(meta if isinstance(meta, dict) else {}), key: value}}
