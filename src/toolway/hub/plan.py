"""Plans: decisions about one caller's calls to one tool, made once because they do not depend on arguments.

A plan exists only for calls that need nothing beyond what a flight (hub/flight.py) does. All other calls use the
middleware chain. `Planner.find` returns the current plan. `Plan.is_valid` is the only check that it is current, and
lists everything that may change: session, catalog, settings, credentials, circuit breakers, observers, and approval
rules.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from toolway.auth.manager import AuthManager
from toolway.catalog.catalog import Catalog, Tool
from toolway.config.schema import Server
from toolway.hub.call_policy import CallPolicies, ToolPolicy
from toolway.hub.instrumentation import Instrumentation
from toolway.hub.upstreams import UpstreamManager
from toolway.middleware.approval import CallGate
from toolway.middleware.arguments import ArgumentValidator
from toolway.middleware.circuit_breaker import CircuitBreakers
from toolway.protocol.constants import LOG_LEVEL_META_KEY
from toolway.protocol.json_schema import SchemaValidator
from toolway.protocol.jsonrpc import encode_json
from toolway.protocol.versions import add_protocol_meta
from toolway.secrets.server_secrets import NO_SECRETS, secrets_of
from toolway.types import Call, Effect, Json
from toolway.upstream.session import CLIENT_INFO, Session
from toolway.upstream.upstream import Upstream

if TYPE_CHECKING:
    from toolway.audit.middleware import AuditMiddleware, PlannedAudit

MIN_TIMEOUT_S: Final = 3.0  # of a call with a plan: the deadline is watched only after a second (`MAX_FLIGHT_S`)
MAX_PLANS: Final = 10_000
SWITCH: Final = "TOOLWAY_PLANS"  # environment variable; "off" sends every call through the chain, for tests


class Plan:
    """Decisions, settings and objects that all of a caller's calls to one tool share.

    A plan is valid until one of them changes.
    """

    __slots__ = (
        "_approval_rules",
        "_breaker_removals",
        "_catalog_generation",
        "_is_per_caller",
        "_observers",
        "_planner",
        "_server",
        "audit",
        "budget",
        "caller",
        "capabilities",
        "has_intent",
        "is_admitted",
        "is_legacy",
        "limiter",
        "log_level",
        "meta",
        "params_start",
        "policy",
        "secrets",
        "server_breaker",
        "session",
        "target",
        "tool",
        "tool_breaker",
        "upstream",
        "validator",
    )

    def __init__(
        self,
        planner: Planner,
        tool: Tool,
        caller: str,
        policy: ToolPolicy,
        upstream: Upstream,
        session: Session,
        is_admitted: Callable[[], bool] | None = None,
    ) -> None:
        name = tool.server
        self.is_admitted = is_admitted  # returns False if a call must pass the gate of approvals; None: none must
        self.tool = tool
        self.caller = caller
        self.target = f"{name}.{tool.name}"
        self.policy = policy
        self.upstream = upstream
        self.session = session
        self.is_legacy = session.protocol.era == "legacy"
        self._is_per_caller = upstream is not planner.upstreams.upstreams.get(name)
        self.limiter = planner.upstreams.limiters[name]
        self.budget = planner.upstreams.retry_budgets[name]
        self.server_breaker = planner.breakers.server(name)
        self.tool_breaker = planner.breakers.tool(name, tool.name)
        self.secrets = secrets_of(name) if planner.redacts else NO_SECRETS  # that must not leave in a result
        self.validator: SchemaValidator | None = None
        if policy.tool_to_check is not None:
            self.validator = planner.argument_validator.validator(tool)
        self.audit: PlannedAudit | None = None
        if planner.audit is not None:
            effect = policy.default_effect
            self.audit = planner.audit.plan(
                Call(self.target, "tools/call", {}, name, tool.name, caller=caller, effect=effect, policy=policy)
            )
        self.has_intent = self.audit is not None and self.audit.needs_intent  # calls are recorded before they are sent
        self._planner = planner
        self._server: Server = policy.server
        self._catalog_generation = planner.catalog.generation
        self._breaker_removals = planner.breakers.removals
        self._observers = planner.instrumentation.version
        self._approval_rules = planner.approval_rules
        self.capabilities: Json | None = None  # of the client that `meta` is for; None until `meta` is set
        self.log_level: str | None = None
        self.meta = msgspec.Raw()
        self.params_start = b'{"name":%b,"arguments":' % encode_json(tool.name)  # of the params, encoded

    def is_valid(self) -> bool:
        """Return True if nothing that this plan depends on has changed, such as the session, catalog, or settings."""
        planner, name = self._planner, self.tool.server
        return (
            planner.catalog.generation == self._catalog_generation
            and self.upstream.has_session(self.session)
            and planner.upstreams.is_open
            and planner.upstreams.servers.get(name) is self._server
            and planner.breakers.removals == self._breaker_removals
            and planner.instrumentation.version == self._observers
            and planner.approval_rules == self._approval_rules
            and name not in planner.auth.per_user_servers
            and (not self._is_per_caller or planner.upstream_for(name, self.caller) is self.upstream)
        )

    def meta_for(self, capabilities: Json, extra: Json | None, log_level: str | None) -> msgspec.Raw | Json | None:
        """Return a request's `_meta` for a client with these capabilities and this log level.

        `extra` is what the caller adds. A legacy server gets only `extra`.
        """
        if self.is_legacy:
            return extra
        if extra:
            return self._build_meta(capabilities, extra, log_level)
        if self.log_level != log_level or (self.capabilities is not capabilities and self.capabilities != capabilities):
            self.meta = msgspec.Raw(encode_json(self._build_meta(capabilities, {}, log_level)))
            self.capabilities, self.log_level = capabilities, log_level
        return self.meta

    def _build_meta(self, capabilities: Json, extra: Json, log_level: str | None) -> Json:
        if log_level is not None:
            extra = {**extra, LOG_LEVEL_META_KEY: log_level}
        params: Json = add_protocol_meta({"_meta": extra}, self.session.protocol.version, CLIENT_INFO, capabilities)
        return dict(params["_meta"])


def add_trace_context(meta: msgspec.Raw | Json | None, traceparent: str) -> msgspec.Raw | Json:
    """Return a request's `_meta` with `traceparent` added. It stays encoded if it was given encoded."""
    if meta is None or isinstance(meta, dict):
        return {"traceparent": traceparent, **(meta or {})}
    return msgspec.Raw(b'{"traceparent":"%b",%b' % (traceparent.encode(), bytes(meta)[1:]))


class Planner:
    """Creates and caches plans by caller and tool, so calls can skip the middleware chain."""

    def __init__(
        self,
        upstreams: UpstreamManager,
        catalog: Catalog,
        policies: CallPolicies,
        breakers: CircuitBreakers,
        argument_validator: ArgumentValidator,
        auth: AuthManager,
        instrumentation: Instrumentation,
        *,
        enabled: bool,
    ) -> None:
        self.upstreams = upstreams
        self.catalog = catalog
        self.policies = policies
        self.breakers = breakers
        self.argument_validator = argument_validator
        self.auth = auth
        self.instrumentation = instrumentation
        self.audit: AuditMiddleware | None = None  # set when the audit log is open, if there is one
        self.redacts = False  # results are searched for secrets, as a gateway's are
        self.gate: CallGate | None = None  # of approvals
        self.approval_rules = 0  # grows with each change of the rules for approvals
        self.enabled = enabled and os.environ.get(SWITCH) != "off"
        self._plans: dict[tuple[str, str, str], Plan] = {}

    def find(self, tool: Tool, caller: str) -> Plan | None:
        """Return the valid plan for `caller` and `tool`, and create it if necessary.

        Return None if these calls must use the middleware chain.
        """
        key = (caller, tool.server, tool.name)
        plan = self._plans.get(key)
        if plan is not None and plan.tool is tool and plan.is_valid():
            return plan
        self._plans.pop(key, None)
        plan = self._create(tool, caller) if self.enabled else None
        if plan is not None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()  # cheap to create again
            self._plans[key] = plan
        return plan

    def upstream_for(self, name: str, caller: str) -> Upstream | None:
        """Return the upstream for a caller's calls to a server: the shared one, or the caller's own.

        Return None if that upstream is not running, because only the middleware chain starts it. `Dispatcher` follows
        the same rules.
        """
        upstreams = self.upstreams
        shared = upstreams.upstreams.get(name)
        if shared is None or name not in upstreams.servers or shared.negotiated is None:
            return None
        if caller and upstreams.uses_per_caller_connections(name, shared):
            return upstreams.per_caller.use(name, caller)
        return shared

    def _create(self, tool: Tool, caller: str) -> Plan | None:
        name = tool.server
        upstream = self.upstream_for(name, caller)
        session = upstream.session if upstream is not None else None
        if (
            upstream is None
            or session is None
            or not session.can_start
            or not upstream.has_session(session)
            or not self.instrumentation.allows_flights
            or self.auth.is_per_user(name)
            or tool.stale
            or tool.has_header_params
            or self.catalog.find_tool(name, tool.name) is not tool
            or not upstream.is_pinned(tool.name)
        ):
            return None
        policy = self.policies.tool_policy(tool)
        if (
            policy.timeout < MIN_TIMEOUT_S
            or (self.redacts and policy.server.redact)
            or policy.retry.attempt_timeout is not None
            or policy.settings.cache
            or (policy.default_effect is Effect.READ and policy.is_known_read)  # identical reads share one request
        ):
            return None
        is_admitted = None
        if policy.approval:
            is_admitted = self.gate.quick_check(policy.approval, caller) if self.gate is not None else None
            if is_admitted is None:
                return None
        return Plan(self, tool, caller, policy, upstream, session, is_admitted)
