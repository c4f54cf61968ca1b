"""One link in one era: stamps what goes out, sorts what comes in, answers what a server may ask.

A session is made when a link is opened and ends with it. It knows nothing of restarts, lists or other servers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND

from toolway._version import __version__
from toolway.config.spec import EraSetting
from toolway.model import Asks, Attempt, Certainty, Era, Json, OnProgress
from toolway.protocol import eras
from toolway.upstream import probe
from toolway.upstream.bucket import Bucket
from toolway.upstream.link import Fault, Link, Request, RpcError

CLIENT_INFO: Final[Json] = {"name": "toolway", "version": __version__}
MAX_ROUNDS: Final = 8  # of input that a server may ask for in one call
NOTICES: Final = (100.0, 1000.0)  # notifications a second, and in one burst
SESSION_GONE: Final = "E-HTTP-SESSION"  # the server forgot the handshake; nothing was executed

Listener = Callable[[str, Json], None]
_log = logging.getLogger(__name__)


class Session:
    def __init__(self, server: str, link: Link, asks: Asks, listener: Listener) -> None:
        self.link = link
        self.agreement: probe.Agreement | None = None
        self.in_flight = 0
        self.last_heard = asyncio.get_running_loop().time()
        self._server = server
        self._asks = asks
        self._listener = listener
        self._progress: dict[int, OnProgress] = {}
        self._last_token = 0
        self._handshakes = 0
        self._healing = asyncio.Lock()
        self._estranged = False  # the server has forgotten us, and no new handshake has succeeded yet
        self._rate = Bucket(*NOTICES, self.last_heard)
        self.dropped = 0  # notifications beyond the rate

    async def open(self, setting: EraSetting, hint: Era | None) -> None:
        """Open the link and agree on the era. Raises `Fault` or `RpcError`."""
        await self.link.open(self)
        agreed = await probe.agree(self.link, setting, hint, CLIENT_INFO, self._asks.capabilities)
        if agreed.era == "modern":
            self.link.adopt("modern", agreed.version)
        self.agreement = agreed

    @property
    def agreed(self) -> probe.Agreement:
        assert self.agreement is not None, "the session is not open"
        return self.agreement

    # -- asking the server --------------------------------------------------------------------------------------------

    async def call(
        self,
        method: str,
        params: Json,
        attempt: Attempt,
        *,
        on_progress: OnProgress | None = None,
        input_schema: object = None,
    ) -> Json:
        """One call, through as many rounds of input as the server asks for. Raises `Fault` or `RpcError`."""
        self.in_flight += 1
        token = self._watch_progress(on_progress) if on_progress is not None else None
        if token is not None:
            meta = params.get("_meta")
            params = {**params, "_meta": {**(meta if isinstance(meta, dict) else {}), "progressToken": token}}
        try:
            return await self._rounds(method, params, attempt, input_schema)
        finally:
            self.in_flight -= 1
            if token is not None:
                del self._progress[token]

    async def request(
        self, method: str, params: Json, attempt: Attempt | None = None, *, input_schema: object = None
    ) -> Json:
        """One request and its result, as they are. Raises `Fault` or `RpcError`."""
        attempt = attempt if attempt is not None else Attempt()
        if self._estranged:
            await self._shake_hands_again(self._handshakes)
        seen = self._handshakes
        try:
            return await self._send(method, params, attempt, input_schema)
        except Fault as exc:
            if exc.code != SESSION_GONE:
                raise
        attempt.certainty = Certainty.C0  # it was refused, so the second sending is the first that counts
        await self._shake_hands_again(seen)
        return await self._send(method, params, attempt, input_schema)

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
        try:
            await self.request("subscriptions/listen", {"notifications": wanted})
        except RpcError as exc:
            return exc.code != METHOD_NOT_FOUND
        return True

    async def _send(self, method: str, params: Json, attempt: Attempt, input_schema: object) -> Json:
        version = None
        if self.agreed.era == "modern":
            version = self.agreed.version
            params = eras.stamp(params, version, CLIENT_INFO, self._asks.capabilities)
        # A loss on a stale connection could not be told from a loss after the work; for a call that matters.
        fresh = method == "tools/call"
        request = Request(method, params, attempt, version=version, input_schema=input_schema, fresh=fresh)
        try:
            result = await self.link.request(request)
        except RpcError:
            self.last_heard = asyncio.get_running_loop().time()  # a refusal is a sign of life too
            raise
        self.last_heard = asyncio.get_running_loop().time()
        return result

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

    async def _rounds(self, method: str, params: Json, attempt: Attempt, input_schema: object) -> Json:
        asked = params
        for number in range(MAX_ROUNDS):
            try:
                result = await self.request(method, asked, attempt, input_schema=input_schema)
            except Fault as exc:
                # What the earlier rounds did cannot be taken back by a later one that was never sent.
                exc.certainty = max(exc.certainty, Certainty.C2) if number else exc.certainty
                raise
            if result.get("resultType") != "input_required" or method not in eras.MAY_ASK_BACK:
                return result
            attempt.worst = Certainty.C2
            asked = {**params, "inputResponses": await self._answers(result)}
            if isinstance(result.get("requestState"), str):
                asked["requestState"] = result["requestState"]
        raise Fault(f"the server asked for input more than {MAX_ROUNDS} times", Certainty.C2, code="E-ROUNDS")

    async def _answers(self, result: Json) -> Json:
        wanted = result.get("inputRequests")
        answers: Json = {}
        for key, ask in (wanted if isinstance(wanted, dict) else {}).items():
            method = ask.get("method") if isinstance(ask, dict) else None
            params = ask.get("params") if isinstance(ask, dict) else None
            try:
                answers[key] = await self._asks.answer(
                    self._server, str(method), params if isinstance(params, dict) else {}
                )
            except LookupError:
                raise Fault(
                    f"the server asks for {method}, and nobody is there to answer",
                    Certainty.C2,
                    code="E-NO-ANSWER",
                    fix="give the hub a callback for it: Hub(…, elicitation=…, sampling=…, roots=…)",
                ) from None
        return answers

    # -- what the server sends ----------------------------------------------------------------------------------------

    def on_notification(self, method: str, params: Json) -> None:
        self.last_heard = now = asyncio.get_running_loop().time()
        if method not in eras.LIST_CHANGES and not self._rate.take(now):
            self.dropped += 1  # a change of a list is never lost: it only marks the list, however often it is told
            return
        if method == "notifications/progress":
            self._on_progress(params)
        else:
            self._listener(method, params)

    async def on_request(self, method: str, params: Json) -> Json | None:
        if self.agreement is not None and self.agreement.era == "modern":
            return None  # no such thing in this era
        if method == "ping":
            return {}
        if not self.in_flight:
            raise RpcError(INVALID_REQUEST, "no call is under way")
        try:
            return await self._asks.answer(self._server, method, params)
        except LookupError:
            raise RpcError(METHOD_NOT_FOUND, f"{method} is not supported by this client") from None
        except Exception as exc:
            _log.exception("the callback for %s of %s failed", method, self._server)
            raise RpcError(INTERNAL_ERROR, "the client could not answer") from exc

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
