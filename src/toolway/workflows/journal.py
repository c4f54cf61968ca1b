"""Journal of workflow runs: the values in it, and the interface that every store of runs implements.

The journal alone decides how a run continues. An unsafe call is sent only after its intent (an entry in the state
`begun`) is on disk. After a crash, `planner.py` reads the journal and decides which call may be made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import msgspec

from toolway.errors import ToolwayError
from toolway.types import Json

MAX_BODY_BYTES: Final = 8 * 1024 * 1024  # of one entry
MAX_ENTRIES: Final = 100_000  # of one run
OWN_VARIABLES: Final = "toolway/"  # prefix of variables that expressions do not see
BUDGET_VARIABLE: Final = f"{OWN_VARIABLES}budget"  # limits that the parent of a run has set for its agent steps
READ_VARIABLE: Final = f"{OWN_VARIABLES}read"  # patterns of the tools whose results may be in the input of a run
TRACE_VARIABLE: Final = f"{OWN_VARIABLES}traceparent"  # trace context of the call or the run that started a run
CONFIG_VARIABLE: Final = f"{OWN_VARIABLES}config"  # config file of the command that started a run, or its folder
DOUBT_VARIABLE: Final = f"{OWN_VARIABLES}doubt"  # the journal may have lost intents of the run: ask before each step

#: `damaged`: a stored value of the run cannot be read, so it makes no more calls.
RunState: TypeAlias = Literal[
    "ready", "running", "waiting", "asks", "undoing", "done", "failed", "undone", "cancelled", "stuck", "damaged"
]
RUN_STATES: Final[frozenset[str]] = frozenset(get_args(RunState))
FINAL_STATES: Final[frozenset[str]] = frozenset(("done", "failed", "undone", "cancelled", "stuck", "damaged"))
RESUMABLE_STATES: Final[frozenset[str]] = frozenset(("stuck", "damaged"))  # a user can correct the cause

#: `begun`: the call may have been sent. `not_executed`: proved. `unknown`: it may have run.
EntryState: TypeAlias = Literal["begun", "done", "failed", "not_executed", "unknown", "waiting"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Journal entry for one attempt of a step: what was started, and what is known of its outcome."""

    path: str  # "pay", "letters[3]/letter", "pay/verify1", "undo/pay"
    attempt: int = 1
    state: EntryState
    kind: Literal["call", "wait", "ask", "value", "child"] = "call"
    tool: str = ""
    effect: str = ""
    args: Any = None
    body: Any = None  # the data of a result, or the error; of a question its title, form and end
    via: Literal["", "verify", "settle"] = ""  # how an unknown outcome became known
    life: int = 0  # the process that wrote it; a begun call of an earlier life has no known outcome
    began: float = 0.0
    ended: float | None = None
    settles: float | None = None  # a begun call has ended here after this time
    local: bool = False  # its server ends with the process that wrote this


class RunMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Message to a run: an answer, a resolved outcome, resume, cancel, or the end of a child run."""

    id: int = 0
    kind: Literal["answer", "settle", "resume", "cancel", "child"]
    path: str = ""
    body: Json
    by: str = ""
    at: float = 0.0


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a workflow as it is stored, without its journal entries."""

    id: str
    workflow: str
    definition: str  # hash
    key: str | None = None
    caller: str = ""
    state: RunState = "ready"
    asks: list[Json] = []  # open questions
    due: float | None = None
    input: Any = None
    variables: Any = None
    output: Any = None
    error: Json | None = None
    created: float = 0.0
    ended: float | None = None
    life: int = 0

    @property
    def names(self) -> Json:
        """Return the variables that expressions of the run may use, without those that the engine itself stored."""
        return {key: value for key, value in (self.variables or {}).items() if not key.startswith(OWN_VARIABLES)}


class RunChange(msgspec.Struct, frozen=True, kw_only=True):
    """Changed columns of a stored run: state, due time, questions, output, error."""

    state: RunState
    due: float | None = None
    asks: list[Json] = []
    output: Any = None
    error: Json | None = None
    ended: float | None = None
    keep: bool = False  # the process continues with the run soon: no other process may take it


#: States in which a process executes the run.
ACTIVE_STATES: Final[frozenset[str]] = frozenset(("running", "undoing"))


class RunsInUse(ToolwayError):
    """Raised when another process already executes the runs of a journal."""

    code = "E-RUNS-IN-USE"


class RunLost(ToolwayError):
    """Raised when another process may be executing a run. Nothing was written to it."""

    code = "E-WORKFLOW-LOST"


class JournalError(ToolwayError):
    """Raised when the journal cannot be opened, read or written."""

    code = "E-WORKFLOW-JOURNAL"


class RunDamaged(JournalError):
    """Raised when one run's stored value cannot be read. All other runs continue."""

    code = "E-WORKFLOW-DAMAGED"

    def __init__(self, run: str, detail: str) -> None:
        super().__init__(
            "a stored value of the run cannot be read",
            detail=f"{run}: {detail}"[:500],
            hint=f"restore the row from a backup of the journal, then: toolway workflow resume {run}",
        )

    def to_json(self) -> Json:
        """Return the error as a damaged run stores it."""
        error = {"code": self.code, "message": self.message, "detail": self.detail, "hint": self.hint}
        return {**error, "executed": "unknown"}


def damaged_record(id: Any, workflow: Any, created: Any, detail: str) -> RunRecord:
    """Return the record of a run whose row cannot be read, for lists: the rest of the row is not used."""
    shown = id if isinstance(id, str) else repr(id)
    shown = shown.encode("utf-8", "backslashreplace").decode()
    return RunRecord(
        id=shown,
        workflow=workflow if isinstance(workflow, str) and workflow.isprintable() else "?",
        definition="",
        state="damaged",
        error=RunDamaged(shown, detail).to_json(),
        created=created if isinstance(created, float) else 0.0,
    )


def definition_hash(body: Mapping[str, Any]) -> str:
    """Return the hash of a workflow definition's body, as `workflows/reader.py` computes it."""
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()


class NewerRun(JournalError):
    """Raised when a run has entries or messages that only a newer version of Toolway knows."""

    code = "E-WORKFLOW-NEWER"


class RunJournal(Protocol):
    """Store of workflow runs. When a method returns, its change is on disk."""

    lease_s: float  # seconds after which another process may take the runs of this one; 0 = no other process may
    on_changed: Callable[[], None] | None  # called if another process has written; may never be called

    @property
    def life(self) -> int:
        """Return the number of this process's current period of executing runs, stored in each entry.

        In a journal file it counts the processes that have executed runs. In a cluster it is the number of the node's
        lease. It is 0 if this process executes no runs.
        """
        ...

    def holds(self, life: int) -> bool:
        """Return True if the runs that this process took in the period `life` still belong to this process."""
        ...

    async def create(self, run: RunRecord, definition: Json) -> RunRecord:
        """Store a new run and return it, or the existing run with the same workflow, caller and key."""
        ...

    async def take(self, now: float, room: int) -> list[RunRecord]:
        """Return at most `room` runs that are due, and mark them as running in this process.

        A run that cannot be read has the state `damaged` in its record. It keeps no other run from being returned.
        """
        ...

    async def get(self, run: str) -> RunRecord:
        """Return the stored record of a run. Raises `KeyError` if the run does not exist."""
        ...

    async def load(self, run: str) -> tuple[RunRecord, Json, list[Entry], list[RunMessage]]:
        """Return a run, its definition, its journal entries and its messages.

        Raises `KeyError` if the run does not exist, `RunDamaged` if a part of it cannot be read.
        """
        ...

    async def write(self, run: str, entries: Sequence[Entry], change: RunChange | None = None) -> None:
        """Write entries and the new state of a run in one commit.

        Raises `RunLost` if another process has taken the run.
        """
        ...

    async def send(self, run: str, message: RunMessage) -> None:
        """Store a message to a run, and make the run due, so it reads the message.

        A stuck run is due only after `resume`.
        """
        ...

    async def messages(self, run: str, after: int) -> list[RunMessage]:
        """Return the messages of a run with a higher id than `after`."""
        ...

    async def list_runs(self, state: str | None, limit: int) -> list[RunRecord]:
        """Return at most `limit` stored runs, newest first: all, or those in one state."""
        ...

    async def next_due(self) -> float | None:
        """Return the time at which the next waiting run is due; None if no run waits for a time."""
        ...

    async def changed(self) -> bool:
        """Return True if another process has written to the journal since this method was last called."""
        ...

    async def close(self) -> None: ...
