"""A gateway's policy: which items each principal may see and call, with cached decisions.

An item is a tool, prompt, or resource. `ItemPermission` has the decisions for one caller, or for several callers that
the policies do not tell apart. An endpoint's view and the dispatcher use the same cached decisions, so lists and calls
agree.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from toolway.catalog.catalog import Item, Resource
from toolway.events import Event, ListKind, PolicyDecision
from toolway.gateway.principals import Principal
from toolway.parts.policy.engine import AccessDecision, PolicyEngine, Verdict
from toolway.parts.policy.entities import Caller, ItemFacts, Subject, caller_of
from toolway.secrets.replacer import cut_text

MAX_PERMISSIONS: Final = 10_000  # principals whose permission is kept
MAX_ITEMS: Final = 200_000  # items whose facts, or decisions for one caller, are kept
MAX_READS: Final = 1000  # decisions about URIs that no list has, for one caller
SLICE_ITEMS: Final = 20  # decisions that may be made at once in the event loop: about 2 ms
TYPES: Final[Mapping[ListKind, str]] = {
    "tools": "Tool",
    "prompts": "Prompt",
    "resources": "Resource",
    "templates": "Resource",
}
_CLOSED: Final = AccessDecision(False, (), "cannot read the policy of this gateway")


class AccessPolicy:
    """A gateway's loaded policies. A reload creates a new object.

    If `engine` is None, everything is denied, because a policy is configured but could not be loaded.
    """

    def __init__(
        self,
        engine: PolicyEngine | None,
        emit: Callable[[Event], None] = lambda event: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.engine = engine
        self.reads_hour = engine is not None and engine.reads_hour  # decisions may change with the hour of the day
        self._emit = emit
        self._now = now
        self._permissions: dict[Principal, ItemPermission] = {}
        self._by_subject: dict[Subject | None, ItemPermission] = {}
        self._facts: dict[tuple[str, str, str], tuple[Item, ItemFacts]] = {}

    @property
    def hour(self) -> int:
        """The current hour of the day in UTC, 0 to 23."""
        return int(self._now() // 3600) % 24

    def access_for(self, principal: Principal) -> ItemPermission:
        """Return the decisions about a principal. Principals that the policies do not tell apart share one object."""
        found = self._permissions.get(principal)
        if found is None:
            found = self.permission_of(caller_of(principal))
            if len(self._permissions) >= MAX_PERMISSIONS:
                self._permissions = {}
                self._by_subject = {}
            self._permissions[principal] = found
        return found

    def permission_of(self, caller: Caller) -> ItemPermission:
        """Return the decisions about a caller, given what policies may read about it."""
        subject = self.engine.subject_of(caller) if self.engine is not None else None
        found = self._by_subject.get(subject)
        if found is None:
            found = self._by_subject[subject] = ItemPermission(self, subject)
        return found

    def facts(self, type_: str, item: Item) -> ItemFacts:
        """Return what the policies read about an item. `type_` is its Cedar type, such as `Tool`."""
        assert self.engine is not None
        key = (type_, item.server, item.name)
        known = self._facts.get(key)
        if known is None or known[0] is not item:
            if len(self._facts) >= MAX_ITEMS:
                self._facts = {}
            known = self._facts[key] = (item, self.engine.reduce.item(type_, item))
        return known[1]

    def report_denied(self, principal: Principal, item: str, server: str, decision: AccessDecision) -> None:
        """Emit the event that a policy denied a call, for the audit log. The client is not informed."""
        reason = decision.reason or ("a policy forbids it" if decision.policies else "no policy permits it")
        rule = "policy" + (f" {', '.join(decision.policies)}" if decision.policies else "")
        self._emit(PolicyDecision(server, rule[:200], False, cut_text(reason, 500), cut_text(item, 500), principal.id))


class ItemPermission:
    """The decisions about one caller: which items it may see and call (`PrincipalAccess`).

    `subject` is None if everything is denied.
    """

    def __init__(self, policy: AccessPolicy, subject: Subject | None) -> None:
        self.policy = policy
        self.subject = subject
        self._reads_hour = policy.reads_hour
        self._hour = -1
        self._known: dict[tuple[ListKind, str, str], tuple[Item, Verdict]] = {}
        self._servers: dict[str, bool] = {}
        self._reads: dict[tuple[str, str], AccessDecision] = {}

    @property
    def version(self) -> int:
        """A number that changes when decisions may change: the hour if a policy reads the hour, or else always 0."""
        return self.policy.hour if self.policy.reads_hour else 0

    # -- lists --------------------------------------------------------------------------------------------------------

    def shows(self, kind: ListKind, item: Item) -> bool:
        """Return True if lists may show an item, because it may be called with at least some arguments."""
        return self.verdict(kind, item) is not Verdict.DENY

    def verdict(self, kind: ListKind, item: Item) -> Verdict:
        """Return the decision about an item before its arguments are known: allowed, denied, or dependent on them."""
        if self._reads_hour and self._hour != self.policy.hour:
            self._hour = self.policy.hour
            self._known, self._reads = {}, {}
        key = (kind, item.server, item.name)
        known = self._known.get(key)
        if known is None or known[0] is not item:
            if len(self._known) >= MAX_ITEMS:
                self._known = {}
            known = self._known[key] = (item, self._decide_first(kind, item))
        return known[1]

    def _decide_first(self, kind: ListKind, item: Item) -> Verdict:
        engine = self.policy.engine
        if engine is None or self.subject is None:
            return Verdict.DENY
        facts = self.policy.facts(TYPES[kind], item)
        return engine.first_step(self.subject, self.policy.hour, facts, f"{item.server}.{item.name}").verdict

    def has_many_unknown(self, items: Iterable[tuple[ListKind, Item]]) -> bool:
        """Return True if so many of these items are undecided that `prepare` should decide them in a thread."""
        count = 0
        for kind, item in items:
            known = self._known.get((kind, item.server, item.name))
            count += known is None or known[0] is not item
            if count > SLICE_ITEMS:
                return True
        return False

    async def prepare(self, items: Iterable[tuple[ListKind, Item]]) -> None:
        """Decide about many items in a thread, to keep the event loop responsive."""
        chosen = list(items)

        def decide() -> None:
            for kind, item in chosen:
                self.verdict(kind, item)

        await asyncio.to_thread(decide)

    def may_include(self, server: str) -> bool:
        """Return False if no policy can permit any of a server's items to this caller."""
        found = self._servers.get(server)
        if found is None:
            engine = self.policy.engine
            found = engine is not None and self.subject is not None and engine.may_include(self.subject, server)
            if len(self._servers) >= MAX_ITEMS:
                self._servers = {}
            self._servers[server] = found
        return found

    # -- calls --------------------------------------------------------------------------------------------------------

    def needs_arguments(self, tool: Item) -> bool:
        """Return True if each call to a tool needs its own decision, because arguments or the hour may change it."""
        return self.policy.reads_hour or self.verdict("tools", tool) is Verdict.READ_ARGUMENTS

    def allows_call(self, tool: Item, arguments: Mapping[str, Any]) -> bool:
        """Return True if a tool may be called with these arguments."""
        verdict = self.verdict("tools", tool)
        if verdict is Verdict.READ_ARGUMENTS:
            return self.decide_call(tool, arguments).allowed
        return verdict is Verdict.ALLOW

    def decide_call(self, tool: Item, arguments: Mapping[str, Any]) -> AccessDecision:
        """Return the decision about a call with these arguments, and the policies behind the decision."""
        return self._decide("tools", tool, arguments)

    def decide(self, kind: ListKind, item: Item) -> AccessDecision:
        """Return the decision about an item called without arguments, and the policies behind the decision."""
        return self._decide(kind, item, {})

    def allows_read(self, server: str, uri: str) -> bool:
        """Return True if this URI may be read from a server. It does not need to be in any list."""
        return self.decide_read(server, uri).allowed

    def report_call(self, principal: Principal, tool: Item, arguments: Mapping[str, Any]) -> None:
        """Report a denied call to the audit log. The client is not informed."""
        self._report(principal, tool.server, tool.name, self.decide_call(tool, arguments))

    def report_hidden(self, principal: Principal, kind: ListKind, item: Item) -> None:
        """Report to the audit log that a client asked for an item that only the policy hides."""
        self._report(principal, item.server, item.name, self.decide(kind, item))

    def report_read(self, principal: Principal, server: str, uri: str) -> None:
        """Report a denied read to the audit log. The client is not informed."""
        self._report(principal, server, uri, self.decide_read(server, uri))

    def denial_hint(self, principal: Principal, name: str) -> str:
        """Return the hint for an administrator whose call to the tool `name` is denied."""
        return f"see the deciding policy: toolway policy why {caller_of(principal).id} {name}"

    def _report(self, principal: Principal, server: str, name: str, decision: AccessDecision) -> None:
        self.policy.report_denied(principal, f"{server}.{name}", server, decision)

    def decide_read(self, server: str, uri: str) -> AccessDecision:
        """Return the decision about reading a URI from a server. The URI does not need to be in any list."""
        if self.policy.reads_hour:
            return self._decide("resources", Resource(server, uri, {}), {})
        found = self._reads.get((server, uri))
        if found is None:
            if len(self._reads) >= MAX_READS:
                self._reads = {}
            found = self._reads[server, uri] = self._decide("resources", Resource(server, uri, {}), {})
        return found

    def _decide(self, kind: ListKind, item: Item, arguments: Mapping[str, Any]) -> AccessDecision:
        engine = self.policy.engine
        if engine is None or self.subject is None:
            return _CLOSED
        name = f"{item.server}.{item.name}"
        if kind == "resources":  # its URI may be one that a client chose
            facts = engine.reduce.item(TYPES[kind], item)
            return engine.first_step(self.subject, self.policy.hour, facts, name, keep=False).decision
        facts = self.policy.facts(TYPES[kind], item)
        return engine.decide(self.subject, self.policy.hour, facts, arguments, name)
