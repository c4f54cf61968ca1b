"""The part in a gateway: rules that cannot be used, one gate alone, keys of parts, and the alert about a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolway.config.settings import parse_gateway
from toolway.errors import ConfigError
from toolway.events import ApprovalChanged
from toolway.gateway.part_set import PartSet, file_database
from toolway.hub.core import HubCore
from toolway.part_api import registry
from toolway.parts.approvals import Approvals
from toolway.parts.approvals.alerts import WAITS, condition_of
from toolway.parts.approvals.runtime import ApprovalsRuntime

pytestmark = pytest.mark.anyio
KEY = b"k" * 32


def settings_of(rules: Any) -> Any:
    return parse_gateway({"approve": rules}, {}).parts


async def test_rules_without_a_store_stop_the_start() -> None:
    parts = PartSet(HubCore({}), None, key=KEY)  # it stores nothing
    assert parts.gate is None
    parts.start({})
    for use in (parts.start, parts.check):
        with pytest.raises(ConfigError, match=r"toolway\.approve"):
            use(settings_of({"bank.*": "admin"}))


async def test_invalid_condition_is_rejected_before_rules_change(tmp_path: Path) -> None:
    parts = PartSet(HubCore({}), None, key=KEY, open_database=file_database(tmp_path))
    parts.start(settings_of({"bank.*": "admin"}))
    gate = parts.runtime("approvals", ApprovalsRuntime).gate
    assert parts.gate is gate
    assert gate is not None
    broken = settings_of({"bank.*": {"by": "admin", "when": "args.amount >"}})
    for use in (parts.check, parts.start):
        with pytest.raises(ConfigError, match=r"toolway\.approve"):
            use(broken)
        assert len(gate.rules_for("bank", "pay", None)) == 1 and gate.is_active
    parts.apply({})
    assert not gate.rules_for("bank", "pay", None) and not gate.is_active
    await parts.close()


async def test_second_approval_gate_is_rejected(tmp_path: Path) -> None:
    parts = PartSet(HubCore({}), None, key=KEY, open_database=file_database(tmp_path))
    assert [part.name for part, _ in parts].index("approvals") < [part.name for part, _ in parts].index("flows")
    assert parts.gate is not None
    with pytest.raises(LookupError):
        parts.set_gate(parts.gate)
    await parts.close()


async def test_each_part_has_the_same_key_in_all_processes() -> None:
    one, two, other = (PartSet(HubCore({}), None, key=key, parts=()) for key in (KEY, KEY, b"x" * 32))
    first, second = list(registry.built_in())[:2]
    assert one.derive_key(first) == two.derive_key(first) != one.derive_key(second)
    assert KEY != one.derive_key(first) != other.derive_key(first) and len(one.derive_key(first)) == 32
    assert PartSet(HubCore({}), None, parts=()).derive_key(first) != PartSet(HubCore({}), None, parts=()).derive_key(
        first
    )


def test_alert_opens_with_request_and_closes_with_answer() -> None:
    def condition(action: str, by: str = "admin") -> Any:
        return condition_of(ApprovalChanged("bank", action, by, "ab12", "pay", "key:anna"))

    asked = condition("asked")
    assert (asked.kind, asked.is_open, asked.server, asked.call) == (WAITS, True, "bank", "ab12")
    assert (asked.tool, asked.caller) == ("pay", "key:anna") and "toolway approvals show ab12" in asked.hint
    for action in ("approved", "denied", "used", "expired", "rejected"):
        ended = condition(action)
        assert (ended.kind, ended.is_open, ended.server, ended.call) == (WAITS, False, "bank", "ab12")
    assert condition("asked", "client") is None and condition("approved", "client") is None


def test_part_declares_its_tables_and_setting() -> None:
    part = Approvals()
    assert part.setting_keys == ("approve",) and [each.is_signed for each in part.tables()] == [True, False]
