"""The five statements of `toolway doctor --security`: which fact refutes which one, with which evidence and fix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from toolway.doctor.report import Check
from toolway.doctor.security import all_hold, judge, render_statements
from toolway.doctor.security_facts import (
    AccessKey,
    ApprovalFacts,
    CheckedServer,
    Facts,
    IdentityFacts,
    SandboxProbe,
)
from toolway.part_api import GuardedProgram
from toolway.parts.audit.security_check import AuditFacts, judge_audit
from toolway.parts.lock.doctor_check import PackageFacts
from toolway.parts.lock.settings import LockSettings
from toolway.parts.pins.security_check import PinFacts, PinnedServer, judge_pins

REQUIRED = frozenset({"lock"})
OPTIONAL: frozenset[str] = frozenset()
PROBE = SandboxProbe("bubblewrap (/usr/bin/bwrap)", ("files of Toolway", "~/.ssh"))
PACKAGE = PackageFacts("acme-files", file="/home/me/toolway.lock", locked="107 packages, tree 3f2a")
FILES = CheckedServer(
    "files",
    "/home/me/mcp.json:3",
    "npx -y acme-files",
    guarded={"lock": GuardedProgram("acme-files", PACKAGE, [])},
    sandbox="guard",
    probe=PROBE,
)
WIKI = CheckedServer("wiki", "/home/me/mcp.json:9", "https://wiki.example/mcp", runs_program=False)
LOG = AuditFacts(
    enabled=True,
    place="/home/me/audit.sqlite",
    key_id="ab12",
    key_source="/home/me/audit-signing.pem",
    records=40,
    signed_through=38,
    signed_at="2026-11-17T12:00:00Z",
)
PINNED = (PinnedServer("files", count=9, approved=2), PinnedServer("wiki", count=3))
PINS = PinFacts("hold", "hold", place="/home/me/pins.json", servers=PINNED)
GOOD = Facts(
    identity=IdentityFacts(
        issuer="https://login.example",
        provider=(Check("provider", "ok", "https://login.example publishes 1 usable key"),),
        tried="tried at http://127.0.0.1:8765",
        token_file="/home/me/token",
    ),
    approval=ApprovalFacts(required_guards=REQUIRED),
    servers=(FILES, WIKI),
    evidence={"audit": tuple(judge_audit(LOG)), "pins": tuple(judge_pins(PINS))},
)
DOWN = Check(
    "provider", "fail", "the documents cannot be fetched", "timeout", "check the network", "curl -sS https://x"
)
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be determined"


def identity(**changes: Any) -> Facts:
    assert GOOD.identity is not None
    return replace(GOOD, identity=replace(GOOD.identity, **changes))


def server(**changes: Any) -> Facts:
    return replace(GOOD, servers=(replace(FILES, **changes), WIKI))


def package(**changes: Any) -> Facts:
    return server(guarded={"lock": GuardedProgram("acme-files", msgspec.structs.replace(PACKAGE, **changes), [])})


def approval(**changes: Any) -> Facts:
    return replace(GOOD, approval=replace(ApprovalFacts(required_guards=REQUIRED), **changes))


def pins(**changes: Any) -> Facts:
    return replace(GOOD, evidence={**GOOD.evidence, "pins": tuple(judge_pins(replace(PINS, **changes)))})


def pinned(**changes: Any) -> Facts:
    return pins(servers=(PinnedServer("files", **changes), PINNED[1]))


def audit(**changes: Any) -> Facts:
    return replace(GOOD, evidence={**GOOD.evidence, "audit": tuple(judge_audit(replace(LOG, **changes)))})


# facts, statement, verdict, name of the check, part of its evidence, part of its fix
ROWS: list[tuple[Facts, str, str, str, str, str]] = [
    # who gets in
    (identity(issuer="", provider=()), "identity", FAILS, "login", "toolway.gateway.login is not set", '"issuer":'),
    (identity(running_issuer=""), "identity", FAILS, "login", "names none to clients", "toolway serve"),
    (identity(running_issuer="https://login.example"), "identity", HOLDS, "login", "are accepted", ""),
    (identity(provider=()), "identity", UNKNOWN, "provider", "was not asked", ""),
    (identity(provider=(DOWN,)), "identity", UNKNOWN, "provider", "timeout", "curl -sS https://x"),
    (identity(accepted=("POST /mcp got 200",)), "identity", FAILS, "anonymous", "POST /mcp got 200", "toolway serve"),
    (identity(accepted=None, tried="it is down"), "identity", UNKNOWN, "anonymous", "it is down", ""),
    (identity(keys=(AccessKey("ci", "k1"),)), "identity", FAILS, "keys", "the key 'ci'", "toolway keys revoke k1"),
    (
        identity(keys=(AccessKey("ops", "k2", admin=True),)),
        "identity",
        FAILS,
        "keys",
        "administrator's key 'ops'",
        "k2",
    ),
    (identity(keys=(AccessKey("ci", "k1", expires=2e9),)), "identity", HOLDS, "keys", "until 2033-05-18", ""),
    (identity(keys=None, keys_problem="no database"), "identity", UNKNOWN, "keys", "no database", ""),
    (identity(host="0.0.0.0", is_loopback=False), "identity", HOLDS, "token", "rejected from other machines", ""),
    (
        identity(host="0.0.0.0", is_loopback=False, token_from=("10.0.0.0/8",)),
        "identity",
        FAILS,
        "token",
        "0.0.0.0, and toolway.gateway.localTokenFrom is 10.0.0.0/8",
        '"localTokenFrom": []',
    ),
    (
        identity(host="0.0.0.0", is_loopback=False, token_mode=0o644),
        "identity",
        FAILS,
        "token",
        "the mode 644",
        "chmod 600",
    ),
    (identity(token_forwarded=True), "identity", FAILS, "token", "the header Forwarded", "toolway serve"),
    (identity(token_forwarded=False), "identity", HOLDS, "token", "as was tried", ""),
    (identity(token_mode=0o644), "identity", FAILS, "token", "the mode 644", "chmod 600 /home/me/token"),
    (identity(host=""), "identity", UNKNOWN, "token", "unknown from here", ""),
    (identity(), "identity", HOLDS, "token", "the local token bypasses", ""),
    (identity(cluster=True), "identity", HOLDS, "nodes", "with the cluster key", ""),
    (replace(GOOD, identity=None), "identity", UNKNOWN, "identity", "it was not collected", ""),
    # what runs
    (approval(required_guards=OPTIONAL), "content", FAILS, "lock", "the gateway isn't public", '"lock": "required"'),
    (
        approval(required_guards=OPTIONAL, guard_settings={"lock": LockSettings("optional")}),
        "content",
        FAILS,
        "lock",
        "'optional'",
        '"required"',
    ),
    (approval(reload_all=True), "content", FAILS, "reload", "toolway.gateway.reload", '"reload": "approved"'),
    (approval(waiting=("new",)), "content", HOLDS, "new", "you have not trusted this entry yet", ""),
    (approval(untrusted_files=("/p/.mcp.json",)), "content", HOLDS, "project", "/p/.mcp.json is not trusted", ""),
    (approval(allowed_commands=("npx",)), "content", HOLDS, "admin", "npx", ""),
    (package(is_exempt=True), "content", FAILS, "files", '"lock" is false', "toolway trust lock files"),
    (
        package(locked="", problem="a file differs"),
        "content",
        FAILS,
        "files",
        "a file differs",
        "toolway trust lock files",
    ),
    (package(locked=""), "content", FAILS, "files", "it is not in /home/me/toolway.lock", "toolway trust lock files"),
    (server(), "content", HOLDS, "files", "107 packages, tree 3f2a", ""),
    (server(guarded={}), "content", HOLDS, "files", "content of the program is not compared", ""),
    (server(approval="unrecorded"), "content", FAILS, "files", "/home/me/mcp.json:3", "toolway trust"),
    (server(approval="project"), "content", HOLDS, "files", "its project file is trusted", ""),
    (server(approval="unknown"), "content", UNKNOWN, "files", "unknown: whether", ""),
    (server(guarded={}, image="acme/files:1.0"), "content", FAILS, "files", "acme/files:1.0", "@sha256:"),
    (server(), "content", HOLDS, "wiki", "cannot be locked", ""),
    (
        replace(GOOD, servers=(replace(WIKI, runs_for_secrets=True, approval="unrecorded"),)),
        *("content", FAILS, "wiki", "not recorded as trusted yet", "toolway trust"),
    ),
    (approval(signer="command:hsm"), "content", HOLDS, "signer", "is trusted command:hsm", ""),
    (approval(signer="command:hsm", signer_held=True), "content", HOLDS, "signer", "does not run", ""),
    (replace(GOOD, servers=None, reasons={"servers": "far away"}), "content", UNKNOWN, "servers", "far away", ""),
    (replace(GOOD, limits={"content": "a cluster"}), "content", UNKNOWN, "limit", "a cluster", ""),
    # definitions
    (pins(mode="warn", setting="warn"), "definitions", FAILS, "pins", "toolway.gateway.pins", '"pins": "hold"'),
    (pins(mode="warn", setting=""), "definitions", FAILS, "pins", "listens on this machine only", '"pins": "hold"'),
    (pins(mode="review"), "definitions", HOLDS, "pins", "(review)", ""),
    (pins(problem="damaged"), "definitions", UNKNOWN, "pins", "damaged", ""),
    (pins(ignored=("files.*",)), "definitions", HOLDS, "ignored", "files.* are not compared", ""),
    (pinned(is_known=False), "definitions", UNKNOWN, "files", "/home/me/pins.json", "toolway serve"),
    (pinned(is_known=False, pins_of_other_entry=True), "definitions", UNKNOWN, "files", "another command or URL", ""),
    (
        pinned(count=9, held=("files.read",)),
        "definitions",
        FAILS,
        "files",
        "files.read",
        "trust tools accept files",
    ),
    (
        pinned(count=9, noted=("files.rm",)),
        "definitions",
        FAILS,
        "files",
        "and is used",
        "trust tools diff files",
    ),
    (pinned(count=9, approved=2), "definitions", HOLDS, "files", "7 when first received, 2 after a review", ""),
    # sandboxes
    (server(sandbox="auto", probe=None), "isolation", FAILS, "files", '"sandbox": "auto"', '"sandbox": "guard"'),
    (server(sandbox="off", probe=None), "isolation", FAILS, "files", "can read everything", '"sandbox": "guard"'),
    (server(probe=None), "isolation", UNKNOWN, "files", "not checked", ""),
    (server(probe=SandboxProbe("x")), "isolation", UNKNOWN, "files", "found nothing", ""),
    (
        server(probe=SandboxProbe(problem="no bwrap")),
        "isolation",
        FAILS,
        "files",
        "no bwrap",
        "toolway trust sandbox files",
    ),
    (
        server(probe=replace(PROBE, readable=("~/.ssh",))),
        *("isolation", FAILS, "files", "can read ~/.ssh", '"sandbox": "strict"'),
    ),
    (server(env_policy="inherit"), "isolation", FAILS, "files", "every environment variable", '"envPolicy": "safe"'),
    (server(is_container=True), "isolation", UNKNOWN, "files", "its mounts decide", ""),
    (server(plain_secrets=("env.TOKEN",)), "isolation", FAILS, "files", "env.TOKEN", "toolway secrets set files.TOKEN"),
    (server(), "isolation", HOLDS, "files", "tried: files of Toolway, ~/.ssh; made by bubblewrap", ""),
    (server(), "isolation", HOLDS, "wiki", "runs no program on this machine", ""),
    # signatures
    (audit(enabled=False), "signed", FAILS, "audit", "toolway.audit", '"audit": true'),
    (audit(checkpoints=False), "signed", FAILS, "signatures", "checkpoints is false", '"checkpoints": true'),
    (audit(key_id="", key_problem="no such file"), "signed", FAILS, "key", "audit-signing.pem", "toolway audit key"),
    (audit(key_mode=0o640), "signed", FAILS, "key", "the mode 640", "chmod 600 /home/me/audit-signing.pem"),
    (audit(key_id=""), "signed", UNKNOWN, "key", "not checked", ""),
    (audit(altered="record 7: changed"), "signed", FAILS, "log", "record 7: changed", "toolway audit verify"),
    (audit(unreadable="locked"), "signed", UNKNOWN, "log", "locked", "toolway audit verify"),
    (audit(records=0, signed_through=0), "signed", HOLDS, "log", "no record yet", ""),
    (audit(records=0, is_running=True), "signed", FAILS, "log", "does not write this log", "toolway serve"),
    (audit(signed_through=0, unsigned_s=60.0), "signed", UNKNOWN, "log", "no checkpoint", ""),
    (audit(signed_through=0, unsigned_s=9e4), "signed", FAILS, "log", "no checkpoint", "toolway serve"),
    (audit(unsigned_s=9e4), "signed", FAILS, "log", "covers record 38", "toolway serve"),
    (audit(), "signed", HOLDS, "log", "record 38, signed at 2026-11-17T12:00:00Z", ""),
]


@pytest.mark.parametrize(("facts", "id_", "verdict", "name", "evidence", "fix"), ROWS)
def test_fact_decides_its_statement_with_evidence_and_fix(facts, id_, verdict, name, evidence, fix):
    found = {each.id: each for each in judge(facts)}[id_]
    assert found.verdict == verdict
    texts = [
        (f"{check.message} {check.detail}", check.copy, check.state) for check in found.checks if check.name == name
    ]
    assert [text for text in texts if evidence in text[0] and fix in text[1]], texts
    states = {FAILS: "fail", UNKNOWN: "skip"}
    if verdict in states:
        assert any(evidence in text and state == states[verdict] for text, _, state in texts), texts


@pytest.mark.parametrize(("facts", "id_", "verdict", "name", "evidence", "fix"), ROWS)
def test_fact_affects_only_its_statement(facts, id_, verdict, name, evidence, fix):
    changed = {each.id for each in judge(facts) if each.verdict != HOLDS}
    both = {"content", "definitions", "isolation"} if facts.servers is None else set()
    assert changed <= {id_, *both}


def test_all_statements_hold_for_good_facts():
    statements = judge(GOOD)
    assert [each.verdict for each in statements] == [HOLDS] * 5
    assert all_hold(statements)


def test_missing_facts_leave_every_statement_unknown():
    assert [each.verdict for each in judge(Facts())] == [UNKNOWN] * 5


def test_every_failed_statement_has_a_fix_to_copy():
    for facts, *_ in ROWS:
        for statement in judge(facts):
            assert all(check.copy for check in statement.checks if check.state == "fail"), statement


def test_text_shows_verdicts_evidence_fixes_and_unchecked():
    facts = replace(server(sandbox="off", probe=None), checked=("a file",), not_checked=("a node",))
    text = "\n".join(line.text for line in render_statements(facts, judge(facts)))
    assert "✓ What was done is signed: holds\n" in text
    assert "✗ No server sees another's secrets, your keys or the gateway's files: does not hold\n" in text
    assert '"sandbox": "guard"' in text
    assert text.endswith("Not checked\n  a node")
