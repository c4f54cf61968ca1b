"""The command that signs the audit log is approved like a server entry: another program could have written it."""

from __future__ import annotations

from pathlib import Path

from toolway.config.approval.held_entries import SIGNER_NAME, ApprovalGate
from toolway.config.approval.trust_store import TrustStore
from toolway.config.scopes import without_held_signer
from toolway.config.settings import AuditSettings, GatewaySettings


def test_signer_added_by_another_program_needs_review(tmp_path: Path) -> None:
    gate, file = ApprovalGate(TrustStore(tmp_path / "trust.json")), str(tmp_path / "mcp.json")
    block = {"audit": {"signer": "command:/bin/sign", "signerKey": "public.pem"}}
    [held] = gate.find_held(file, {}, block, {})
    assert held.name == SIGNER_NAME
    assert [str(each) for each in held.accesses] == ["runs command:/bin/sign"]
    settings = GatewaySettings(audit=AuditSettings(signer="command:/bin/sign", signer_key="public.pem"))
    found = without_held_signer(settings, [held]).audit
    assert found is not None and found.signer_held
    assert without_held_signer(settings, []) is settings
    gate.take(file, {}, block, {})
    assert gate.find_held(file, {}, block, {}) == []
    assert gate.find_held(file, {}, {"audit": {"signer": "command:/bin/other"}}, {}) != []
    assert gate.find_held(file, {}, {"audit": True}, {}) == []
