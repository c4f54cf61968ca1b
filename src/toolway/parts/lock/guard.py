"""The start guard for packages: an `npx` or `uvx` entry with a lock runs its installed tree, or does not start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolway.part_api.start_guard import StartGuard
from toolway.parts.lock import PackageLocks
from toolway.parts.lock.lock_file import PackageLock, find_locks
from toolway.parts.lock.runner_command import is_runner

if TYPE_CHECKING:
    from toolway.config.schema import Server


def lock_of(server: Server) -> PackageLock | None:
    """Return what the lock file says about an entry.

    Return None if the entry does not run a package, or has no config file or no lock.
    """
    found: PackageLock | None = server.guard_facts.get(PackageLocks.name)
    return found


class PackageGuard(StartGuard):
    """Start guard that compares installed packages with `toolway.lock`."""

    def concerns(self, words: Sequence[str]) -> bool:
        return is_runner(words)

    def read_facts(self, config_file: str, servers: Mapping[str, Server]) -> Mapping[str, PackageLock]:
        runners = [
            name
            for name, server in servers.items()
            if server.command is not None and server.lock and is_runner([server.command, *server.args])
        ]
        return find_locks(config_file, runners) if runners else {}

    def facts_for_added(self, configured: Sequence[PackageLock]) -> PackageLock | None:
        lock = next((each for each in configured if each.exists), None)
        return msgspec.structs.replace(lock, entry=None) if lock is not None else None

    def find_evasion(self, server: Server) -> str:
        return "" if server.lock else "lock false would let the server run packages that are not in toolway.lock"

    def find_command(
        self, server: Server, words: Sequence[str], environ: Mapping[str, str], *, is_required: bool
    ) -> list[str] | None:
        from toolway.parts.lock.start import locked_command

        return locked_command(words, lock_of(server), environ, required=is_required, exempt=not server.lock)
