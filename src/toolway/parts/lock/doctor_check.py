"""What `toolway doctor` says about packages: which servers run from a lock, and whether the gateway requires one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolway.config.admission.command_line import program_name, runner_package
from toolway.errors import ToolwayError
from toolway.part_api import Check
from toolway.part_api.start_guard import GuardChecks, GuardedProgram
from toolway.parts.lock.guard import lock_of
from toolway.parts.lock.lock_file import LOCK_CODE
from toolway.parts.lock.runner_command import NotLockable, is_runner, parse_command
from toolway.parts.lock.start import locked_command, tree_platform

if TYPE_CHECKING:
    from toolway.config.schema import Server
    from toolway.parts.lock.lock_file import PackageLock
    from toolway.parts.lock.settings import LockSettings


class PackageFacts(msgspec.Struct, frozen=True):
    """What is known about the package that a server runs."""

    package: str
    is_exempt: bool = False  # "lock": false in its entry
    file: str = ""
    locked: str = ""  # what the lock has, if the installed tree was compared with it
    problem: str = ""  # why it would not start from a lock


class PackageChecks(GuardChecks):
    """What commands say about packages and their lock."""

    title = "lock of packages"

    def describe(self, facts: PackageLock) -> str:
        return f"the locked tree of {' '.join(facts.entry.packages)}" if facts.entry is not None else ""

    def advise(self, facts: PackageLock, name: str) -> str:
        return "" if facts.exists else f"lock its packages with toolway trust lock {name}"

    def advise_added(self, words: Sequence[str], name: str) -> str:
        if not is_runner(words):
            return ""
        return f"lock its packages so it always runs the same versions: toolway trust lock {name}"

    def find_fix(self, code: str, name: str) -> tuple[str, str] | None:
        return ("lock its packages", f"toolway trust lock {shlex.quote(name)}") if code == LOCK_CODE else None

    def examine(self, server: Server, words: Sequence[str], environ: Mapping[str, str]) -> GuardedProgram:
        argv, program = list(words), program_name(words[0])
        if program == "dnx":
            package = runner_package(words)
            return GuardedProgram(package, PackageFacts(package, problem="dnx cannot be locked"), argv)
        if not is_runner(words):
            return GuardedProgram("", None, argv)
        lock = lock_of(server)
        file = lock.file if lock is not None else ""
        locked = problem = ""
        package = program
        try:
            command = parse_command(words)
            package = " ".join(command.packages) if command is not None else program
            if lock is None or not lock.exists:  # else `locked_command` would say that the gateway requires one
                problem = f"{file or 'a lock file'} does not exist"
            else:
                found = locked_command(words, lock, environ, required=True, exempt=False)
                platform = tree_platform(lock.entry) if lock.entry is not None else None
                if found is not None and lock.entry is not None and platform is not None:
                    argv, digest = found, lock.entry.trees[platform][:16]
                    locked = f"{len(lock.entry.iter_packages(platform))} packages, tree {digest}"
        except NotLockable as exc:
            problem = str(exc)
        except ToolwayError as exc:
            problem = f"{exc.message}: {exc.detail}"
        return GuardedProgram(package, PackageFacts(package, not server.lock, file, locked, problem), argv)

    def judge_program(self, name: str, source: str, facts: PackageFacts) -> Iterator[Check]:
        fix = f"toolway trust lock {shlex.quote(name)}"
        if facts.is_exempt:
            message = f'{facts.package} runs without its lock: "lock" is false in its entry'
            yield Check(name, "fail", message, source).with_fix('remove "lock": false, then lock it', fix, LOCK_CODE)
        elif facts.locked:
            message = f"{facts.package} is locked, and all files of its tree were compared"
            yield Check(name, "ok", message, f"{facts.file}: {facts.locked}")
        else:
            detail = facts.problem or f"it is not in {facts.file}"
            message = f"{facts.package} does not run from a lock"
            yield Check(name, "fail", message, detail).with_fix("lock it", fix, LOCK_CODE)

    def judge_rule(
        self, settings: LockSettings | None, facts: Sequence[PackageFacts], *, is_required: bool
    ) -> Iterator[Check]:
        if is_required or all(each.is_exempt for each in facts):
            return
        chosen = settings.lock if settings is not None else ""
        reason = f"it is {chosen!r}" if chosen else "it is not set, and the gateway isn't public"
        message = "a lock is not required: without toolway.lock, packages run in the version that the registry returns"
        lines = '"toolway": {"gateway": {"lock": "required"}}'
        yield Check("lock", "fail", message, f"toolway.gateway.lock: {reason}").with_fix("require it", lines, LOCK_CODE)
