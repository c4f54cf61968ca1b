"""A part's start guard, which may refuse to start a server process, or replace its command line.

A hub without a gateway uses start guards, too. What a guard reads about an entry (its *facts*) is stored in
`Server.guard_facts`, so a server restarts when its facts change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from toolway.config.schema import Server
    from toolway.doctor.report import Check


class GuardedProgram(NamedTuple):
    """A start guard's verdict on a server, for `toolway doctor --security`."""

    program: str  # whose content the guard knows; "" if the guard isn't concerned
    facts: Any  # for `judge_program` and `judge_rule`
    argv: list[str]  # command line to start


class StartGuard:
    """A part's start guard. Its module is imported when a server with a command is read, so keep it cheap."""

    def concerns(self, words: Sequence[str]) -> bool:
        """Return True if the guard must check this command line. Must not wait for anything."""
        return False

    def read_facts(self, config_file: str, servers: Mapping[str, Server]) -> Mapping[str, Any]:
        """Return what the guard's file next to a config file says about the entries it checks, by server."""
        return {}

    def facts_for_added(self, configured: Sequence[Any]) -> Any:
        """Return the facts for a server added by `/admin`, based on configured servers' facts, or None."""
        return None

    def find_evasion(self, server: Server) -> str:
        """Return why an untrusted author's entry would evade the guard, or "" if it would not."""
        return ""

    def find_command(
        self, server: Server, words: Sequence[str], environ: Mapping[str, str], *, is_required: bool
    ) -> list[str] | None:
        """Return the command line to start instead of `words`, or None to start them as they are. Called in a thread.

        With `is_required`, the server may only start if the guard knows it. Raises `ToolwayError` if it must not
        start.
        """
        return None


class GuardChecks:
    """What commands and `toolway doctor` report about a start guard. Its module is imported when they need it."""

    title: ClassVar[str] = ""  # of what a gateway can require: "lock of packages"

    def describe(self, facts: Any) -> str:
        """Return what a server with these facts runs instead of its command line, or "" if it runs that."""
        return ""

    def advise(self, facts: Any, name: str) -> str:
        """Return how to guard a server that runs exactly what its entry says, or "" if there is nothing to do."""
        return ""

    def advise_added(self, words: Sequence[str], name: str) -> str:
        """Return what to do next with a server that `toolway add` has added, or "" if there is nothing to do."""
        return ""

    def find_fix(self, code: str, name: str) -> tuple[str, str] | None:
        """Return the hint and command that fix a start that failed with this code, or None for other guards' codes."""
        return None

    def examine(self, server: Server, words: Sequence[str], environ: Mapping[str, str]) -> GuardedProgram:
        """Return what `toolway doctor --security` finds out about a server. Called in a thread."""
        return GuardedProgram("", None, list(words))

    def judge_program(self, name: str, source: str, facts: Any) -> Iterator[Check]:
        """Yield what the facts from `examine` mean for a server. `source` is where its entry is."""
        yield from ()

    def judge_rule(self, settings: Any, facts: Sequence[Any], *, is_required: bool) -> Iterator[Check]:
        """Yield what the part's settings mean for all servers that it has examined."""
        yield from ()
