"""`toolway doctor`: what is wrong with servers and files, why, and what to do about it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from toolway.catalog.resolve import check_server
from toolway.cli.exits import Exit
from toolway.cli.options import Session
from toolway.cli.output import Output
from toolway.doctor.clients import of_all_clients, of_client
from toolway.doctor.examine import examine
from toolway.doctor.own import Scene, scene
from toolway.doctor.report import Report, Subject
from toolway.doctor.show import lines
from toolway.errors import ConfigError, ToolwayError

WIDTH = 80  # where nobody looks at a terminal


async def doctor(
    session: Session, name: str | None, *, everything: bool, client: str | None, project: bool, fix: bool
) -> Exit:
    """Examine one server, our own files, one client's files, or all there is."""
    output, environ, directory = session.output, os.environ, Path.cwd()

    def look() -> Scene:
        if client is not None:
            found = of_client(client, environ, directory, project=project)
        elif everything:
            found = _everything(environ, directory, session.where.config, project)
        else:
            found = _own_or_others(output, environ, directory, session.where.config, project)
        return chosen(found, name)

    report = await _examined(output, look(), environ)
    done = _repaired(output, report) if fix else []
    if done:
        report = await _examined(output, look(), environ)
    if output.as_json:
        output.facts({**report.facts(), "fixed": done})
    else:
        _print(output, report, name, done)
    return exit_of(report)


def _own_or_others(
    output: Output, environ: Mapping[str, str], directory: Path, config: Path | None, project: bool
) -> Scene:
    """Our own files, or those of other clients for somebody who has none yet. Raises `ConfigError`."""
    try:
        return scene(environ, directory, config)
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE":
            raise
        others = of_all_clients(environ, directory, project=project)
        if not others.targets:
            raise
        output.say("there is no file of our own yet, so those of other clients are examined", "dim")
        return others


def _everything(environ: Mapping[str, str], directory: Path, config: Path | None, project: bool) -> Scene:
    """Our own files, if there are any, and those of all clients."""
    found = Scene()
    try:
        found = scene(environ, directory, config)
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE":
            raise
    others = of_all_clients(environ, directory, project=project)
    return Scene([*found.files, *others.files], [*found.targets, *others.targets])


def chosen(scene: Scene, name: str | None) -> Scene:
    """Only the server that is wanted, and what is wrong with the files. Raises `NotFound`."""
    if name is None:
        return scene
    targets = [target for target in scene.targets if name in (target.name, target.written_name)]
    broken = [file for file in scene.files if file.state == "fail"]
    if not targets and not broken:
        check_server({target.name: None for target in scene.targets}, name)
    files = [file for file in scene.files if file.source in {target.file for target in targets}]
    return replace(scene, files=files or broken, targets=targets)


async def _examined(output: Output, scene: Scene, environ: Mapping[str, str]) -> Report:
    waiting = {target.name for target in scene.targets}
    total = len(waiting)
    with output.spinner("examining") as update:

        def done(name: str) -> None:
            waiting.discard(name)
            names = ", ".join(sorted(waiting)[:5])
            update(f"examined {total - len(waiting)} of {total}; waiting for {names}" if waiting else "examined all")

        return await examine(scene.targets, environ, files=scene.files, done=done)


def _repaired(output: Output, report: Report) -> list[str]:
    done = []
    for repair in report.repairs:
        try:
            done.append(repair.apply())
        except ToolwayError as exc:
            output.error(exc)
    return done


def _print(output: Output, report: Report, name: str | None, done: list[str]) -> None:
    width = min(100, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH
    for text in done:
        output.say(f"fixed: {text}", "green")
    home = os.environ.get("HOME", "")
    for line in lines(
        report.at_home(home), width, verbose=output.verbose, again=f"toolway doctor {name or ''}".strip()
    ):
        output.line(line.text, line.style)


def exit_of(report: Report) -> Exit:
    """0 where nothing failed, 3 where files or entries are wrong, 6 for credentials, 4 where no server can be had, 8
    where some can."""
    servers = [subject for subject in report.subjects if subject.kind == "server"]
    failed = [check for subject in report.subjects for check in subject.of("fail")]
    if not failed:
        return Exit.OK
    if all(check.name in ("file", "config") for check in failed) and not any(map(_is_well, servers)):
        return Exit.CONFIG
    if any(map(_is_well, servers)):
        return Exit.PARTIAL
    return Exit.AUTH if all(check.name in ("auth", "env") for check in failed) else Exit.UNREACHABLE


def _is_well(subject: Subject) -> bool:
    return subject.state in ("ok", "warn")
