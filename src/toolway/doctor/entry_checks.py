"""What an entry shows before its server is started: is it valid, are its values there, can its command be found."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from toolway.config.problems import Problem
from toolway.config.spec import Server
from toolway.doctor.commands import Found, desktop_path
from toolway.doctor.repairs import EntryRepair, Executable
from toolway.doctor.report import Check, split_fix
from toolway.doctor.runtimes import OLDEST_NODE, is_old, unpinned
from toolway.doctor.targets import Target
from toolway.doctor.values import ago, ended_tokens, is_reference, references
from toolway.secrets import is_secret_like
from toolway.upstream.causes import likely_cause

UNSET: Final = "E-CONFIG-VARIABLE"


def config(target: Target, twin: str = "", others: Sequence[str] = ()) -> Iterator[Check]:
    """What is wrong with the entry itself. `twin` is another entry of its file for the same server, `others` are those
    of other files."""
    said = [problem for problem in target.problems if problem.code != UNSET]
    for problem in said:
        yield _of_type(target, problem) if problem.code == "E-CONFIG-TYPE" else _of_problem(problem)
    if twin:
        yield Check(
            "config",
            "warn",
            f"the same server stands here twice, also as {twin}",
            fix=f"remove one of the two: it would be started twice, and every tool would be there twice ({twin})",
            code="E-DOCTOR-DUPLICATE",
        )
    if target.shadow:
        yield Check(
            "config",
            "warn",
            f"this entry is not used: another {target.name} goes before it",
            target.shadow,
            "remove one of the two, or give it another name",
            code="E-CONFIG-SCOPE",
        )
    if not said and not twin and not target.shadow:
        yield Check("config", "ok", f"valid; the same server as {', '.join(others)}" if others else "valid")


def _of_problem(problem: Problem) -> Check:
    state: Mapping[str, Any] = {"error": "fail", "warning": "warn", "note": "ok"}
    fix, copy = split_fix(problem.fix)
    return Check("config", state[problem.severity], problem.what, problem.evidence, fix, copy, problem.code)


def _of_type(target: Target, problem: Problem) -> Check:
    """A word for the transport that is not known: the rest of the entry tells what was meant."""
    check = _of_problem(problem)
    if check.copy or "not supported yet" in problem.what:
        return check
    wanted = "stdio" if "command" in target.written else "http"
    key = "type" if "type" in target.written else "transport"
    what = f'write "{key}": "{wanted}" in the entry of {target.written_name}'
    repair = EntryRepair(what, Path(target.file), (*target.root, target.written_name), (((key,), wanted),))
    return replace(check, fix="write", copy=entry_text({key: wanted}), repair=repair)


def env(target: Target, now: float) -> Iterator[Check]:
    """Values that are missing, that have ended, or that everybody can read."""
    found = [*_unset(target), *_ended(target, now), *_plain(target)]
    yield from found
    if not found and target.server is not None and (target.server.env or target.server.headers):
        count = len(target.server.env) + len(target.server.headers)
        yield Check("env", "ok", f"{count} value{'s' if count > 1 else ''}, all set")


def _unset(target: Target) -> Iterator[Check]:
    for problem in target.problems:
        if problem.code == UNSET:
            named = re.fullmatch(r"the variable (\w+) is not set", problem.what)
            fix, copy = ("set it", f"export {named[1]}=…") if named else (problem.fix, "")
            yield Check("env", "fail", problem.what, problem.evidence, fix, copy, UNSET)
    for name, value in target.server.env.items() if target.server is not None else ():
        if not value and is_reference(str(_written(target, "env").get(name, ""))):
            yield Check("env", "warn", f"env.{name} is empty", fix="give the variable it names a value", code=UNSET)


def _ended(target: Target, now: float) -> Iterator[Check]:
    for token in ended_tokens(target.server, now) if target.server is not None else ():
        written = str(_written(target, *token.place.split(".")[:1]).get(token.place.partition(".")[2], ""))
        where = f"it comes from {references(written)}" if is_reference(written) else f"it stands in {target.file}"
        yield Check(
            "env",
            "fail",
            f"the token in {token.place} expired {ago(token.seconds)} ago",
            where,
            "get a new token from the service, and put it there",
            code="E-DOCTOR-EXPIRED",
        )


def _plain(target: Target) -> Iterator[Check]:
    """Secrets that stand in a file."""
    for group in ("env", "headers"):
        for name, value in _written(target, group).items():
            if isinstance(value, str) and is_secret_like(str(name), value) and not is_reference(value):
                yield Check(
                    "env",
                    "warn",
                    f"{group}.{name} is a secret in plain text",
                    f"everything that reads {target.file} reads it",
                    "keep it in the store, and name it in the file",
                    f"toolway secrets set {target.name}.{name}",
                    "E-DOCTOR-PLAIN",
                )


def _written(target: Target, group: str) -> Mapping[str, Any]:
    found = target.written.get(group)
    return found if isinstance(found, Mapping) else {}


def command(target: Target, server: Server, found: Found, runtime: str = "") -> Check:
    """Whether the program is where it will be looked for. `runtime` is what runs it, with its version."""
    name = server.command or ""
    if found.path is None:
        return _not_found(target, name, server, found)
    what = found.path if os.path.dirname(name) else f"{name} → {found.path}"
    if is_old(runtime):
        fix = f"install Node.js 22 or newer; most servers need {OLDEST_NODE} at least"
        return Check("command", "warn", f"{runtime} is too old for most servers", what, fix, code="E-DOCTOR-RUNTIME")
    what += f" ({runtime})" if runtime else ""
    if package := unpinned(server):
        what += f"; {package} is not pinned to a version"
    if target.desktop and found.desktop is None:
        changes = full_path(target, server, found.path)
        return Check(
            "command",
            "warn",
            f"{target.title} will not find {name}: it is not on the PATH of desktop applications",
            f"{what}\n{found.looked_in}",
            "write the full path",
            entry_text(changes),
            "E-DOCTOR-DESKTOP-PATH",
            _full_path(target, changes),
        )
    return Check("command", "ok", what)


def _not_found(target: Target, name: str, server: Server, found: Found) -> Check:
    full = os.path.join(server.cwd or "", name)
    if os.path.dirname(name) and os.path.isfile(full):
        return Check(
            "command",
            "fail",
            f"{name} may not be run: it is a file without the right to be executed",
            fix="give it that right",
            copy=f"chmod +x {full}",
            code="E-STDIO-EACCES",
            repair=Executable(Path(full)),
        )
    if name.lower() in ("cmd", "cmd.exe") and len(server.args) > 1 and server.args[0].lower() == "/c":
        changes = {"command": server.args[1], "args": list(server.args[2:])}
        what = f"cmd /c is how Windows starts {server.args[1]}, and this is another system"
        return Check("command", "fail", what, "", "write", entry_text(changes), "E-STDIO-ENOENT")
    if found.elsewhere:
        changes = full_path(target, server, found.elsewhere)
        return Check(
            "command",
            "fail",
            f"{name} is not on PATH; {found.keeper} has it",
            f"{found.elsewhere}\n{found.looked_in}",
            "write the full path",
            entry_text(changes),
            "E-STDIO-ENOENT",
            _full_path(target, changes),
        )
    cause = likely_cause(name, None, "", "E-STDIO-ENOENT")
    assert cause is not None
    evidence = f"{full} is not there" if os.path.dirname(name) else found.looked_in
    return Check("command", "fail", cause.cause, evidence, *split_fix(cause.fix), "E-STDIO-ENOENT")


def full_path(target: Target, server: Server, path: str) -> dict[str, Any]:
    """The keys of an entry that finds its program everywhere. What the program itself starts (npx starts node) stands
    in the same folder, so that goes on PATH."""
    changes: dict[str, Any] = {"command": path}
    if "PATH" not in server.env:
        # How other clients write a variable differs, and some fill in none.
        rest = "${PATH}" if not target.client else desktop_path()
        changes["env"] = {"PATH": f"{os.path.dirname(path)}:{rest}"}
    return changes


def _full_path(target: Target, changes: Mapping[str, Any]) -> EntryRepair | None:
    if not target.file.endswith((".json", ".jsonc")) or "command" not in target.written:
        return None
    flat: list[tuple[tuple[str, ...], str]] = [(("command",), changes["command"])]
    flat += [(("env", name), value) for name, value in changes.get("env", {}).items()]
    what = f"write {changes['command']} as the command of {target.written_name}"
    return EntryRepair(what, Path(target.file), (*target.root, target.written_name), tuple(flat))


def entry_text(changes: Mapping[str, Any]) -> str:
    """Keys of an entry, as they are written in a file."""
    return ", ".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in changes.items())
