"""Agent runs for the dashboard: their conversations, and what they have used."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from toolway.agents.agent import AGENT_WORKFLOW
from toolway.agents.settings import AgentSettings
from toolway.agents.transcript import read_messages
from toolway.types import Json
from toolway.workflows.engine import Workflows
from toolway.workflows.journal import Entry, RunRecord
from toolway.workflows.sqlite_journal import SqliteJournal

COMMAND_JOURNAL: Final = "runs.db"  # of `toolway agent`, in the state folder
_CALL_STEP: Final = re.compile(r"(tool/\d+\.\d+)(/approve)?")


class AgentRunReader:
    """Reads the agent runs among workflow runs, for a gateway's dashboard.

    `folder` is the state folder. It has the journal of the command `toolway agent`.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / COMMAND_JOURNAL

    @asynccontextmanager
    async def open_command_journal(self) -> AsyncIterator[Workflows | None]:
        """Open the journal of `toolway agent` for reading, while other processes may execute its runs.

        Yields None if the journal does not exist. Raises `JournalError` if it cannot be opened.
        """
        if not self._file.exists():
            yield None
            return
        journal = await asyncio.to_thread(SqliteJournal, self._file, owner=False)
        try:
            yield Workflows.for_reading(journal)
        finally:
            await journal.close()

    def is_agent(self, record: RunRecord) -> bool:
        """Return True if a workflow run was started as an agent run."""
        if record.workflow != AGENT_WORKFLOW:
            return False
        try:
            msgspec.convert(record.input["settings"], AgentSettings)
        except (TypeError, KeyError, msgspec.ValidationError):
            return False  # another workflow of this name
        return True

    def read_messages(self, record: RunRecord, entries: Sequence[Entry]) -> list[Json]:
        """Return the conversation of an agent run: prompt, answers of the model and results of its calls."""
        return read_messages(record, entries)

    def describe(self, record: RunRecord, entries: Sequence[Entry], now: float) -> Json:
        """Return the task of a run and what it has used so far: turns, calls, tokens, price, and each limit.

        `usd` is None if the price of an answer is not known. Prices are from the time of the answer.
        """
        settings = msgspec.convert(record.input["settings"], AgentSettings)
        answers = [each for each in read_messages(record, entries) if each["role"] == "assistant" and "model" in each]
        prices = [each["usd"] for each in answers]
        usage = {
            "turns": len(answers),
            "calls": len(_made_calls(entries)),
            "input_tokens": sum(each["input_tokens"] for each in answers),
            "output_tokens": sum(each["output_tokens"] for each in answers),
            "usd": None if None in prices else sum(prices),
        }
        ended = record.output if isinstance(record.output, dict) else record.error
        stored = (ended or {}).get("usage")
        if stored:  # with requests that were lost in a crash, and with child runs
            usage.update({key: stored[key] for key in ("input_tokens", "output_tokens", "usd")})
        used = {
            "usd": usage["usd"],
            "tokens": usage["input_tokens"] + usage["output_tokens"],
            "calls": usage["calls"],
            "requests": stored["requests"] if stored else _count_requests(entries),
            "seconds": (record.ended or now) - record.created,
        }
        limits = msgspec.structs.asdict(settings.budget)
        return {
            **usage,
            "model": settings.model,
            "prompt": str(record.input.get("prompt") or ""),
            "instructions": settings.instructions,
            "tools": list(settings.tools),
            "approve": settings.approve if isinstance(settings.approve, str) else ", ".join(settings.approve),
            "untrusted": _untrusted_servers(settings, entries),
            "budget": [{"unit": unit, "used": used[unit], "limit": limits[unit]} for unit in used],
        }

    def find_call(self, record: RunRecord, entries: Sequence[Entry], step: str) -> Json | None:
        """Return the tool call that a user is asked to approve at `step`: tool, arguments, effect.

        None if the question at `step` is not about a call.
        """
        match = _CALL_STEP.fullmatch(step)
        if match is None:
            return None
        turn, _, place = match[1].removeprefix("tool/").partition(".")
        answers = (
            each
            for each in read_messages(record, entries)
            if each["role"] == "assistant" and each["step"].partition("~")[0] == f"model/{turn}"
        )
        calls = [call for answer in answers for call in answer.get("tool_calls") or []]
        if int(place) > len(calls):
            return None
        call = calls[int(place) - 1]
        effects = _read_facts(entries).get("effects") or {}
        return {**call, "effect": str(effects.get(call["tool"], ""))}


def _untrusted_servers(settings: AgentSettings, entries: Sequence[Entry]) -> list[str]:
    """Return the servers whose results make unsafe calls need approval; none if that is off."""
    if settings.untrusted == "none":
        return []
    return list(_read_facts(entries).get("untrusted") or settings.untrusted)


def _read_facts(entries: Sequence[Entry]) -> Json:
    """Return the tools' effects and untrusted servers that the journal stored when the run started.

    {} if the run has not begun.
    """
    found: Any = next(((each.body or {}).get("data") for each in entries if each.path == "tools"), None)
    return found if isinstance(found, dict) else {}


def _made_calls(entries: Sequence[Entry]) -> set[str]:
    """Return the steps of a run that are tool calls, including calls that need approval or were denied."""
    matches = ((_CALL_STEP.fullmatch(each.path), each) for each in entries)
    return {match[1] for match, each in matches if match is not None and (each.tool or match[2])}


def _count_requests(entries: Sequence[Entry]) -> int:
    return sum(each.path.startswith("model/") and not each.path.endswith("/wait") for each in entries)
