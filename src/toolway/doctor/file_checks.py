"""Checks of whole config files: encoding, syntax, servers key, pending alerts.

Each client reads its file in its own way and silently ignores unexpected content.
"""

from __future__ import annotations

import codecs
import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from toolway.config import scopes
from toolway.config.editing import jsonc
from toolway.config.entry_transport import URL_KEYS
from toolway.config.exposure import find_rules
from toolway.config.loader import (
    LoadedConfig,
    add_dotenv,
    decode_config,
    find_missing_env_files,
    name_entries,
    normalize_name,
    parse_config,
    read_config_bytes,
    reject_outside_project,
)
from toolway.config.locations import CONFIG_FILE_VARIABLE, gateway_state_folder
from toolway.config.settings import AlertSettings, GatewaySettings, with_network_policy
from toolway.doctor.entry_checks import CheckTarget
from toolway.doctor.report import Check, CheckState, FileFix, SubjectReport
from toolway.errors import ConfigError
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy
from toolway.part_api import registry

#: All keys that hold the servers in some client's file.
SERVER_KEYS: Final = ("mcpServers", "servers", "mcp_servers", "context_servers", "amp.mcpServers")
_UTF16_BOMS: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
#: A key or a value; it may be unterminated or in the wrong quotes.
_STRING_PATTERN: Final = re.compile(r"""(?:"(?:[^"\\]|\\.)*+"?|'[^']*+'?)(\s*:)?""")
_LONG_WORD: Final = re.compile(r"[^\s\"{}\[\],:]{16,}")
_ENTRY_KEYS: Final = frozenset({"command", *URL_KEYS})


# -- one file, as a client reads it ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReaderRules:
    """How a program (Toolway or another client) reads its JSON config file.

    They say which keys may hold the servers, and if comments and a byte order mark are allowed.
    """

    title: str = "Toolway"
    server_keys: tuple[str, ...] = ("mcpServers", "servers", "mcp_servers")  # any of these
    allows_comments: bool = True  # comments and trailing commas are allowed
    allows_bom: bool = True  # a byte order mark is allowed
    allows_top_level: bool = True  # the servers may be at the top level


@dataclass(slots=True)
class CheckedFile:
    """A checked JSON config file: its check results and, if it is readable, its server entries."""

    path: Path
    checks: list[Check] = field(default_factory=list)
    root: tuple[str, ...] = ()
    entries: Mapping[str, Any] | None = None  # None: not readable
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    def line_of(self, name: str) -> int | None:
        return self.lines.get((*self.root, name))

    def add_check(
        self, state: CheckState, message: str, detail: str = "", hint: str = "", copy: str = "", **more: Any
    ) -> None:
        self.checks.append(Check("file", state, message, detail, hint, copy, **more))


def check_file(path: Path, rules: ReaderRules) -> CheckedFile:
    """Read a config file by its program's `rules`, and report what that would reject or ignore."""
    file = CheckedFile(path)
    try:
        data = path.read_bytes()
    except OSError as exc:
        file.add_check(
            "fail", f"{path.name} cannot be read", exc.strerror or str(exc), "fix the path", code="E-CONFIG-FILE"
        )
        return file
    text = _decode(file, data, rules)
    if text is None:
        return file
    try:
        document = jsonc.parse_jsonc(text, str(path))
    except ConfigError as exc:
        shown = _masked_line(text, exc.line)
        file.add_check("fail", f"{path.name} is not valid JSON: {exc.detail}", shown, exc.hint, code=exc.code)
        return file
    file.lines = document.lines
    if not rules.allows_comments:
        _check_plain_json(file, text, rules)
    _find_servers(file, document.value, rules)
    return file


def _decode(file: CheckedFile, data: bytes, rules: ReaderRules) -> str | None:
    """Decode the bytes of a config file. If it is not UTF-8, return None and add a failed check."""
    name = file.path.name
    for bom, encoding in _UTF16_BOMS.items():
        if data.startswith(bom):
            auto_fix = FileFix(f"save {name} as UTF-8", file.path, partial(_to_utf8, encoding=encoding))
            message = f"{name} is encoded as UTF-16 instead of UTF-8"
            copy = f"iconv -f UTF-16 -t UTF-8 {file.path} > new.json"
            file.add_check("fail", message, hint="save it as UTF-8", copy=copy, code="E-CONFIG-FILE", auto_fix=auto_fix)
            return None
    if data.startswith(codecs.BOM_UTF8):
        auto_fix = FileFix(f"remove the byte order mark of {name}", file.path, _remove_bom)
        state: CheckState = "warn" if rules.allows_bom else "fail"
        program = "other programs" if rules.allows_bom else rules.title
        message = f"{name} begins with a byte order mark, which {program} cannot read"
        copy = f"sed -i '1s/^\\xEF\\xBB\\xBF//' {file.path}"
        file.add_check(
            state, message, "EF BB BF", "save it as UTF-8 without BOM", copy, code="E-CONFIG-FILE", auto_fix=auto_fix
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        message = f"{name} is not UTF-8: byte {exc.start} is invalid"
        file.add_check("fail", message, hint="save it as UTF-8", code="E-CONFIG-FILE")
        return None


def _to_utf8(data: bytes, encoding: str) -> bytes:
    return data.decode(encoding).removeprefix("\ufeff").encode()


def _remove_bom(data: bytes) -> bytes:
    return data.removeprefix(codecs.BOM_UTF8)


def _check_plain_json(file: CheckedFile, text: str, rules: ReaderRules) -> None:
    """Add a failed check for a comment or a trailing comma that makes the file invalid as plain JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError as exc:
        shown = _masked_line(text, exc.lineno)
        comment = "//" in shown or "/*" in shown
        word = "a comment" if comment else "a trailing comma"
        message = f"{file.path.name} has {word} in line {exc.lineno}, and {rules.title} reads plain JSON only"
        file.add_check("fail", message, shown, f"remove {'it' if comment else 'the comma'}", code="E-CONFIG-SYNTAX")


def _masked_line(text: str, line: int | None) -> str:
    """Return one line of a config file with its number, and values replaced with `…`.

    Any value of an unparsable file may be a secret.
    """
    lines = text.splitlines()
    if not line or line > len(lines):
        return ""
    shown = _STRING_PATTERN.sub(lambda found: found[0] if found[1] else '"…"', lines[line - 1].strip())
    return f"{line}: {_LONG_WORD.sub('…', shown)[:120]}"


def _find_servers(file: CheckedFile, value: Any, rules: ReaderRules) -> None:
    """Find the server entries in a parsed config file, and check their key.

    A failed check is added if `rules` does not accept the key.
    """
    if rules.allows_top_level:
        keys = [key for key in rules.server_keys if isinstance(value, dict) and isinstance(value.get(key), list)]
        listed = value[keys[0]] if keys else value
        if listed and isinstance(listed, list) and all(isinstance(each, dict) for each in listed):
            file.root, file.entries = tuple(keys[:1]), name_entries(listed)
            _add_ok(file)
            return
    if not isinstance(value, dict):
        file.add_check(
            "fail",
            f"{file.path.name} is not a JSON object",
            hint=f'use {{"{rules.server_keys[0]}": {{…}}}}',
            code="E-CONFIG-SHAPE",
        )
        return
    for key in rules.server_keys:
        if isinstance(value.get(key), dict):
            file.root, file.entries = (key,), value[key]
            _add_ok(file)
            return
    found = _find_unread_key(value, rules)
    if found is not None:
        wanted = rules.server_keys[0]
        auto_fix = FileFix(f"call the key {wanted}", file.path, partial(_rename_key, old=found, new=wanted))
        message = f'the servers are under "{found}", but {rules.title} reads "{wanted}"'
        file.add_check(
            "fail",
            message,
            f"line {file.lines.get((found,))}",
            "rename the key",
            f'"{wanted}": {{…}}',
            code="E-CONFIG-SHAPE",
            auto_fix=auto_fix,
        )
        return
    bare = {key: each for key, each in value.items() if _is_entry(each)}
    if bare and rules.allows_top_level:
        file.root, file.entries = (), bare
        _add_ok(file)
    elif bare:
        wanted = rules.server_keys[0]
        message = f'the servers are at the top level, but {rules.title} reads "{wanted}"'
        file.add_check("fail", message, hint=f'move them into {{"{wanted}": {{…}}}}', code="E-CONFIG-SHAPE")
    else:
        file.add_check("ok", f"{file.path.name} has no servers")
        file.root, file.entries = (rules.server_keys[0],), {}


def _add_ok(file: CheckedFile) -> None:
    if not file.checks:
        count = len(file.entries or {})
        file.add_check("ok", f"{count} server{'' if count == 1 else 's'}")


def _find_unread_key(value: Mapping[str, Any], rules: ReaderRules) -> str | None:
    """Return the key of a config file that holds server entries but that its program does not read, or None.

    Such a key belongs to another client, or is misspelt.
    """
    maps = [key for key, each in value.items() if isinstance(each, dict) and any(map(_is_entry, each.values()))]
    named = [
        key for key in maps if key in SERVER_KEYS or difflib.get_close_matches(key.lower(), ("mcpservers",), 1, 0.7)
    ]
    # A general settings file has other keys that resemble servers; our own file has not.
    return next(iter([*named, *maps] if rules.allows_top_level else named), None)


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and bool(_ENTRY_KEYS & value.keys())


def _rename_key(data: bytes, old: str, new: str) -> bytes:
    """Rename a top-level key in the bytes of a JSON file; every other byte stays as it is."""
    text = data.decode()
    line = jsonc.parse_jsonc(text).lines[(old,)]
    begin = sum(len(each) for each in text.splitlines(keepends=True)[: line - 1])
    pattern = re.escape(json.dumps(old, ensure_ascii=False))
    return (text[:begin] + re.sub(rf"{pattern}(\s*:)", rf"{json.dumps(new)}\1", text[begin:], count=1)).encode()


# -- our own files; their entries become check targets -----------------------------------------------------------------


OptionalPath = Path | None


@dataclass(slots=True)
class CheckPlan:
    """Results of the config file checks, and the entries whose servers are still to be checked."""

    files: list[SubjectReport] = field(default_factory=list)
    targets: list[CheckTarget] = field(default_factory=list)
    network_policy: NetworkPolicy = PUBLIC_ONLY  # network policy of the files read so far


def plan_own_files(
    environ: Mapping[str, str],
    directory: Path,
    config_path: OptionalPath = None,
    gate: scopes.ApprovalGate | None = None,
) -> CheckPlan:
    """Check Toolway's own config files; return the results and the server entries to check next.

    The files are `config_path` or `$TOOLWAY_CONFIG`, or else all user and project files. An untrusted project file
    gets a failed check, and its servers are not started. Neither is the server of an entry that, by `gate`, still
    needs review. Raises `ConfigError` if no file exists.
    """
    if config_path is None and environ.get(CONFIG_FILE_VARIABLE):
        config_path = Path(environ[CONFIG_FILE_VARIABLE]).expanduser()
    plan = CheckPlan()
    if config_path is not None:
        loaded = _add_file(
            plan, config_path, environ, None, gate=gate if gate is not None and gate.covers_named else None
        )
        return _apply_start_rules(plan, loaded.gateway if loaded is not None else None)
    scope_paths = scopes.find_config_paths(environ, directory)
    files = [(scope, path) for scope, path in scope_paths.iter_by_scope() if path.is_file()]
    if not files:
        scopes.load_config(environ, directory)  # raises an error that lists the searched files
    merged = scopes.load_scopes(environ, directory, gate)
    untrusted_files = {os.fspath(each.path): each for each in merged.untrusted}
    for scope, path in files:
        untrusted = untrusted_files.get(os.fspath(path))
        if untrusted is not None:
            plan.files.append(_report_untrusted(untrusted))
        else:
            folder = scope_paths.root if scope != "user" else None
            is_project = scope == "project"
            _add_file(plan, path, environ, folder, is_project=is_project, gate=None if is_project else gate)
    plan.targets = _mark_overridden(plan.targets)
    return _apply_start_rules(plan, merged.gateway)


def _apply_start_rules(plan: CheckPlan, gateway: GatewaySettings | None) -> CheckPlan:
    """Apply the gateway's requirements for server processes to the plan: start guards and a sandbox."""
    if gateway is not None:
        found = find_rules(gateway)
        rules: dict[str, Any] = {"required_guards": found.required_guards, "default_sandbox": found.default_sandbox}
        plan.targets = [replace(target, **rules) for target in plan.targets]
    return plan


def _report_untrusted(untrusted: scopes.UntrustedFile) -> SubjectReport:
    why = "its content has changed since it was trusted" if untrusted.changed else "it is not trusted yet"
    check = Check(
        "file",
        "fail",
        f"{untrusted.path.name} is not used until you trust it",
        f"{why}; it belongs to the project and can start programs",
        "review it, then trust it",
        "toolway trust",
        scopes.UNTRUSTED_CODE,
    )
    return SubjectReport("file", untrusted.path.name, (check,), source=os.fspath(untrusted.path))


def _add_file(
    plan: CheckPlan,
    path: Path,
    environ: Mapping[str, str],
    folder: Path | None,
    *,
    is_project: bool = False,
    gate: scopes.ApprovalGate | None = None,
) -> LoadedConfig | None:
    file = check_file(path, ReaderRules())
    loaded = _load(file, environ, folder if is_project else None, gate)
    if loaded is not None:
        file.checks.extend(check_gateway(loaded.gateway, environ))
    plan.files.append(SubjectReport("file", path.name, tuple(file.checks), source=os.fspath(path)))
    if loaded is not None:
        plan.network_policy = plan.network_policy.union(loaded.network_policy)
        plan.targets += [_build_target(loaded, file, name, folder, plan.network_policy) for name in file.entries or {}]
    return loaded


def _load(
    file: CheckedFile, environ: Mapping[str, str], project: Path | None, gate: scopes.ApprovalGate | None
) -> LoadedConfig | None:
    """Load a config file as a hub or gateway does; None if it cannot be loaded.

    `project` is the folder of the project that the file belongs to, if any.
    """
    if file.entries is None:
        return None
    name = os.fspath(file.path)
    try:
        if project is not None:
            reject_outside_project(file.path, project)
        text = decode_config(read_config_bytes(name), name)
        variables, dotenv_issues = add_dotenv(name, environ, is_project=project is not None)
        loaded = parse_config(text, name, variables)
        if project is not None:
            loaded = scopes.without_foreign_env_files(loaded, os.path.dirname(name))
        if gate is not None:
            loaded = scopes.without_held(loaded, jsonc.parse_jsonc(text, name), gate)
        loaded = replace(loaded, issues=(*loaded.issues, *dotenv_issues, *find_missing_env_files(loaded)))
        for problem in loaded.issues:
            if not problem.server and problem.severity != "note":
                state: CheckState = "fail" if problem.severity == "error" else "warn"
                file.add_check(state, problem.message, problem.detail, problem.hint, code=problem.code)
        return loaded
    except ConfigError as exc:
        file.add_check("fail", exc.message, exc.detail, exc.hint, code=exc.code)
        return None


def _build_target(
    loaded: LoadedConfig, file: CheckedFile, raw_name: str, folder: Path | None, network_policy: NetworkPolicy
) -> CheckTarget:
    problems = tuple(problem for problem in loaded.issues if problem.server == raw_name)
    usable = not any(problem.severity == "error" for problem in problems)
    name = raw_name if raw_name in loaded.servers else normalize_name(raw_name)
    server = loaded.servers.get(name) if usable else None
    if server is not None and folder is not None:
        server = scopes.with_project_cwd(with_network_policy(server, network_policy), folder)
    value = (file.entries or {}).get(raw_name)
    return CheckTarget(
        name=name if usable else raw_name,
        server=server,
        file=loaded.file,
        line=file.line_of(raw_name),
        root=file.root,
        raw_name=raw_name,
        raw_entry=value if isinstance(value, dict) else {},
        problems=problems,
    )


def _mark_overridden(targets: list[CheckTarget]) -> list[CheckTarget]:
    """Mark each entry that an entry with the same name in a later config file overrides."""
    last = {target.name: target for target in targets if target.server is not None}
    found = []
    for target in targets:
        winner = last.get(target.name)
        is_overridden = winner is not None and winner is not target and winner.file != target.file
        found.append(
            replace(target, overridden_by=f"{winner.file}:{winner.line}") if is_overridden and winner else target
        )
    return found


# -- pending alerts, and parts -----------------------------------------------------------------------------------------


def check_gateway(gateway: GatewaySettings, environ: Mapping[str, str]) -> Iterator[Check]:
    """Check what a gateway with these settings uses: pending alerts, and what its parts need."""
    folder = gateway_state_folder(environ)
    if gateway.alerts is not None and folder is not None:
        yield from _check_alerts(gateway.alerts, folder)
    for part in registry.in_use():
        yield from part.check_file(gateway)


def _check_alerts(settings: AlertSettings, folder: Path) -> Iterator[Check]:
    alert_folder = Path(settings.folder) if settings.folder else folder / "alerts"
    pending = sorted(alert_folder.glob("*Z-*.md")) if alert_folder.exists() else []
    if pending:
        message = f"{len(pending)} alerts are pending" if len(pending) > 1 else "an alert is pending"
        detail = "\n".join(file.name for file in pending[-5:])
        yield Check("alerts", "warn", message, detail, "fix it, then delete the alert file", f"ls {alert_folder}")
