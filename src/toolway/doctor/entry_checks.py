"""Checks of a config entry before its server starts: validity, environment values, command."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from toolway.config.schema import ConfigIssue, DefaultSandbox, Server
from toolway.doctor.command_lookup import MIN_NODE_VERSION, CommandMatch, desktop_path, is_old_node, unpinned_package
from toolway.doctor.report import Check, EntryFix, MakeExecutable, split_hint
from toolway.part_api import registry
from toolway.secrets import looks_like_secret
from toolway.upstream.diagnosis import diagnose

UNSET_VARIABLE_CODE: Final = "E-CONFIG-VARIABLE"
_JWT_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{8,}\.([A-Za-z0-9_-]{8,})\.[A-Za-z0-9_-]*")
_PLACEHOLDER: Final = re.compile(
    r"(?:(?:Bearer|Basic|token)\s+)?(?:<[^<>]+>|\[[A-Z _-]+\]|(?i:(?:your|insert|replace|enter)[-_ ].{0,60}"
    r"|.{0,40}[-_](?:here|goes[-_]here)|changeme|x{3,}|\.\.\.|\u2026))"
)
_REFERENCE_PATTERN: Final = re.compile(r"\$\{[^}]+\}|\{env:[^}]+\}|\$[A-Za-z_]\w*|%[A-Za-z_]\w*%")
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """One server entry of a config file to be checked: parsed server, raw entry and location."""

    name: str
    server: Server | None  # None: unusable, see `problems`
    file: str = ""
    line: int | None = None
    root: tuple[str, ...] = ("mcpServers",)  # path of the servers' object in the file
    raw_name: str = ""  # as the file spells it
    raw_entry: Mapping[str, Any] = field(default_factory=dict, repr=False)  # raw entry: may hold secrets
    client: str = ""  # the client that the file belongs to: `cursor`; empty for our own
    title: str = ""  # Cursor
    is_desktop_client: bool = False  # the client is not started from a terminal
    problems: tuple[ConfigIssue, ...] = ()
    untrusted: bool = False  # it is from an untrusted project file: nothing of it is started
    overridden_by: str = ""  # location of the entry that overrides this one
    required_guards: frozenset[str] = frozenset()  # the gateway starts only what the start guards of these parts know
    default_sandbox: DefaultSandbox = "auto"  # of the gateway, if the entry names none

    @property
    def endpoint(self) -> str:
        """Return the command line or URL of the server as written in the config file.

        A secret in it is a reference; otherwise the code that displays this text masks it.
        """
        if self.server is None:
            return ""
        if self.server.command is not None:
            return shlex.join([self.server.command, *self.server.args])
        return self.server.location or "in this process"


# -- validity ----------------------------------------------------------------------------------------------------------


def check_entry(target: CheckTarget, duplicate: str = "", same_elsewhere: Sequence[str] = ()) -> Iterator[Check]:
    """Check a config entry without starting its server: invalid keys, duplicates, another entry that overrides it.

    `duplicate` is another entry of the same file for the same server. `same_elsewhere` are such entries in other
    files.
    """
    problems = [problem for problem in target.problems if problem.code != UNSET_VARIABLE_CODE]
    for problem in problems:
        yield (
            _check_transport_type(target, problem) if problem.code == "E-CONFIG-TYPE" else _check_from_problem(problem)
        )
    if duplicate:
        yield Check(
            "config",
            "warn",
            f"duplicate entry: {duplicate} is the same server",
            hint="remove one of the two: the server would start twice, and every tool would appear twice"
            f" ({duplicate})",
            code="E-DOCTOR-DUPLICATE",
        )
    if target.overridden_by:
        yield Check(
            "config",
            "warn",
            f"overridden by another entry named {target.name}",
            target.overridden_by,
            "remove or rename one of the two",
            code="E-CONFIG-SCOPE",
        )
    if not problems and not duplicate and not target.overridden_by:
        yield Check(
            "config", "ok", f"valid; the same server as {', '.join(same_elsewhere)}" if same_elsewhere else "valid"
        )


def _check_from_problem(problem: ConfigIssue) -> Check:
    state: Mapping[str, Any] = {"error": "fail", "warning": "warn", "note": "ok"}
    hint, copy = split_hint(problem.hint)
    return Check("config", state[problem.severity], problem.message, problem.detail, hint, copy, problem.code)


def _check_transport_type(target: CheckTarget, problem: ConfigIssue) -> Check:
    """Return the check for an entry with an unknown transport type, with an automatic fix.

    The entry's other keys show which type was meant: `command` means stdio.
    """
    check = _check_from_problem(problem)
    if check.copy:
        return check
    transport_type = "stdio" if "command" in target.raw_entry else "http"
    key = "type" if "type" in target.raw_entry else "transport"
    description = f'set "{key}": "{transport_type}" in the entry of {target.raw_name}'
    fix = EntryFix(description, Path(target.file), (*target.root, target.raw_name), (((key,), transport_type),))
    auto_fix = None if target.file.endswith((".yaml", ".yml")) else fix
    return replace(check, hint="set", copy=format_entry_keys({key: transport_type}), auto_fix=auto_fix)


# -- environment values ------------------------------------------------------------------------------------------------


def check_env(target: CheckTarget, now: float) -> Iterator[Check]:
    """Check the env and header values of a config entry: unset, placeholder, expired, secret in plain text."""
    found = [
        *_check_unset(target),
        *_check_placeholders(target),
        *_check_expired_tokens(target, now),
        *_check_plaintext_secrets(target),
    ]
    yield from found
    if not found and target.server is not None and (target.server.env or target.server.headers):
        count = len(target.server.env) + len(target.server.headers)
        yield Check("env", "ok", f"{count} value{'s' if count > 1 else ''}, all set")


def _check_unset(target: CheckTarget) -> Iterator[Check]:
    for problem in target.problems:
        if problem.code == UNSET_VARIABLE_CODE and problem.severity != "note":  # else `envFile` may set it
            match = re.fullmatch(r"the variable (\w+) is not set", problem.message)
            hint, copy = ("set it", f"export {match[1]}=…") if match else (problem.hint, "")
            yield Check("env", "fail", problem.message, problem.detail, hint, copy, UNSET_VARIABLE_CODE)
    for name, value in target.server.env.items() if target.server is not None else ():
        if not value and has_reference(str(_raw_group(target, "env").get(name, ""))):
            yield Check(
                "env",
                "warn",
                f"env.{name} is empty",
                hint="set the variable it refers to",
                code=UNSET_VARIABLE_CODE,
            )


def _check_placeholders(target: CheckTarget) -> Iterator[Check]:
    """Yield a check for each env or header value that cannot be right.

    Such a value is a placeholder of an example, or has quotes or spaces around it.
    """
    server = target.server
    groups = (("env", server.env), ("headers", server.headers)) if server is not None else ()
    for group, name, value in ((group, name, values[name]) for group, values in groups for name in values):
        if _PLACEHOLDER.fullmatch(value):
            message, hint = f"{group}.{name} still has the placeholder of an example", "use your own value"
            yield Check("env", "fail", message, hint=hint, code="E-CONFIG-KEY")
        elif len(value) > 2 and value[0] == value[-1] and value[0] in "\"'":
            message = f"{group}.{name} has quotes around its value, and they are part of it"
            yield Check("env", "warn", message, hint="remove the inner quotes", code="E-CONFIG-KEY")
        elif value != value.strip():
            message = f"{group}.{name} has a space or line break at its start or end"
            yield Check("env", "warn", message, hint="remove it: most services reject it", code="E-CONFIG-KEY")


def _check_expired_tokens(target: CheckTarget, now: float) -> Iterator[Check]:
    for token in expired_tokens(target.server, now) if target.server is not None else ():
        raw_value = _raw_value(target, token.location)
        source = (
            f"it is read from {extract_references(raw_value)}"
            if has_reference(raw_value)
            else f"it is written in {target.file}"
        )
        yield Check(
            "env",
            "fail",
            f"the token in {token.location} expired {format_age(token.expired_for_s)} ago",
            source,
            *store_token_hint(target, token.location),
            code="E-DOCTOR-EXPIRED",
        )


def _check_plaintext_secrets(target: CheckTarget) -> Iterator[Check]:
    """Yield a warning for every env or header value of an entry that is a secret in plain text."""
    for key in plain_secrets(target):
        yield Check(
            "env",
            "warn",
            f"{key} is a secret in plain text",
            f"every program that reads {target.file} can read it",
            "put it in the secret store, and refer to it in the file",
            f"toolway secrets set {target.name}.{key.partition('.')[2]}",
            "E-DOCTOR-PLAIN",
        )


def plain_secrets(target: CheckTarget) -> Iterator[str]:
    """Yield the keys of env and header values of an entry that are secrets in plain text, such as `env.TOKEN`."""
    for group in ("env", "headers"):
        for name, value in _raw_group(target, group).items():
            if isinstance(value, str) and looks_like_secret(str(name), value) and not has_reference(value):
                yield f"{group}.{name}"


def store_token_hint(target: CheckTarget, location: str) -> tuple[str, str]:
    """Return the hint to replace the token in an env or header value, and the command that stores the new one."""
    begin = "get a new token from the service"
    references = _REFERENCE_PATTERN.findall(_raw_value(target, location))
    for each in references:
        kind, _, name = each.strip("${}").partition(":")
        if kind == "keyring":
            return f"{begin}, and store it", f"toolway secrets set {name}"
        if kind == "file":
            return f"{begin}, and put it in {name}", ""
        if kind == "command":
            return f"{begin}: log in again where the command gets it ({name})", ""
    names = [found[0] for each in references if (found := _VARIABLE_NAME.search(each.removeprefix("{env:")))]
    if names:
        return f"{begin}, and set it where you start Toolway, or in the .env file", f"export {names[0]}=NEW_TOKEN"
    key = f"{target.name}.{location.partition('.')[2]}"
    return f"{begin}, store it, and refer to it in the file: ${{keyring:{key}}}", f"toolway secrets set {key}"


def _raw_value(target: CheckTarget, location: str) -> str:
    group, _, name = location.partition(".")
    return str(_raw_group(target, group).get(name, ""))


def _raw_group(target: CheckTarget, group: str) -> Mapping[str, Any]:
    found = target.raw_entry.get(group)
    return found if isinstance(found, Mapping) else {}


class ExpiredToken(NamedTuple):
    """A JSON Web Token in an env or header value of a config entry that has expired."""

    location: str  # headers.Authorization
    expired_for_s: float  # since expiry


def expired_tokens(server: Server, now: float) -> Iterator[ExpiredToken]:
    """Yield the expired JSON Web Tokens in the env and header values of a server's entry."""
    for group, values in (("headers", server.headers), ("env", server.env)):
        for name, value in values.items():
            end = token_expiry(value)
            if end is not None and end <= now:
                yield ExpiredToken(f"{group}.{name}", now - end)


def token_expiry(text: str) -> float | None:
    """Return the expiry time (`exp`, in Unix seconds) of the JSON Web Token in a string.

    None if the text contains no token, or if the token has no `exp` claim.
    """
    found = _JWT_PATTERN.search(text)
    if found is None:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    return float(end) if isinstance(end, int | float) and not isinstance(end, bool) else None


def has_reference(text: str) -> bool:
    """Return True if a config value contains a reference such as `${NAME}`, `$NAME` or `%NAME%`."""
    return bool(_REFERENCE_PATTERN.search(text))


def strip_references(text: str) -> str:
    """Return a config value without its references such as `${NAME}`."""
    return _REFERENCE_PATTERN.sub("", text).strip()


def extract_references(text: str) -> str:
    """Return only the references in a config value, such as `${NAME}`, separated by spaces."""
    return " ".join(_REFERENCE_PATTERN.findall(text))


def format_age(seconds: float) -> str:
    """Format a duration in its largest unit, like `3 hours`."""
    for size, word in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {word}{'s' if count > 1 else ''}"
    return f"{seconds:.0f} s"


# -- command -----------------------------------------------------------------------------------------------------------


def check_command(target: CheckTarget, server: Server, found: CommandMatch, runtime: str = "") -> Check:
    """Check that a server's command exists, is executable, and has a recent runtime.

    `found` is the result of the lookup. `runtime` is the program that runs the command, with its version.
    """
    name, checks = server.command or "", registry.guard_checks()
    for part, facts in server.guard_facts.items():
        if program := checks[part].describe(facts):
            return Check("command", "ok", f"runs {program}")
    if found.path is None:
        return _command_not_found(target, name, server, found)
    message = found.path if os.path.dirname(name) else f"{name} → {found.path}"
    if is_old_node(runtime):
        hint = f"install Node.js 22 or newer; most servers need {MIN_NODE_VERSION} at least"
        return Check(
            "command", "warn", f"{runtime} is too old for most servers", message, hint, code="E-DOCTOR-RUNTIME"
        )
    message += f" ({runtime})" if runtime else ""
    if package := unpinned_package(server):
        message += f"; {package} is not pinned to a version"
    for part, facts in server.guard_facts.items() if not target.client else ():
        if advice := checks[part].advise(facts, target.name):
            message += f"; {advice}"
    if target.is_desktop_client and found.path_on_desktop is None:
        changes = full_path_changes(target, server, found.path)
        return Check(
            "command",
            "warn",
            f"{target.title} will not find {name}: it is not on the PATH of desktop applications",
            f"{message}\n{found.searched_folders}",
            "use the full path",
            format_entry_keys(changes),
            "E-DOCTOR-DESKTOP-PATH",
            _full_path_fix(target, changes),
        )
    return Check("command", "ok", message)


def _command_not_found(target: CheckTarget, name: str, server: Server, found: CommandMatch) -> Check:
    full = os.path.abspath(os.path.join(server.cwd or "", name))
    if os.path.dirname(name) and os.path.isdir(full):
        message, hint = f"{name} is a folder", "use the path of the program in it, or the program that runs it"
        return Check("command", "fail", message, full, hint, code="E-STDIO-EACCES")
    if os.path.dirname(name) and os.path.isfile(full):
        return Check(
            "command",
            "fail",
            f"{name} is not executable",
            hint="make it executable",
            copy=f"chmod +x {full}",
            code="E-STDIO-EACCES",
            auto_fix=MakeExecutable(Path(full)),
        )
    if name.lower() in ("cmd", "cmd.exe") and len(server.args) > 1 and server.args[0].lower() == "/c":
        changes = {"command": server.args[1], "args": list(server.args[2:])}
        message = f"cmd /c starts {server.args[1]} only on Windows, and this is another system"
        return Check("command", "fail", message, "", "write", format_entry_keys(changes), "E-STDIO-ENOENT")
    if found.other_path:
        changes = full_path_changes(target, server, found.other_path)
        return Check(
            "command",
            "fail",
            f"{name} is not on PATH; {found.manager} has it",
            f"{found.other_path}\n{found.searched_folders}",
            "use the full path",
            format_entry_keys(changes),
            "E-STDIO-ENOENT",
            _full_path_fix(target, changes),
        )
    beside = os.path.join(os.path.dirname(target.file), name)
    if os.path.dirname(name) and not os.path.isabs(name) and target.file and os.path.isfile(beside):
        message = f"{name} is relative to {server.cwd or 'the folder where the program runs'}, and not found there"
        copy = format_entry_keys({"command": os.path.normpath(beside)})
        return Check("command", "fail", message, f"{full} does not exist", "use the full path", copy, "E-STDIO-ENOENT")
    cause = diagnose(name, None, "", "E-STDIO-ENOENT")
    assert cause is not None
    detail = f"{full} does not exist" if os.path.dirname(name) else found.searched_folders
    return Check("command", "fail", cause.cause, detail, *split_hint(cause.hint), "E-STDIO-ENOENT")


def full_path_changes(target: CheckTarget, server: Server, path: str) -> dict[str, Any]:
    """Return entry changes that replace the server's command by its full path.

    Programs that the command starts itself (npx starts node) are in the same folder, so the folder is added to
    PATH.
    """
    changes: dict[str, Any] = {"command": path}
    if "PATH" not in server.env:
        # Other clients spell variables differently, and some expand none.
        rest = "${PATH}" if not target.client else desktop_path()
        changes["env"] = {"PATH": f"{os.path.dirname(path)}:{rest}"}
    return changes


def _full_path_fix(target: CheckTarget, changes: Mapping[str, Any]) -> EntryFix | None:
    if not target.file.endswith((".json", ".jsonc")) or "command" not in target.raw_entry:
        return None
    flat: list[tuple[tuple[str, ...], str]] = [(("command",), changes["command"])]
    flat += [(("env", name), value) for name, value in changes.get("env", {}).items()]
    description = f"set {changes['command']} as the command of {target.raw_name}"
    return EntryFix(description, Path(target.file), (*target.root, target.raw_name), tuple(flat))


def format_entry_keys(changes: Mapping[str, Any]) -> str:
    """Format keys of a config entry as JSON members, ready to be copied into a config file."""
    return ", ".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in changes.items())
