"""Call policies: how the middleware treats each call, from the settings of its server and tool.

A policy decides a call's effect class, timeout, retries, and keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Final

import msgspec
from msgspec.structs import replace as with_facts

from toolway.catalog.catalog import Catalog, Tool
from toolway.config.schema import RetryPolicy, Server, ToolSettings
from toolway.types import Call, CallResult, Effect, ToolRef

# -------------------- effects
# Effect classes of calls: may a call run again?
#
# Sources in order of precedence: your setting, the HTTP method of an API, the tool's own annotations. Without
# any of these, UNSAFE. Never the tool's name or description.


_EFFECT_BY_HTTP_METHOD: Final[Mapping[str, Effect]] = {
    "GET": Effect.READ,
    "HEAD": Effect.READ,
    "OPTIONS": Effect.READ,
    "PUT": Effect.IDEMPOTENT,
    "DELETE": Effect.IDEMPOTENT,
}

_EFFECT_BY_MCP_METHOD: Final[Mapping[str, Effect]] = {
    "server/discover": Effect.READ,
    "ping": Effect.READ,
    "tools/list": Effect.READ,
    "prompts/list": Effect.READ,
    "prompts/get": Effect.READ,
    "resources/list": Effect.READ,
    "resources/templates/list": Effect.READ,
    "resources/read": Effect.READ,
    "completion/complete": Effect.READ,
    "tasks/get": Effect.READ,
    "tasks/cancel": Effect.IDEMPOTENT,
}


def method_effect(method: str) -> Effect:
    """Return the effect class of an MCP method; `tools/call` is UNSAFE until the tool is known."""
    return _EFFECT_BY_MCP_METHOD.get(method, Effect.UNSAFE)


def tool_effect(
    *,
    setting: Effect | None = None,
    http_method: str | None = None,
    annotations: Mapping[str, Any] | None = None,
    idempotent: bool = False,
    honours_key: bool = False,
) -> Effect:
    """Return a tool's effect class: from the setting, or else the HTTP method, or else the server's annotations.

    An UNSAFE tool becomes IDEMPOTENT if `idempotent` is True, which means that the caller or administrator says the
    call may run again, or if `honors_key` is True, which means that the server itself detects repeated calls by their
    idempotency key.
    """
    effect = setting
    if effect is None and http_method is not None:
        effect = _EFFECT_BY_HTTP_METHOD.get(http_method.upper(), Effect.UNSAFE)
    if effect is None:
        effect = _effect_from_hints(annotations or {})
    if effect is Effect.UNSAFE and (idempotent or honours_key):
        return Effect.IDEMPOTENT
    return effect


def _effect_from_hints(annotations: Mapping[str, Any]) -> Effect:
    """Return a tool's effect class according to its server's annotations.

    Annotations are trusted enough to allow retries, because a wrong one can only repeat an effect on the same server.
    They are never trusted enough to cache or share results.
    """
    if annotations.get("readOnlyHint") is True:
        return Effect.READ
    if annotations.get("idempotentHint") is True:
        return Effect.IDEMPOTENT
    return Effect.UNSAFE


MAX_CACHED_POLICIES: Final = 10_000  # cached policies
_INPUT_RESPONSE_PARAMS: Final = ("inputResponses", "requestState")  # part of a longer exchange: never shared


@cache
def _default_tool_settings() -> ToolSettings:
    return ToolSettings()


@cache
def _removed_server() -> Server:
    return Server(command="")


class ToolPolicy:
    """The rules for all calls to one tool: settings, timeout, retries, rate limits, and effect class.

    They are computed once, and again whenever the tool's definition or its server's settings change.
    """

    def __init__(self, server: Server, name: str, tool: Tool | None, approval: Sequence[Any] = ()) -> None:
        self.server = server
        self.tool = tool
        self.approval = approval  # rules that may ask for approval of a call
        self.settings = settings = server.tools.get(name) or _default_tool_settings()
        self.timeout = settings.timeout if settings.timeout is not None else server.timeout.total
        self.retry = settings.retry if settings.retry is not None else server.retry
        # A definition of an earlier run proves nothing: the dispatcher checks against the current one.
        self.tool_to_check = tool if tool is not None and server.validate_arguments and not tool.stale else None
        own_limits = (("", server.rate_limit), (name, settings.rate_limit))
        self.rate_limits = tuple((tool_name, limit) for tool_name, limit in own_limits if limit is not None)
        # The server's own hint is not enough: you must declare the effect or trust the server.
        self.is_known_read = settings.effect is Effect.READ or server.trusted
        self.default_effect = self.effect_for()

    def effect_for(self, *, idempotent: bool | None = None, has_key: bool = False) -> Effect:
        """Return the effect class of a call, given its `idempotent` flag and idempotency key."""
        declared = (idempotent, self.settings.idempotent, self.server.idempotent)
        return tool_effect(
            setting=self.settings.effect,
            annotations=self.tool.annotations if self.tool is not None else None,
            idempotent=next((value for value in declared if value is not None), False),
            honours_key=has_key and self.server.idempotency_meta_key is not None,
        )

    def terms(self) -> CallTerms:
        """Return the effect class, timeout, and idempotency `_meta` key for a call that sets no options itself."""
        if self.settings.effect is not None or self.settings.idempotent is not None or self.server.idempotent:
            source = "setting"
        else:
            source = "annotation" if self.default_effect is not Effect.UNSAFE else "default"
        key = self.server.idempotency_meta_key
        local = self.server.command is not None or self.server.instance is not None
        untrusted = self.server.untrusted
        return CallTerms(self.default_effect, source, self.timeout, self.definition_hash, key, local, untrusted)

    @cached_property
    def definition_hash(self) -> str:
        """Return a hash of the tool's definition, or "" if the tool is unknown."""
        if self.tool is None:
            return ""
        return hashlib.sha256(msgspec.json.encode(self.tool.raw, order="deterministic")).hexdigest()


class CallTerms(msgspec.Struct, frozen=True):
    """The hub's rules for calls to one tool: effect class and its source, timeout, definition hash.

    Attributes:
        effect: READ, IDEMPOTENT, or UNSAFE, for a call that sets no options itself.
        effect_source: Where the effect class comes from: "setting", "annotation" (the server's), or "default".
        timeout: Seconds allowed for a call.
        definition_hash: Hash of the tool's definition, or "" if the definition is not known.
        idempotency_meta_key: The `_meta` key by which the server detects repeated calls, or None if it does not.
        is_local: The server runs in the hub's process or as its child, and ends with it.
        untrusted: Results may contain untrusted content.
    """

    effect: Effect
    effect_source: str  # "setting", "annotation" or "default"
    timeout: float
    definition_hash: str
    idempotency_meta_key: str | None = None
    is_local: bool = False
    untrusted: bool = False


def _call_effect(call: Call, policy: ToolPolicy) -> Effect:
    if call.method != "tools/call":
        return method_effect(call.method)
    if call.idempotent is None and call.idempotency_key is None:
        return policy.default_effect
    return policy.effect_for(idempotent=call.idempotent, has_key=call.idempotency_key is not None)


class CallPolicies:
    """A hub's policies for calls: effect class, timeout, retries, rate limits, and keys, computed once per tool."""

    def __init__(self, servers: Mapping[str, Server], catalog: Catalog) -> None:
        self._servers = servers
        self._catalog = catalog
        self._policies: dict[tuple[str, str], ToolPolicy] = {}  # of listed tools only
        self.approval_rules: Callable[[str, str, Tool | None], Sequence[Any]] = lambda server, name, tool: ()

    def on_rules_changed(self) -> None:
        """Discard all stored policies, because the approval rules changed.

        The next call to each tool computes its policy again.
        """
        self._policies.clear()

    def attach(self, call: Call, tool: Tool | None) -> Call:
        """Return a copy of the call with its tool's policy and effect class, so later stages skip the lookup."""
        policy = self._find_policy(call, tool)
        limit = (policy.retry if call.retry is None else call.retry).attempt_timeout
        return with_facts(call, effect=_call_effect(call, policy), policy=policy, attempt_timeout=limit)

    def update(self, call: Call) -> Call:
        """Return the call with its tool's policy, if the tool was unknown when `attach` ran but is listed now.

        Otherwise return the call unchanged.
        """
        if call.method != "tools/call" or (call.policy is not None and call.policy.tool is not None):
            return call
        tool = self._catalog.tool(ToolRef(call.server, call.name))
        return call if tool is None else self.attach(call, tool)

    def terms(self, name: str) -> CallTerms | None:
        """Return effect class, timeout, and idempotency `_meta` key for calls to the tool `name` (`server.tool`).

        Return None if the tool is unknown.
        """
        ref = self._catalog.parse_name(name)
        tool = self._catalog.tool(ref) if ref is not None else None
        if ref is None or tool is None:
            return None
        return self._find_policy(Call(name, "tools/call", {}, server=ref.server, name=ref.tool), tool).terms()

    def effect(self, call: Call) -> Effect:
        """Return the call's effect class, READ, IDEMPOTENT or UNSAFE, which decides whether it may be sent again."""
        return _call_effect(call, self._policy_for(call))

    def total_timeout(self, call: Call) -> float:
        """Return the seconds allowed for the whole call, with all its attempts."""
        return call.timeout if call.timeout is not None else self._policy_for(call).timeout

    def validates_arguments(self, server: str) -> bool:
        """Return True if arguments are checked against the tool's schema before they are sent."""
        return self._server_settings(server).validate_arguments

    def ignores_null(self, server: str) -> bool:
        """Return True if null arguments are left out of requests to this server, as HTTP APIs expect."""
        settings = self._server_settings(server).transport_settings
        return settings is not None and settings.ignores_null

    def queue_timeout(self, server: str) -> float:
        """Return the seconds a call may wait for a concurrency slot of the server."""
        return self._server_settings(server).timeout.queue

    def idempotency_meta_key(self, server: str) -> str | None:
        """Return the `_meta` key in which the server accepts idempotency keys, or None."""
        return self._server_settings(server).idempotency_meta_key

    def is_process(self, server: str) -> bool:
        """Return True if the server is a child process or an in-process object."""
        return self._server_settings(server).transport in ("stdio", "memory")

    def retry_policy(self, call: Call) -> RetryPolicy:
        policy: RetryPolicy = call.retry if call.retry is not None else self._policy_for(call).retry
        return policy if call.max_attempts is None else msgspec.structs.replace(policy, max_attempts=call.max_attempts)

    def rate_limits(self, call: Call) -> Sequence[tuple[str, str]]:
        """Return a call's rate limits as (tool, rate) pairs. A server-wide limit has "" as its tool."""
        return self._policy_for(call).rate_limits

    def definition_hash(self, call: Call) -> str:
        """Return a hash of the called tool's definition, or "" if the tool is unknown."""
        return self._policy_for(call).definition_hash

    def coalesce_key(self, call: Call) -> Hashable | None:
        """Return the key under which identical reads share one request, or None if the call needs its own request.

        A call always needs its own request if its caller can answer requests from the server.
        """
        return None if call.callbacks is not None or call.capabilities else self._read_key(call)

    def _read_key(self, call: Call) -> Hashable | None:
        if call.effect is not Effect.READ or call.on_progress is not None or call.idempotency_key is not None:
            return None
        if call.method == "tools/call":
            policy = self._policy_for(call)
            if not policy.is_known_read or policy.approval:  # an approval covers one call
                return None
        if any(name in call.params for name in _INPUT_RESPONSE_PARAMS):
            return None
        arguments = msgspec.json.encode([call.params, call.capabilities], order="deterministic")
        return (call.caller, call.server, call.method, call.name, self.definition_hash(call), arguments)

    def cache_key(self, call: Call) -> Hashable | None:
        """Return the key under which a call's result is cached, or None if it may not be cached."""
        if call.method == "tools/call" and not self._policy_for(call).settings.cache:
            return None
        if call.method not in ("tools/call", "resources/read"):
            return None
        return self._read_key(call)

    def cache_ttl(self, call: Call, reply: CallResult) -> float:
        """Return for how many seconds a result may be cached.

        The administrator sets this, or the server does with `ttlMs`. It is zero if the result is an input request, or
        if the caller answered a server request to get it.
        """
        if call.state.has_waited_for_user or reply.raw.get("resultType", "complete") != "complete":
            return 0.0
        if call.method == "tools/call":
            return self._policy_for(call).settings.cache
        ttl = reply.raw.get("ttlMs")
        return ttl / 1000 if isinstance(ttl, int | float) and ttl > 0 else 0.0

    def _server_settings(self, name: str) -> Server:
        """Return the server's settings, or defaults if it was removed while the call waited."""
        return self._servers.get(name) or _removed_server()

    def _policy_for(self, call: Call) -> ToolPolicy:
        policy: ToolPolicy | None = call.policy
        if policy is not None:
            return policy
        tool = self._catalog.tool(ToolRef(call.server, call.name)) if call.method == "tools/call" else None
        return self._find_policy(call, tool)

    def _find_policy(self, call: Call, tool: Tool | None) -> ToolPolicy:
        if tool is None:
            rules = self.approval_rules(call.server, call.name, None) if call.method == "tools/call" else ()
            return ToolPolicy(self._server_settings(call.server), call.name, None, rules)
        return self.tool_policy(tool)

    def tool_policy(self, tool: Tool) -> ToolPolicy:
        """Return the policy (settings, timeout, effect class) of a listed tool."""
        server, key = self._server_settings(tool.server), (tool.server, tool.name)
        policy = self._policies.get(key)
        if policy is None or policy.tool is not tool or policy.server is not server:
            if len(self._policies) >= MAX_CACHED_POLICIES:
                self._policies.clear()  # cheap to compute again
            rules = self.approval_rules(tool.server, tool.name, tool)
            policy = self._policies[key] = ToolPolicy(server, tool.name, tool, rules)
        return policy
