"""Approvals in a running gateway: opens the gate and keeps its rules up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from toolway.config.masking import name_secrets
from toolway.errors import ConfigError, ServerUnavailable
from toolway.events import Alert
from toolway.hub.core import HubCore
from toolway.part_api.part import Gauge, Part, PartContext, PartRuntime
from toolway.parts.approvals.alerts import WAITS
from toolway.parts.approvals.conditions import compile_conditions
from toolway.parts.approvals.gate import CallApprovals
from toolway.parts.approvals.records import ApprovalLinks, RequestSealer
from toolway.parts.approvals.rules import ApproveRule
from toolway.parts.approvals.settings import ApprovalSettings
from toolway.parts.approvals.store import DatabaseApprovalStore


class ApprovalsRuntime(PartRuntime):
    """A gateway's approvals. `gate` is None if the gateway stores nothing, because it cannot ask without a store."""

    def __init__(self, hub: HubCore, gate: CallApprovals | None) -> None:
        self.hub = hub
        self.gate = gate

    @staticmethod
    def open(part: Part, context: PartContext) -> ApprovalsRuntime:
        """Create a gateway's gate, which stores requests in the part's database."""
        hub, database, key = context.hub, context.open_database(part), context.derive_key(part)
        if database is None:
            return ApprovalsRuntime(hub, None)
        store, links = DatabaseApprovalStore(database, RequestSealer(key)), ApprovalLinks(key)
        gate = CallApprovals(
            store, hub.mask, hub.emit, links=links, name_secrets=lambda text: name_secrets(hub.servers.entries, text)
        )
        hub.use_alert_links(_links_of(links, context.gateway_url))
        return ApprovalsRuntime.with_gate(context, gate)

    @staticmethod
    def with_gate(context: PartContext, gate: CallApprovals) -> ApprovalsRuntime:
        """Let this gate decide about every call through the gateway."""
        if context.api_keys is not None:
            gate.user_of = context.api_keys.user_of
        context.set_gate(gate)
        return ApprovalsRuntime(context.hub, gate)

    def start(self, settings: Any) -> None:
        self.check(settings)
        self.apply(settings)

    def check(self, settings: Any) -> None:
        rules = _rules_of(settings)
        if self.gate is None and rules:
            raise ConfigError(
                "toolway.approve cannot be used here", detail="this gateway stores no requests for approval"
            )
        expressions = compile_conditions(rules)
        if expressions is not None:
            expressions.close()

    def apply(self, settings: Any) -> None:
        if self.gate is not None and self.gate.set_rules(_rules_of(settings)):
            self.hub.calls.on_approval_rules_changed()

    async def read_gauges(self) -> Iterable[Gauge]:
        if self.gate is None or not self.gate.is_active:
            return ()
        try:
            return [Gauge("toolway_approvals_pending", await self.gate.count_pending())]
        except ServerUnavailable:  # the log has the cause
            return ()

    async def close(self) -> None:
        if self.gate is not None:
            await self.gate.close()


def _rules_of(settings: Any) -> Mapping[str, ApproveRule]:
    found: ApprovalSettings | None = settings
    return found.approve if found is not None else {}


def _links_of(links: ApprovalLinks, gateway_url: Callable[[], str]) -> Callable[[Alert], str]:
    """Return a function that returns the URL for an alert, or "" if the alert is not about an approval request."""

    def link_of(alert: Alert) -> str:
        url = gateway_url() if alert.kind == WAITS else ""
        return links.create_url(url, alert.call, alert.at) if url else ""

    return link_of
