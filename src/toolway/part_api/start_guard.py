"""Start guard of a part: it is asked before a server process starts, and may refuse it or replace its command line.

A hub without a gateway asks start guards, too. What a guard reads about an entry, its *facts*, is stored in
`Server.guard_facts`, so a server restarts when it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from toolway.config.schema import Server
    from toolway.doctor.report import Check


class GuardedProgram(NamedTuple):
    """Result of a start guard that `toolway doctor --security` asked about a server."""

    program: str  # whose content the guard knows; "" if the guard isn't concerned
    facts: Any  # for `judge_program` and `judge_rule`
    argv: list[str]  # command line to start


class StartGuard:
    """Start guard of a part. Its module is imported when a server with a command is read: keep it cheap."""

    def concerns(self, words: Sequence[str]) -> bool:
        """Return True if it must be asked about this command line. It must not wait for anything."""
        return False

    def read_facts(self, config_file: str, servers: Mapping[str, Server]) -> Mapping[str, Any]:
        """Return what its file next to a config file says about the entries that concern it, by server."""
        return {}

    def facts_for_added(self, configured: Sequence[Any]) -> Any:
        """Return the facts of a server without any that `/admin` adds, from those of configured servers. None: none."""
        return None

    def find_evasion(self, server: Server) -> str:
        """Return why the entry of an untrusted author would evade the guard; "" if it would not."""
        return ""

    def find_command(
        self, server: Server, words: Sequence[str], environ: Mapping[str, str], *, is_required: bool
    ) -> list[str] | None:
        """Return the command line to start instead of `words`; None to start them as they are. Called in a thread.

        With `is_required`, only what it knows may start. Raises `ToolwayError` if the server must not start.
        """
        return None


class GuardChecks:
    """What commands and `toolway doctor` say about a start guard. Its module is imported when they ask."""

    title: ClassVar[str] = ""  # of what a gateway can require: "lock of packages"

    def describe(self, facts: Any) -> str:
        """Return what a server with these facts runs instead of its command line; "" if it runs that."""
        return ""

    def advise(self, facts: Any, name: str) -> str:
        """Return how a server that runs as its entry says would be guarded; "" if there is nothing to do."""
        return ""

    def advise_added(self, words: Sequence[str], name: str) -> str:
        """Return what to do next with a server that `toolway add` has added; "" for nothing."""
        return ""

    def find_fix(self, code: str, name: str) -> tuple[str, str] | None:
        """Return the hint and the command that fix a start that failed with this code; None if it isn't its own."""
        return None

    def examine(self, server: Server, words: Sequence[str], environ: Mapping[str, str]) -> GuardedProgram:
        """Return what `toolway doctor --security` learns about a server. Called in a thread."""
        return GuardedProgram("", None, list(words))

    def judge_program(self, name: str, source: str, facts: Any) -> Iterator[Check]:
        """Yield what the facts of `examine` mean for a server; `source` is the place of its entry."""
        yield from ()

    def judge_rule(self, settings: Any, facts: Sequence[Any], *, is_required: bool) -> Iterator[Check]:
        """Yield what the part's settings mean for all servers that it has examined."""
        yield from ()
