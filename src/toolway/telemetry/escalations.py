"""Matters that a person must see to: one readable file each, and a word to a webhook.

    login-needed      a server wants a login that only a person can give
    given-up          a server failed too often, and is tried again rarely
    outcome-unknown   a call may have been executed, and nobody knows: check before it is repeated
    audit             the audit log cannot be written, so calls are refused

A file is moved to `settled/` when the matter has settled itself; else whoever has seen to it removes it. There are
never more than a few hundred: whoever reads none of them is not helped by more.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from toolway.events import AuditFailed, AuditResumed, CallFinished, CallRecovered, Connected, Event, StateChanged
from toolway.secrets.files import write_private

Kind = Literal["login-needed", "given-up", "outcome-unknown", "audit"]
MOST: Final = 500  # files
MOST_SETTLED: Final = 200
BACKLOG: Final = 1000  # matters that wait to be written
LONGEST: Final = 2000  # characters of one part
MORE: Final = "and-more.txt"
_log = logging.getLogger("toolway.escalations")


class Matter(msgspec.Struct, frozen=True):
    kind: Kind
    what: str
    evidence: str = ""
    fix: str = ""
    server: str = ""
    tool: str = ""
    call: str = ""
    caller: str = ""
    at: float = 0.0

    @property
    def name(self) -> str:
        """Of its file, without the time: one matter has one."""
        words = [self.kind, self.server, self.call]
        return "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", word)[:80] for word in words if word)

    def text(self) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.at))
        facts = [("when", stamp), ("server", self.server), ("tool", self.tool), ("call", self.call)]
        lines = [
            f"# {self.what}",
            "",
            *(f"- {name}: {value}" for name, value in [*facts, ("by", self.caller)] if value),
        ]
        if self.evidence:
            lines += ["", "## Evidence", "", self.evidence]
        lines += ["", "## What to do", "", self.fix, "", "Remove this file when it is done.", ""]
        return "\n".join(lines)


def matter_of(fact: Event, fix_of: Callable[[str], str]) -> Matter | None:
    """What a person must see to, if anything. `fix_of` says what can be done about a server now."""
    if isinstance(fact, CallFinished):
        return _of_call(fact)
    if isinstance(fact, CallRecovered):
        return _unknown(fact.server, fact.tool, fact.id, fact.caller, "the gateway ended in mid-call")
    if isinstance(fact, StateChanged):
        return _of_state(fact, fix_of(fact.server)) if fact.new in ("failed", "backing_off") else None
    if isinstance(fact, AuditFailed):
        fix = "make room on its disk, or bring its database back; calls are made again by themselves: toolway doctor"
        return Matter("audit", "the audit log cannot be written, so calls are refused", fact.why, fix)
    return None


def _of_call(fact: CallFinished) -> Matter | None:
    if fact.executed == "unknown" and fact.effect not in ("read", "idempotent"):
        return _unknown(fact.server, fact.tool or fact.name, fact.id, fact.caller, fact.what or fact.outcome)
    if fact.outcome == "E-AUTH-LOGIN":
        return _login(fact.server, fact.evidence or fact.what, fact.fix, fact.caller)
    return None


def _of_state(fact: StateChanged, fix: str) -> Matter | None:
    if "toolway login" in fix:
        return _login(fact.server, fact.why, fix)
    if fact.new != "failed":
        return None
    return Matter(
        "given-up",
        f"{fact.server} was given up",
        fact.why,
        f"{fix or 'see why'}: toolway status {fact.server}; then start it again: toolway restart {fact.server}",
        fact.server,
    )


def _login(server: str, why: str, fix: str, caller: str = "") -> Matter:
    return Matter(
        "login-needed", f"{server} wants a login", why, fix or f"toolway login {server}", server, caller=caller
    )


def _unknown(server: str, tool: str, call: str, caller: str, why: str) -> Matter:
    return Matter(
        "outcome-unknown",
        f"nobody knows whether {server}.{tool} was executed",
        why,
        f"check at the server whether it happened, before anybody repeats it: toolway audit ls --call {call}",
        server,
        tool,
        call,
        caller,
    )


class Escalations:
    """Listens to a hub (`events.Sink`). Writing is done by a task of its own, aside."""

    wants_steps = False

    def __init__(
        self,
        folder: Path,
        *,
        mask: Callable[[str], str],
        fix_of: Callable[[str], str],
        tell: Callable[[Matter], None] = lambda matter: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`mask` hides secrets in what servers wrote; `tell` passes a new matter on."""
        self._folder = folder
        self._mask = mask
        self._fix_of = fix_of
        self._tell = tell
        self._now = now
        self._todo: asyncio.Queue[Matter | str] = asyncio.Queue(BACKLOG)
        self._task: asyncio.Task[None] | None = None
        self._troubled: set[str] = set()  # servers with a matter that settles itself
        self.unheard = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Write what is left, for a moment."""
        if self._task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._todo.join()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def on_call(self, fact: CallFinished) -> None:
        self._look_at(fact)

    def on_event(self, fact: Event) -> None:
        if isinstance(fact, Connected) and fact.server in self._troubled:
            self._troubled.discard(fact.server)
            self._put(f"given-up-{fact.server}")
            self._put(f"login-needed-{fact.server}")
        elif isinstance(fact, AuditResumed):
            self._put("audit")
        else:
            self._look_at(fact)

    def _look_at(self, fact: Event) -> None:
        found = matter_of(fact, self._fix_of)
        if found is None:
            return
        shown = {name: self._mask(getattr(found, name))[:LONGEST] for name in ("what", "evidence", "fix")}
        if found.kind in ("given-up", "login-needed"):
            self._troubled.add(found.server)
        self._put(msgspec.structs.replace(found, at=self._now(), **shown))

    def _put(self, todo: Matter | str) -> None:
        try:
            self._todo.put_nowait(todo)
        except asyncio.QueueFull:
            self.unheard += 1

    async def _work(self) -> None:
        while True:
            todo = await self._todo.get()
            try:
                if isinstance(todo, str):
                    await asyncio.to_thread(self._settle, todo)
                elif await asyncio.to_thread(self._write, todo):
                    self._tell(todo)
            except OSError as exc:
                _log.error("a matter for a person could not be written down: %s: %s", self._mask(str(todo)), exc)
            finally:
                self._todo.task_done()

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _write(self, matter: Matter) -> bool:
        """Whether it is a new one."""
        files = self._files()
        if any(file.stem.endswith(f"Z-{matter.name}") for file in files):
            return False
        if len(files) >= MOST:
            self.unheard += 1
            text = f"{self.unheard} more matters since {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}.\n"
            write_private(self._folder / MORE, text.encode())
            return False
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(matter.at))
        write_private(self._folder / f"{stamp}-{matter.name}.md", matter.text().encode())
        return True

    def _settle(self, name: str) -> None:
        settled = self._folder / "settled"
        for file in self._files():
            if file.stem.endswith(f"Z-{name}"):
                settled.mkdir(mode=0o700, exist_ok=True)
                file.replace(settled / file.name)
        if settled.exists():
            for file in sorted(settled.glob("*.md"))[:-MOST_SETTLED]:
                file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*Z-*.md")) if self._folder.exists() else []
