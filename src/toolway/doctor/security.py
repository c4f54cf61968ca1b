"""The checks of `toolway doctor --security`: functions that judge collected facts. No I/O.

A guarantee holds only if everything that it needs was checked. It does not hold if one check failed. If something could
not be checked, the guarantee cannot be determined, and the reason is shown.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from toolway._os.support import missing
from toolway.doctor.report import STATE_SIGNS, STATE_STYLES, Check, CheckState, StyledLine, render_check, split_hint
from toolway.doctor.security_facts import ApprovalFacts, CheckedServer, Facts, IdentityFacts
from toolway.errors import PLATFORM_CODE
from toolway.part_api import registry

Verdict = Literal["holds", "does not hold", "cannot be determined"]
Servers = tuple[CheckedServer, ...]
NOT_COLLECTED: Final = "it was not collected"
_OTHERS_MAY_READ: Final = 0o077
_VERDICT_STATES: Final[dict[Verdict, CheckState]] = {
    "holds": "ok",
    "does not hold": "fail",
    "cannot be determined": "skip",
}


@dataclass(frozen=True, slots=True)
class SecurityStatement:
    """One of the guarantees, with its evidence.

    A check with the state `ok` supports it, `fail` refutes it, `skip` could not be made. `warn` names an exception or a
    limit that the reader has to know.
    """

    id: str
    text: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        """Return whether the statement holds; undetermined without any evidence."""
        states = {check.state for check in self.checks}
        if "fail" in states:
            return "does not hold"
        return "cannot be determined" if "skip" in states or "ok" not in states else "holds"

    def apply_mask(self, mask: Callable[[str], str]) -> SecurityStatement:
        return SecurityStatement(self.id, self.text, tuple(check.apply_mask(mask) for check in self.checks))

    def to_json(self) -> dict[str, Any]:
        """Return the statement as a JSON object, as `toolway doctor --security --json` prints it."""
        evidence = [check.to_json() for check in self.checks]
        return {"id": self.id, "statement": self.text, "verdict": self.verdict, "evidence": evidence}


def _settings(**keys: Any) -> str:
    """Return `toolway.gateway` keys as lines to copy."""
    return json.dumps({"toolway": {"gateway": keys}})[1:-1]


def _ok(name: str, message: str, detail: str = "") -> Check:
    return Check(name, "ok", message, detail)


def _warn(name: str, message: str, detail: str = "") -> Check:
    return Check(name, "warn", message, detail)


def _fail(name: str, message: str, detail: str = "") -> Check:
    return Check(name, "fail", message, detail)


def _skip(name: str, message: str, detail: str = "") -> Check:
    return Check(name, "skip", message, detail)


# -- identity ----------------------------------------------------------------------------------------------------------


def check_login(found: IdentityFacts) -> Iterator[Check]:
    if not found.issuer:
        message = "no identity provider: anyone with an API key or the local token has access"
        login = {"issuer": "https://login.example", "audience": "https://tools.example/mcp"}
        yield _fail("login", message, "toolway.gateway.login is not set").with_fix(
            "set your OpenID provider, and the URL of this gateway", _settings(login=login), "E-LOGIN-NONE"
        )
        return
    if found.running_issuer is not None and found.running_issuer != found.issuer:
        detail = f"the file has {found.issuer}, the gateway names {found.running_issuer or 'none'} to clients"
        yield _fail("login", "the running gateway does not use the identity provider of the file", detail).with_fix(
            "restart the gateway: it reads its login settings when it starts", "toolway serve", "E-LOGIN-NONE"
        )
        return
    yield _ok("login", f"tokens of {found.issuer} are accepted", "toolway.gateway.login")
    if not found.provider:
        yield _skip("provider", f"{found.issuer} was not asked for its keys")
    for check in found.provider:
        state: CheckState = "skip" if check.state == "fail" else check.state
        yield Check(check.name, state, check.message, check.detail, check.hint, check.copy, check.code)


def check_anonymous(found: IdentityFacts) -> Iterator[Check]:
    if found.accepted is None:
        yield _skip("anonymous", f"requests without a token were not tried: {found.tried}")
    elif found.accepted:
        detail = f"{found.tried}: {', '.join(found.accepted)}"
        yield _fail("anonymous", "a request without a valid token was accepted", detail).with_fix(
            "stop this gateway, and start it without --no-auth", "toolway serve", "E-LOGIN-OPEN"
        )
    else:
        yield _ok("anonymous", "requests without a token, or with a forged one, are rejected", found.tried)


def check_keys(found: IdentityFacts) -> Iterator[Check]:
    if found.keys is None:
        yield _skip("keys", "the API keys could not be read", found.keys_problem)
        return
    if not found.keys:
        yield _ok("keys", "no API keys exist")
    for key in found.keys:
        kind = "the administrator's key" if key.admin else "the key"
        if key.expires is None:
            message = f"{kind} {key.name!r} bypasses your identity provider and never expires"
            yield _fail("keys", message, f"key {key.id}").with_fix(
                "revoke it, or replace it with a key that expires",
                f"toolway keys revoke {shlex.quote(key.id)}",
            )
        else:
            end = datetime.fromtimestamp(key.expires, UTC).strftime("%Y-%m-%d")
            yield _warn("keys", f"{kind} {key.name!r} bypasses your identity provider until {end}")


def check_local_token(found: IdentityFacts) -> Iterator[Check]:
    if not found.host:
        yield _skip("token", "unknown from here: the address the gateway listens on")
    elif not found.is_loopback and found.token_from:
        message = "the token of this machine is an administrator's, and is accepted from other machines"
        networks = ", ".join(found.token_from)
        detail = f"the gateway listens on {found.host}, and toolway.gateway.localTokenFrom is {networks}"
        yield _fail("token", message, detail).with_fix(
            "remove localTokenFrom, and restart the gateway; other machines use a login or an API key that expires",
            _settings(localTokenFrom=[]),
        )
    elif found.token_forwarded:
        message = "the token of this machine is an administrator's, and the running gateway accepts it through a proxy"
        yield _fail("token", message, "a request with this token and the header Forwarded was accepted").with_fix(
            "stop this gateway, and start it again", "toolway serve"
        )
    elif found.token_file and found.token_mode & _OTHERS_MAY_READ:
        message = "other users of this machine can read its token, which is an administrator's"
        yield _fail("token", message, f"{found.token_file} has the mode {found.token_mode:o}").with_fix(
            "make it private", f"chmod 600 {shlex.quote(found.token_file)}"
        )
    else:
        tried = ", as was tried" if found.token_forwarded is False else ""
        detail = (
            f"{found.token_file or 'it does not exist yet'}; it is rejected from other machines, and with headers of a "
            f"proxy{tried}. A proxy on this machine that sends no such header can pass it on"
        )
        yield _warn("token", "the local token bypasses your identity provider, from this machine", detail)


def check_nodes(found: IdentityFacts) -> Iterator[Check]:
    if found.cluster:
        yield _warn("nodes", "nodes of the cluster get in with the cluster key, without your identity provider")


# -- approved by content -----------------------------------------------------------------------------------------------


def check_reload(approval: ApprovalFacts, _: Servers) -> Iterator[Check]:
    if approval.reload_all:
        message = 'entries that another program writes into the file are used without your review: "reload" is "all"'
        yield _fail("reload", message, "toolway.gateway.reload").with_fix(
            "use trusted entries only", _settings(reload="approved"), "E-CONFIG-REVIEW"
        )


def check_guards(approval: ApprovalFacts, servers: Servers) -> Iterator[Check]:
    for name, checks in registry.guard_checks().items():
        facts = [server.guarded[name].facts for server in servers if name in server.guarded]
        settings = approval.guard_settings.get(name)
        yield from checks.judge_rule(settings, facts, is_required=name in approval.required_guards)


def check_programs(_: ApprovalFacts, servers: Servers) -> Iterator[Check]:
    for server in servers:
        yield from _program(server)
    if not servers:
        yield _ok("servers", "no server is enabled")


def check_other_entries(approval: ApprovalFacts, _: Servers) -> Iterator[Check]:
    for name in approval.waiting:
        yield _ok(name, "not started: you have not trusted this entry yet")
    for file in approval.untrusted_files:
        yield _ok("project", f"{file} is not trusted, so it is not used")
    if approval.signer:
        state = "does not run: you have not trusted it yet" if approval.signer_held else "is trusted"
        yield _ok("signer", f"the command that signs the audit log {state}", approval.signer)
    if approval.allowed_commands:
        commands = ", ".join(approval.allowed_commands)
        yield _warn("admin", "administrators may start these programs through /admin", commands)


def _program(server: CheckedServer) -> Iterator[Check]:
    name = server.name
    if server.runs_program or server.runs_for_secrets:
        yield _approval(server)
    if not server.runs_program:
        yield _ok(name, "its server runs no program here; what runs at its URL cannot be locked", server.location)
        return
    if server.image:
        message = f"the image {server.image} is not pinned to a digest: the registry decides what runs"
        yield _fail(name, message, server.location).with_fix(
            "use the image with its digest", f"{server.image.partition('@')[0]}@sha256:…"
        )
    for part, found in server.guarded.items():
        yield from registry.guard_checks()[part].judge_program(name, server.source, found.facts)


def _approval(server: CheckedServer) -> Check:
    if server.approval == "entry":
        limit = "" if server.guarded else "; the content of the program is not compared"
        message = f"its command line is trusted, by the digest of its entry{limit}"
    elif server.approval == "project":
        message = "its project file is trusted, by the digest of the file"
    elif server.approval == "unrecorded":
        message = "its entry is not recorded as trusted yet: the first start of the gateway trusts all entries"
        return _fail(server.name, message, server.source).with_fix(
            "review the file, then record its entries", server.record_command, "E-CONFIG-REVIEW"
        )
    elif server.approval == "all":
        message = 'its entry is used because "reload" is "all"'
    else:
        return _skip(server.name, "unknown: whether this entry was reviewed", server.source)
    return _ok(server.name, message, server.source)


# -- isolation ---------------------------------------------------------------------------------------------------------


def check_sandboxes(servers: Servers) -> Iterator[Check]:
    for server in servers:
        if not server.runs_program:
            yield _ok(server.name, "runs no program on this machine", server.location)
            continue
        if server.env_policy == "inherit":
            message = "it inherits every environment variable, including other servers' secrets"
            yield _fail(server.name, message, server.source).with_fix(
                "pass only the variables it needs", '"envPolicy": "safe"'
            )
        yield _sandbox(server)
    if not servers:
        yield _ok("servers", "no server is enabled")


def check_plain_secrets(servers: Servers) -> Iterator[Check]:
    for server in servers:
        for key in server.plain_secrets:
            secret = f"{shlex.quote(server.name)}.{shlex.quote(key.rpartition('.')[2])}"
            yield _fail(server.name, f"{key} is a secret in plain text (***)", server.source).with_fix(
                "put it in the secret store, and refer to it in the file",
                f"toolway secrets set {secret}",
                "E-DOCTOR-PLAIN",
            )


def _sandbox(server: CheckedServer) -> Check:
    name, mode, probe = server.name, server.sandbox, server.probe
    if server.is_container:
        text = "the container runs outside this entry's sandbox: its mounts decide what it sees"
        return _skip(name, text, server.location).with_fix("review its options, such as -v, --mount and --privileged")
    if lacked := missing("sandbox"):
        return Check(name, "fail", lacked.message, server.source, *split_hint(lacked.hint), PLATFORM_CODE)
    if mode not in ("guard", "strict"):
        sees = "everything" if mode == "off" else "your keys, and without Landlock also the gateway's files"
        return _fail(name, f'it runs with "sandbox": "{mode}", and can read {sees}', server.source).with_fix(
            "let it run in a sandbox", '"sandbox": "guard"', "E-SANDBOX"
        )
    if probe is None:
        return _skip(name, f"not checked: whether its sandbox ({mode}) works here", server.source)
    if probe.problem:
        message = f"its sandbox ({mode}) does not work here, so it does not start: {probe.problem}"
        return _fail(name, message, server.source).with_fix(
            "see what it needs", f"toolway trust sandbox {shlex.quote(name)}", "E-SANDBOX"
        )
    if probe.readable:
        message = f"a program in its sandbox ({mode}) can read {', '.join(probe.readable)}"
        return _fail(name, message, f"tried here; made by {probe.made_by}").with_fix(
            "install bubblewrap, and grant only the folders the server needs",
            '"sandbox": "strict"' if mode == "guard" else '"sandbox": {"write": ["~/docs"]}',
            "E-SANDBOX",
        )
    if not probe.tried:
        return _skip(name, f"found nothing that a program in its sandbox ({mode}) could try to read")
    tried = f"tried: {', '.join(probe.tried)}; made by {probe.made_by}"
    return _ok(name, f"a program in its sandbox ({mode}) could not read any of the files we tried", tried)


# -- the list ----------------------------------------------------------------------------------------------------------


class Guarantee(NamedTuple):
    """A guarantee, the facts it needs, and its checks.

    Or the name of a part of the gateway that has the evidence.
    """

    id: str
    text: str
    needs: tuple[str, ...] = ()
    checks: tuple[Callable[..., Iterator[Check]], ...] = ()
    part: str = ""


GUARANTEES: Final = (
    Guarantee(
        "identity",
        "No one gets in without your identity provider",
        ("identity",),
        (check_login, check_anonymous, check_keys, check_local_token, check_nodes),
    ),
    Guarantee(
        "content",
        "Nothing runs that you do not trust",
        ("approval", "servers"),
        (check_reload, check_guards, check_programs, check_other_entries),
    ),
    Guarantee(
        "definitions",
        "No tool changed since it was pinned or accepted",
        ("servers",),
        part="pins",
    ),
    Guarantee(
        "isolation",
        "No server sees another's secrets, your keys or the gateway's files",
        ("servers",),
        (check_sandboxes, check_plain_secrets),
    ),
    Guarantee("signed", "What was done is signed", part="audit"),
)


def judge(facts: Facts) -> tuple[SecurityStatement, ...]:
    """Return all guarantees about a gateway, each with its evidence."""
    return tuple(SecurityStatement(each.id, each.text, tuple(_run_checks(each, facts))) for each in GUARANTEES)


def _run_checks(guarantee: Guarantee, facts: Facts) -> Iterator[Check]:
    parts = {name: getattr(facts, name) for name in guarantee.needs}
    missing = [name for name, part in parts.items() if part is None]
    yield from (_skip(name, facts.reasons.get(name, NOT_COLLECTED)) for name in missing)
    for check in guarantee.checks if not missing else ():
        yield from check(*parts.values())
    if guarantee.part:
        found = facts.evidence.get(guarantee.part)
        reason = facts.reasons.get(guarantee.part, NOT_COLLECTED)
        yield from found if found is not None else [_skip(guarantee.part, reason)]
    if guarantee.id in facts.limits:
        yield _skip("limit", facts.limits[guarantee.id])


def all_hold(statements: Iterable[SecurityStatement]) -> bool:
    return all(each.verdict == "holds" for each in statements)


# -- text --------------------------------------------------------------------------------------------------------------


def render_statements(facts: Facts, statements: Iterable[SecurityStatement], width: int = 80) -> Iterator[StyledLine]:
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
