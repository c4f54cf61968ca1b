"""The five statements that a company may rely on, judged from collected facts. Plain synchronous code.

A statement holds only if everything that it needs was checked. It does not hold if one check failed. If something could
not be checked, the statement cannot be determined, and the reason is shown.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal

from toolway._lazy import dataclass
from toolway._os.support import missing
from toolway.doctor.company_facts import AuditFacts, CheckedServer, Facts, IdentityFacts, PinFacts
from toolway.doctor.report import STATE_SIGNS, STATE_STYLES, Check, CheckState, StyledLine, render_check, split_hint
from toolway.errors import PLATFORM_CODE

Verdict = Literal["holds", "does not hold", "cannot be determined"]
NOT_COLLECTED: Final = "it was not collected"
MAX_UNSIGNED_S: Final = 2 * 3600.0  # seconds; a checkpoint is made every hour
_OTHERS_MAY_READ: Final = 0o077
_VERDICT_STATES: Final[dict[Verdict, CheckState]] = {
    "holds": "ok",
    "does not hold": "fail",
    "cannot be determined": "skip",
}


@dataclass(frozen=True, slots=True)
class CompanyStatement:
    """One of the five statements, with its evidence.

    A check with the state `ok` supports it, `fail` refutes it, `skip` could not be made. `warn` names an exception or a
    limit that the reader has to know.
    """

    id: str
    text: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        """Return if the statement holds. Without any support it cannot be determined."""
        states = {check.state for check in self.checks}
        if "fail" in states:
            return "does not hold"
        return "cannot be determined" if "skip" in states or "ok" not in states else "holds"

    def apply_mask(self, mask: Callable[[str], str]) -> CompanyStatement:
        return CompanyStatement(self.id, self.text, tuple(check.apply_mask(mask) for check in self.checks))

    def to_json(self) -> dict[str, Any]:
        """Return the statement as a JSON object, as `toolway doctor --security --json` prints it."""
        evidence = [check.to_json() for check in self.checks]
        return {"id": self.id, "statement": self.text, "verdict": self.verdict, "evidence": evidence}


def judge(facts: Facts) -> tuple[CompanyStatement, ...]:
    """Return the five statements about a gateway, each with its evidence."""
    found = []
    for id_, text, checks in (
        ("identity", "No one gets in without your identity provider", _identity(facts)),
        ("content", "Nothing runs that was not approved by content", _content(facts)),
        ("definitions", "No tool changed since it was pinned or approved", _definitions(facts)),
        ("isolation", "No server sees another's secrets, your keys or the gateway's files", _isolation(facts)),
        ("signed", "What was done is signed", _signed(facts)),
    ):
        limit = [Check("limit", "skip", facts.limits[id_])] if id_ in facts.limits else []
        found.append(CompanyStatement(id_, text, (*checks, *limit)))
    return tuple(found)


def all_hold(statements: Iterable[CompanyStatement]) -> bool:
    return all(each.verdict == "holds" for each in statements)


def _missing(facts: Facts, *parts: str) -> Iterator[Check]:
    for part in parts:
        if getattr(facts, part) is None:
            yield Check(part, "skip", facts.reasons.get(part, NOT_COLLECTED))


def _settings(**keys: Any) -> str:
    """Return keys of `toolway.gateway` as lines to copy."""
    return json.dumps({"toolway": {"gateway": keys}})[1:-1]


# -- 1: identity -------------------------------------------------------------------------------------------------------


def _identity(facts: Facts) -> Iterator[Check]:
    found = facts.identity
    if found is None:
        yield from _missing(facts, "identity")
        return
    yield from _login(found)
    yield from _anonymous(found)
    yield from _keys(found)
    yield from _local_token(found)
    if found.cluster:
        yield Check("nodes", "warn", "nodes of the cluster get in with the cluster key, without the provider")


def _login(found: IdentityFacts) -> Iterator[Check]:
    if not found.issuer:
        yield Check(
            "login",
            "fail",
            "no identity provider is configured: everyone with an API key or the token of the machine gets in",
            "toolway.gateway.login is not set",
            "name your OpenID provider, and the URL of this gateway",
            _settings(login={"issuer": "https://login.example", "audience": "https://tools.example/mcp"}),
            "E-LOGIN-NONE",
        )
        return
    if found.running_issuer is not None and found.running_issuer != found.issuer:
        yield Check(
            "login",
            "fail",
            "the running gateway does not use the identity provider of the file",
            f"the file has {found.issuer}, the gateway names {found.running_issuer or 'none'} to clients",
            "restart the gateway: settings of the login are read at its start",
            "toolway serve",
            "E-LOGIN-NONE",
        )
        return
    yield Check("login", "ok", f"tokens of {found.issuer} are accepted", "toolway.gateway.login")
    if not found.provider:
        yield Check("provider", "skip", f"{found.issuer} was not asked for its keys")
    for check in found.provider:
        state: CheckState = "skip" if check.state == "fail" else check.state
        yield Check(check.name, state, check.message, check.detail, check.hint, check.copy, check.code)


def _anonymous(found: IdentityFacts) -> Iterator[Check]:
    if found.accepted is None:
        yield Check("anonymous", "skip", f"requests without a token were not tried: {found.tried}")
    elif found.accepted:
        yield Check(
            "anonymous",
            "fail",
            "a request without a valid token was accepted",
            f"{found.tried}: {', '.join(found.accepted)}",
            "stop this gateway, and start it without --no-auth",
            "toolway serve",
            "E-LOGIN-OPEN",
        )
    else:
        yield Check("anonymous", "ok", "requests without a token, or with a forged one, are refused", found.tried)


def _keys(found: IdentityFacts) -> Iterator[Check]:
    if found.keys is None:
        yield Check("keys", "skip", "the API keys could not be read", found.keys_problem)
        return
    if not found.keys:
        yield Check("keys", "ok", "there are no API keys")
    for key in found.keys:
        kind = "the administrator's key" if key.admin else "the key"
        if key.expires is None:
            yield Check(
                "keys",
                "fail",
                f"{kind} {key.name!r} gets in without the provider, and has no end",
                f"key {key.id}",
                "revoke it; if a program needs one, create a key with an end",
                f"toolway keys revoke {shlex.quote(key.id)}",
            )
        else:
            end = datetime.fromtimestamp(key.expires, UTC).strftime("%Y-%m-%d")
            yield Check("keys", "warn", f"{kind} {key.name!r} gets in without the provider until {end}")


def _local_token(found: IdentityFacts) -> Iterator[Check]:
    if not found.host:
        yield Check("token", "skip", "the address on which the gateway listens is not known from here")
        return
    if not found.is_loopback and found.token_from:
        yield Check(
            "token",
            "fail",
            "the token of this machine is an administrator's, and is accepted from other machines",
            f"the gateway listens on {found.host}, and toolway.gateway.localTokenFrom is {', '.join(found.token_from)}",
            "remove localTokenFrom, and restart the gateway; other machines use a login or an API key with an end",
            _settings(localTokenFrom=[]),
        )
    elif found.token_forwarded:
        yield Check(
            "token",
            "fail",
            "the token of this machine is an administrator's, and the running gateway accepts it through a proxy",
            "a request with this token and the header Forwarded was accepted",
            "stop this gateway, and start it again",
            "toolway serve",
        )
    elif found.token_file and found.token_mode & _OTHERS_MAY_READ:
        yield Check(
            "token",
            "fail",
            "other users of this machine can read its token, which is an administrator's",
            f"{found.token_file} has the mode {found.token_mode:o}",
            "make it private",
            f"chmod 600 {shlex.quote(found.token_file)}",
        )
    else:
        tried = ", as was tried" if found.token_forwarded is False else ""
        detail = (
            f"{found.token_file or 'it does not exist yet'}; it is refused from other machines, and with headers of a "
            f"proxy{tried}. A proxy on this machine that sends no such header can pass it on"
        )
        yield Check(
            "token", "warn", "the token of this machine gets in without the provider, from this machine", detail
        )


# -- 2: approved by content --------------------------------------------------------------------------------------------


def _content(facts: Facts) -> Iterator[Check]:
    approval, servers = facts.approval, facts.servers
    if approval is None or servers is None:
        yield from _missing(facts, "approval", "servers")
        return
    if approval.reload_all:
        yield Check(
            "reload",
            "fail",
            'entries that another program writes into the file are used without approval: "reload" is "all"',
            "toolway.gateway.reload",
            "use approved entries only",
            _settings(reload="approved"),
            "E-CONFIG-HELD",
        )
    if any(server.package and not server.lock_exempt for server in servers) and not approval.requires_lock:
        setting = (
            f"it is {approval.lock_setting!r}"
            if approval.lock_setting
            else "it is not set, and the gateway isn't public"
        )
        yield Check(
            "lock",
            "fail",
            "a lock is not required: without toolway.lock, packages run in the version that the registry returns",
            f"toolway.gateway.lock: {setting}",
            "require it",
            _settings(lock="required"),
            "E-LOCK",
        )
    for server in servers:
        yield from _program(server)
    if not servers:
        yield Check("servers", "ok", "no server is enabled")
    for name in approval.waiting:
        yield Check(name, "ok", "its entry waits for approval, and is not started")
    for file in approval.untrusted_files:
        yield Check("project", "ok", f"{file} is not trusted, and not used")
    if approval.signer:
        state = "waits for approval, and is not run" if approval.signer_held else "is approved"
        yield Check("signer", "ok", f"the command that signs the audit log {state}", approval.signer)
    if approval.allowed_commands:
        commands = ", ".join(approval.allowed_commands)
        yield Check("admin", "warn", "administrators may start these programs through /admin", commands)


def _program(server: CheckedServer) -> Iterator[Check]:
    name = server.name
    if not server.runs_program:
        if server.runs_for_secrets:
            yield from _approval(server)
        yield Check(
            name, "ok", "its server runs no program here; what runs at its URL cannot be locked", server.location
        )
        return
    yield from _approval(server)
    if server.image:
        yield Check(
            name,
            "fail",
            f"the image {server.image} is not fixed by its digest: the registry decides what runs",
            server.location,
            "name the image with its digest",
            f"{server.image.partition('@')[0]}@sha256:…",
        )
    if not server.package:
        return
    if server.lock_exempt:
        yield Check(
            name,
            "fail",
            f'{server.package} runs without its lock: "lock" is false in its entry',
            server.source,
            'remove "lock": false, then lock it',
            f"toolway trust lock {shlex.quote(name)}",
            "E-LOCK",
        )
    elif server.locked:
        detail = f"{server.lock_file}: {server.locked}"
        yield Check(name, "ok", f"{server.package} is locked, and all files of its tree were compared", detail)
    else:
        yield Check(
            name,
            "fail",
            f"{server.package} does not run from a lock",
            server.lock_problem or f"it is not in {server.lock_file}",
            "lock it",
            f"toolway trust lock {shlex.quote(name)}",
            "E-LOCK",
        )


def _approval(server: CheckedServer) -> Iterator[Check]:
    if server.approval == "entry":
        limit = "" if server.package else "; the content of the program is not compared"
        yield Check(
            server.name, "ok", f"its command line is approved, by the digest of its entry{limit}", server.source
        )
    elif server.approval == "project":
        yield Check(server.name, "ok", "its project file is trusted, by the digest of the file", server.source)
    elif server.approval == "unrecorded":
        yield Check(
            server.name,
            "fail",
            "no approval of its entry is recorded: the first start of the gateway approves all entries",
            server.source,
            "review the file, then record its entries",
            server.record_command,
            "E-CONFIG-HELD",
        )
    elif server.approval == "all":
        yield Check(server.name, "ok", 'its entry is used because "reload" is "all"', server.source)
    else:
        yield Check(server.name, "skip", "if its entry was approved is not known", server.source)


# -- 3: definitions ----------------------------------------------------------------------------------------------------


def _definitions(facts: Facts) -> Iterator[Check]:
    pins, servers = facts.pins, facts.servers
    if pins is None or servers is None:
        yield from _missing(facts, "pins", "servers")
        return
    yield from _pin_mode(pins)
    if pins.problem:
        yield Check("pins", "skip", "the pins could not be read", pins.problem, code="E-PINS-FILE")
        return
    for server in servers:
        yield from _pinned(server, pins)
    for pattern in pins.ignored:
        yield Check("ignored", "warn", f"changes of {pattern} are not compared", "toolway.gateway.ignoredChanges")


def _pin_mode(pins: PinFacts) -> Iterator[Check]:
    if pins.mode in ("hold", "approve"):
        origin = "toolway.gateway.pins" if pins.setting else "default for this gateway"
        yield Check("pins", "ok", f"changed definitions are held until a person approves them ({pins.mode})", origin)
        return
    origin = "toolway.gateway.pins" if pins.setting else "default for a gateway that listens on this machine only"
    yield Check(
        "pins",
        "fail",
        "changed definitions are used, and only noted",
        origin,
        "hold them until a person approves them",
        _settings(pins="hold"),
        "E-TOOL-HELD",
    )


def _pinned(server: CheckedServer, pins: PinFacts) -> Iterator[Check]:
    found, name = server.pins, shlex.quote(server.name)
    if found is None:
        other = "those that exist are of another command or URL with this name" if server.pins_of_other_entry else ""
        yield Check(
            server.name,
            "skip",
            "it has no pins: its definitions were not received since its entry was changed or added",
            other or pins.place,
            "let the gateway start it once",
            "toolway serve",
        )
        return
    for item in found.held:
        yield Check(
            server.name,
            "fail",
            f"{item} changed, and waits for a review; it is not used",
            pins.place,
            "see what changed, then approve it",
            f"toolway trust tools diff {name}; toolway trust tools accept {name}",
            "E-TOOL-HELD",
        )
    for item in found.noted:
        yield Check(
            server.name,
            "fail",
            f"{item} changed, and is used",
            pins.place,
            "see what changed, then approve it",
            f"toolway trust tools diff {name}; toolway trust tools accept {name}",
            "E-TOOL-HELD",
        )
    if not found.held and not found.noted:
        seen = found.count - found.approved
        text = f"{found.count} definitions are pinned: {seen} when first received, {found.approved} by a person"
        yield Check(server.name, "ok", text, pins.place)


# -- 4: isolation ------------------------------------------------------------------------------------------------------


def _isolation(facts: Facts) -> Iterator[Check]:
    servers = facts.servers
    if servers is None:
        yield from _missing(facts, "servers")
        return
    for server in servers:
        if server.runs_program:
            yield from _sandboxed(server)
        else:
            yield Check(server.name, "ok", "runs no program on this machine", server.location)
        for key in server.plain_secrets:
            yield Check(
                server.name,
                "fail",
                f"{key} is a secret in plain text (***)",
                server.source,
                "put it into the secret store, and refer to it in the file",
                f"toolway secrets set {shlex.quote(server.name)}.{shlex.quote(key.rpartition('.')[2])}",
                "E-DOCTOR-PLAIN",
            )
    if not servers:
        yield Check("servers", "ok", "no server is enabled")


def _sandboxed(server: CheckedServer) -> Iterator[Check]:
    name, probe = server.name, server.probe
    if server.env_policy == "inherit":
        yield Check(
            name,
            "fail",
            "it gets all variables of the gateway, also the secrets of other servers in them",
            server.source,
            "pass only the variables that it needs",
            '"envPolicy": "safe"',
        )
    if server.is_container:
        text = "the container runs outside of the sandbox of this entry: what it sees is decided by its mounts"
        yield Check(name, "skip", text, server.location, "review its options, such as -v, --mount and --privileged")
        return
    if lacked := missing("sandbox"):
        yield Check(name, "fail", lacked.message, server.source, *split_hint(lacked.hint), PLATFORM_CODE)
        return
    if server.sandbox not in ("guard", "strict"):
        sees = "everything" if server.sandbox == "off" else "your keys, and without Landlock also the gateway's files"
        yield Check(
            name,
            "fail",
            f'it runs with "sandbox": "{server.sandbox}", and can read {sees}',
            server.source,
            "let it run in a sandbox",
            '"sandbox": "guard"',
            "E-SANDBOX",
        )
        return
    if probe is None:
        yield Check(name, "skip", f"if its sandbox ({server.sandbox}) is possible was not tried", server.source)
    elif probe.problem:
        yield Check(
            name,
            "fail",
            f"its sandbox ({server.sandbox}) is not possible here, so it does not start: {probe.problem}",
            server.source,
            "see what it needs",
            f"toolway trust sandbox {shlex.quote(name)}",
            "E-SANDBOX",
        )
    elif probe.readable:
        yield Check(
            name,
            "fail",
            f"a program in its sandbox ({server.sandbox}) can read {', '.join(probe.readable)}",
            f"tried here; made by {probe.made_by}",
            "install bubblewrap, and grant only folders that the server needs",
            '"sandbox": "strict"' if server.sandbox == "guard" else '"sandbox": {"write": ["~/docs"]}',
            "E-SANDBOX",
        )
    elif not probe.tried:
        yield Check(
            name, "skip", f"nothing was found that a program in its sandbox ({server.sandbox}) could try to read"
        )
    else:
        tried = f"tried: {', '.join(probe.tried)}; made by {probe.made_by}"
        yield Check(name, "ok", f"a program in its sandbox ({server.sandbox}) could read none of what was tried", tried)


# -- 5: signed ---------------------------------------------------------------------------------------------------------


def _signed(facts: Facts) -> Iterator[Check]:
    found = facts.audit
    if found is None:
        yield from _missing(facts, "audit")
        return
    if not found.enabled:
        copy = '"toolway": {"audit": true}'
        yield Check("audit", "fail", "there is no audit log", "toolway.audit", "switch it on", copy, "E-AUDIT-NONE")
        return
    yield Check("audit", "ok", "calls are recorded", found.place)
    if not found.checkpoints:
        yield Check(
            "signatures",
            "fail",
            "the end of the log is not signed",
            "toolway.audit.checkpoints is false",
            "let the gateway sign it every hour",
            '"toolway": {"audit": {"checkpoints": true}}',
            "E-AUDIT-KEY",
        )
    yield from _signing_key(found)
    yield from _log(found)


def _signing_key(found: AuditFacts) -> Iterator[Check]:
    if found.key_problem:
        hint = found.key_hint or "create it"
        yield Check("key", "fail", found.key_problem, found.key_source, hint, "toolway audit key", "E-AUDIT-KEY")
    elif found.key_mode & _OTHERS_MAY_READ:
        yield Check(
            "key",
            "fail",
            "other users of this machine can read the key that signs",
            f"{found.key_source} has the mode {found.key_mode:o}",
            "make it private; if it was read, replace it",
            f"chmod 600 {shlex.quote(found.key_source)}",
        )
    elif found.key_id:
        yield Check(
            "key", "ok", f"the key {found.key_id} signed a message, and the signature is valid", found.key_source
        )
    else:
        yield Check("key", "skip", "if the key signs was not tried", found.key_source)


def _log(found: AuditFacts) -> Iterator[Check]:
    verify = "toolway audit verify"
    if found.unreadable:
        yield Check("log", "skip", "the log could not be read", found.unreadable, "check it", verify, "E-AUDIT-OPEN")
    elif found.altered:
        yield Check(
            "log", "fail", "the log was altered", found.altered, "find the record, then see your backup", verify
        )
    elif not found.records and found.is_running:
        text = "the running gateway does not write this log: it has no record"
        yield Check("log", "fail", text, found.place, "restart the gateway", "toolway serve", "E-AUDIT-NONE")
    elif not found.records:
        yield Check("log", "ok", "the log has no record yet, so nothing has to be signed", found.place)
    elif not found.signed_through:
        state: CheckState = "fail" if found.unsigned_s > MAX_UNSIGNED_S else "skip"
        text = f"the log has {found.records} records, and no checkpoint"
        hint = "the first one is made a minute after the start, and when the gateway ends"
        yield Check("log", state, text, found.place, hint, "toolway serve")
    elif found.unsigned_s > MAX_UNSIGNED_S:
        text = f"records of the last {found.unsigned_s / 3600:.0f} hours are not signed"
        detail = f"the newest checkpoint covers record {found.signed_through}, at {found.signed_at}"
        yield Check("log", "fail", text, detail, "a running gateway signs them; see its log", "toolway serve")
    else:
        text = f"the newest checkpoint is valid: record {found.signed_through}, signed at {found.signed_at}"
        detail = f"{found.place}; all {found.records} records from it on were compared"
        yield Check("log", "ok", text, detail)


# -- text --------------------------------------------------------------------------------------------------------------


def render_company(facts: Facts, statements: Iterable[CompanyStatement], width: int = 80) -> Iterator[StyledLine]:
    """Render the statements as text lines: verdicts first, then the evidence, then what was not checked."""
    found = [*statements]
    for each in found:
        state = _VERDICT_STATES[each.verdict]
        yield StyledLine(f"{STATE_SIGNS[state]} {each.text}: {each.verdict}", STATE_STYLES[state] or "green")
    for number, each in enumerate(found, 1):
        yield StyledLine("")
        yield StyledLine(f"{number}. {each.text}: {each.verdict}", "bold")
        for check in each.checks:
            yield from render_check(check, width)
    for title, lines in (("Checked", facts.checked), ("Not checked", facts.not_checked)):
        if lines:
            yield StyledLine("")
            yield StyledLine(title, "bold")
            yield from (StyledLine(f"  {line}") for line in lines)
