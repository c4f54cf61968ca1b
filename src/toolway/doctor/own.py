"""Our own files: which there are, what is wrong with them, and their entries as targets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolway.addresses.policy import PUBLIC, Addresses
from toolway.config import scopes
from toolway.config.addresses import allowing
from toolway.config.find import VARIABLE
from toolway.config.formats import Loaded, content, normalised, parse, text_of
from toolway.doctor.audit_checks import audit_checks
from toolway.doctor.file_checks import File, Reader, look
from toolway.doctor.report import Check, Subject
from toolway.doctor.targets import Target
from toolway.errors import ConfigError

Named = Path | None


@dataclass(slots=True)
class Scene:
    """What there is to examine."""

    files: list[Subject] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    addresses: Addresses = PUBLIC  # what the files so far allow


def scene(environ: Mapping[str, str], directory: Path, named: Named = None) -> Scene:
    """The file that is named, be it by `$TOOLWAY_CONFIG`, or all of user and project. Raises `ConfigError` where there
    is none. What a project wants and nobody approved is looked at, and not started."""
    if named is None and environ.get(VARIABLE):
        named = Path(environ[VARIABLE]).expanduser()
    found = Scene()
    if named is not None:
        _take(found, named, environ, None)
        return found
    places = scopes.find(environ, directory)
    files = [(scope, path) for scope, path in places.all() if path.is_file()]
    if not files:
        scopes.loaded(environ, directory)  # says what was looked for
    waiting = {os.fspath(each.path): each for each in scopes.load(environ, directory).waiting}
    for scope, path in files:
        wait = waiting.get(os.fspath(path))
        if wait is not None:
            found.files.append(_waits(wait))
        else:
            _take(found, path, environ, places.root if scope != "user" else None)
    found.targets = _shadowed(found.targets)
    return found


def _waits(waiting: scopes.Waiting) -> Subject:
    why = "its content has changed since it was approved" if waiting.changed else "nobody has approved it yet"
    check = Check(
        "file",
        "fail",
        f"{waiting.path.name} is not used until you approve it",
        f"{why}; it is the project's, and can start programs",
        "look at it, and approve it",
        "toolway approve",
        scopes.APPROVAL,
    )
    return Subject("file", waiting.path.name, (check,), source=os.fspath(waiting.path))


def _take(scene: Scene, path: Path, environ: Mapping[str, str], folder: Path | None) -> None:
    file = look(path, Reader())
    loaded = _loaded(file, environ)
    if loaded is not None:
        file.checks.extend(audit_checks(loaded.gateway, environ))
    scene.files.append(Subject("file", path.name, tuple(file.checks), source=os.fspath(path)))
    if loaded is not None:
        scene.addresses = scene.addresses.joined(loaded.addresses)
        scene.targets += [_target(loaded, file, name, folder, scene.addresses) for name in file.entries or {}]


def _loaded(file: File, environ: Mapping[str, str]) -> Loaded | None:
    if file.entries is None:
        return None
    name = os.fspath(file.path)
    try:
        loaded = parse(text_of(content(name), name), name, environ)
        for problem in loaded.problems:
            if not problem.server:
                file.add("fail", problem.what, problem.evidence, problem.fix, code=problem.code)
        return loaded
    except ConfigError as exc:
        file.add("fail", exc.what, exc.evidence, exc.fix, code=exc.code)
        return None


def _target(loaded: Loaded, file: File, written: str, folder: Path | None, addresses: Addresses) -> Target:
    problems = tuple(problem for problem in loaded.problems if problem.server == written)
    usable = not any(problem.severity == "error" for problem in problems)
    name = written if written in loaded.servers else normalised(written)
    server = loaded.servers.get(name) if usable else None
    if server is not None and folder is not None:
        server = scopes.in_folder(allowing(server, addresses), folder)
    value = (file.entries or {}).get(written)
    return Target(
        name=name if usable else written,
        server=server,
        file=loaded.file,
        line=file.line(written),
        root=file.root,
        written_name=written,
        written=value if isinstance(value, dict) else {},
        problems=problems,
    )


def _shadowed(targets: list[Target]) -> list[Target]:
    """A later file goes before an earlier one."""
    last = {target.name: target for target in targets if target.server is not None}
    found = []
    for target in targets:
        winner = last.get(target.name)
        beaten = winner is not None and winner is not target and winner.file != target.file
        found.append(replace(target, shadow=f"{winner.file}:{winner.line}") if beaten and winner else target)
    return found
