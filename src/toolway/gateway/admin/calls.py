"""Admin API for calls: list recent calls, show one, replay one, make one (playground)."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import islice
from typing import Any, Final
from urllib.parse import parse_qs

from toolway.callbacks import FunctionCallbacks
from toolway.errors import AccessDenied, ConfigError, NotFound, Overloaded
from toolway.events import CallFinished
from toolway.gateway.admin import servers
from toolway.gateway.admin.activity import ActivityRecorder
from toolway.gateway.mcp.errors import RpcFailure
from toolway.gateway.principals import ApiKeyStore, Principal
from toolway.hub.calls import HubCalls
from toolway.types import Call, Json, ToolRef

MAX_CALLS_PER_REPLY: Final = 500  # calls in one reply
SCAN_LIMIT: Final = 10_000  # above the number of calls that are ever stored
#: Query fields of the list of calls.
CALL_QUERY: Final = {
    "server": "name of a server",
    "tool": "name of a tool on its server",
    "principal": "name of an API key, or local",
    "status": "failed, an outcome (ok, tool error, not run, unknown, waiting), or an error code",
    "slow": "minimum duration in seconds",
    "retried": "1 for calls with more than one attempt",
    "source": "cache, replay or shared",
    "q": "part of a name, id, outcome, error code, or message",
    "limit": f"at most {MAX_CALLS_PER_REPLY}",
}

CallPredicate = Callable[[CallFinished], bool]


class CallsAdmin:
    """Handles `/admin/calls` (recent calls) and `/admin/call` (call a tool by hand)."""

    def __init__(
        self,
        calls: HubCalls,
        activity: ActivityRecorder,
        api_keys: ApiKeyStore | None,
        users: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._calls = calls
        self._activity = activity
        self._api_keys = api_keys
        self._users = users
        #: returns False if the gateway's policy denies a call of a principal
        self.allows: Callable[[Principal, ToolRef, Json], bool] = lambda principal, ref, arguments: True
        #: returns the hint for a principal whose call of a tool (`server.tool`) the policy denies
        self.denial_hint: Callable[[Principal, str], str] = lambda principal, tool: ""
        #: returns the OAuth scopes that a tool (`server.tool`) requires and a user's token lacks
        self.missing_scopes: Callable[[Principal, str], Sequence[str]] = lambda principal, tool: ()
        #: runs a call of a tool within rate and limits of its principal; raises `RpcFailure` if it is not sent
        self.run_in_limits: Callable[[Principal, str, Coroutine[Any, Any, Json]], Awaitable[None]]

    def key_names(self) -> dict[str, str]:
        """Return the name of the API key or user behind each caller id in call records.

        A user named like a key, or named "local", is shown by id, because users may choose their names.
        """
        keys = self._api_keys.list_keys() if self._api_keys is not None else ()
        taken = {"local", *(key.name for key in keys)}
        users = {id_: name if name not in taken else id_ for id_, name in self._users().items()}
        return {**users, **{key.to_principal().caller_id: key.name for key in keys}}

    def find_key(self, name: str) -> str | None:
        """Return the caller id of the only API key with this name, or None.

        Users are not found by name, because they may choose their names.
        """
        keys = self._api_keys.list_keys() if self._api_keys is not None else ()
        found = [key.to_principal().caller_id for key in keys if key.name == name]
        return found[0] if len(found) == 1 else None

    def list_calls(self, query: str) -> Json:
        fields = parse_query_fields(query)
        names = self.key_names()
        matches = build_call_filter(fields, names)
        limit = min(MAX_CALLS_PER_REPLY, parse_number(fields.get("limit", "100")))
        found = islice(filter(matches, self._activity.calls.find_newest(limit=SCAN_LIMIT)), limit)
        rows = [servers.masked_call_to_json(fact, self._activity.masks.mask_for(fact.server), names) for fact in found]
        return {"calls": rows, "count": self._activity.calls.count}

    def _find_call(self, id_: str) -> CallFinished:
        fact = self._activity.calls.find(id_)
        if fact is None:
            raise NotFound(f"unknown or expired call {id_!r}", hint="list recent calls: toolway calls")
        return fact

    def get_call(self, id_: str) -> Json:
        fact = self._find_call(id_)
        return servers.call_detail_to_json(fact, self._activity.masks.mask_for(fact.server), self.key_names())

    async def replay(self, id_: str, body: Json, principal: Principal) -> Json:
        """Repeat a recorded tool call with the same arguments.

        If the tool is not known to be idempotent, the body needs `"confirm": true`. Raises `ConfigError` if that is
        missing, or if the call's arguments were not stored.
        """
        fact = self._find_call(id_)
        if fact.method != "tools/call" or not isinstance(fact.params, dict):
            raise ConfigError("call cannot be replayed", detail="its arguments are not stored")
        if fact.effect == "unsafe" and body.get("confirm") is not True:
            raise ConfigError(
                f"{fact.server}.{fact.tool} may change something each time it runs",
                detail="neither its settings nor its annotations declare it idempotent",
                hint="confirm the replay: toolway calls replay ID --yes",
                code="E-REPLAY",
            )
        return await self._call_tool(fact.server, fact.tool, fact.params.get("arguments") or {}, None, principal)

    async def make_call(self, body: Json, principal: Principal) -> Json:
        """Call the tool named in the request body. Raises `ValueError` for invalid fields."""
        server, tool, arguments = body.get("server"), body.get("tool"), body.get("arguments", {})
        timeout = body.get("timeout")
        if not isinstance(server, str) or not isinstance(tool, str) or not isinstance(arguments, dict):
            raise ValueError("server and tool must be strings, and arguments an object")
        if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= 900):
            raise ValueError("timeout must be a number of seconds, at most 900")
        return await self._call_tool(server, tool, arguments, timeout, principal)

    async def _call_tool(
        self, server: str, tool: str, arguments: Json, timeout: float | None, principal: Principal
    ) -> Json:
        name, id_ = f"{server}.{tool}", secrets.token_hex(8)
        if not self.allows(principal, ToolRef(server, tool), arguments):
            raise AccessDenied(
                f"the gateway's policy denies {name}",
                server=server,
                tool=tool,
                detail="policies apply to administrators too",
                hint=self.denial_hint(principal, name),
                code="E-POLICY-DENIED",
            )
        missing = self.missing_scopes(principal, name)
        if missing:
            raise AccessDenied(
                f"the token lacks the scope {' '.join(missing)}",
                server=server,
                tool=tool,
                detail=f"toolScopes requires it for {name}",
                hint="log in again and request this scope",
            )
        params: Json = {"name": tool, "arguments": arguments}
        no_client = FunctionCallbacks(None, None, None)  # no client answers requests of the server
        call = Call(
            name,
            "tools/call",
            params,
            timeout=timeout,
            caller=principal.caller_id,
            id=id_,
            callbacks=no_client,
            state=self._calls.new_call_state(keep_raw=False),  # records the phases of its attempts
        )
        reply: Json = {}

        async def send() -> Json:
            result = await self._calls.request(call)
            reply.update(id=id_, result=result.raw, seconds=result.duration, attempts=result.attempts)
            return result.raw

        try:
            await self.run_in_limits(principal, name, send())
        except RpcFailure as exc:
            data = exc.data or {}
            raise Overloaded(
                exc.message,
                server=server,
                tool=tool,
                hint=data.get("fix", ""),
                code=data.get("code", ""),
                retry_after=exc.retry_after,
            ) from None
        return reply


# -- query fields -----------------------------------------------------------------------------------------------------


def build_call_filter(fields: Mapping[str, str], names: Mapping[str, str]) -> CallPredicate:
    """Return a predicate that selects the calls matching all query fields (`CALL_QUERY`).

    `names` maps caller ids to names of API keys. Raises `ValueError` if the value of a field is invalid.
    """
    tests: list[CallPredicate] = []
    if "server" in fields:
        tests.append(lambda fact: fact.server == fields["server"])
    if "tool" in fields:
        tests.append(lambda fact: (fact.tool or fact.name) == fields["tool"])
    if "principal" in fields:
        tests.append(lambda fact: (names.get(fact.caller, fact.caller) or "local") == fields["principal"])
    if "status" in fields:
        tests.append(_status_predicate(fields["status"]))
    if "slow" in fields:
        min_seconds = float(fields["slow"])
        tests.append(lambda fact: fact.seconds >= min_seconds)
    if fields.get("retried"):
        tests.append(lambda fact: fact.attempts > 1)
    if "source" in fields:
        tests.append(lambda fact: fact.source == fields["source"])
    if fields.get("q"):
        substring = fields["q"].lower()
        tests.append(lambda fact: substring in _searched_text(fact))
    return lambda fact: all(test(fact) for test in tests)


def _searched_text(fact: CallFinished) -> str:
    return f"{fact.server}.{fact.tool} {fact.id} {fact.outcome} {fact.code} {fact.message}".lower()


def _status_predicate(wanted_status: str) -> CallPredicate:
    if wanted_status == "failed":
        return lambda fact: fact.failed
    return lambda fact: wanted_status in (fact.outcome, fact.code)


def parse_query_fields(query: str) -> dict[str, str]:
    """Parse a URL query string; the last value of a repeated field wins.

    Raises `ValueError` if there are more than 50 fields.
    """
    return {key: values[-1] for key, values in parse_qs(query, max_num_fields=50).items()}


def parse_number(text: str) -> int:
    """Parse a decimal integer of at most 12 digits. Raises `ValueError` for other text."""
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise ValueError(f"invalid number {text[:20]!r}")
    return int(text)
