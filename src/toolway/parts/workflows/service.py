"""A gateway's workflows: executes their runs and offers them as tools of the server `workflows`.

The configuration contains the trusted workflows, so this module does not open workflow files. A workflow that cannot be
used is reported, and does not affect other workflows or servers. If the journal cannot be opened because another
gateway is using it, this is retried until it works.

In a cluster, each node has the server `workflows` in its process. All nodes share the definitions, which are part of
the shared configuration, and the journal in PostgreSQL, so any node can start, show, answer, and execute runs. The
workers of one gateway share the journal in a file: worker 0 executes the runs, and every worker can start and answer
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from toolway.config.approval.workflow_files import find_files
from toolway.config.schema import ConfigIssue, Server
from toolway.errors import ToolwayError
from toolway.events import RunAsks
from toolway.part_api.part import Gauge, Part, PartContext, PartRuntime
from toolway.parts.workflows.run_access import GatewayRunAccess

if TYPE_CHECKING:
    from toolway.config.agent_settings import ConfiguredAgent
    from toolway.config.loader import LoadedConfig
    from toolway.config.settings import GatewaySettings
    from toolway.hub.hub import Hub
    from toolway.workflows.definition import Definition
    from toolway.workflows.engine import Workflows
    from toolway.workflows.journal import RunJournal
    from toolway.workflows.mcp_tools import WorkflowServer
    from toolway.workflows.python_workflow import PythonWorkflow

SERVER_NAME: Final = "workflows"
JOURNAL_NAME: Final = "workflows.db"
OPEN_RETRY_S: Final = 2.0
QUESTION_POLL_S: Final = 30.0  # seconds between two searches for runs that ask
MAX_WATCHED_RUNS: Final = 1000
MAX_COUNTED_RUNS: Final = 1000
_log = logging.getLogger("toolway.gateway")


class AgentSource(Protocol):
    """Provides agents, which share the workflows' journal and server. Another part implements it."""

    def code(self, hub: Hub, may_see: Callable[[str, str], bool]) -> PythonWorkflow:
        """Return the workflow that runs agents. `may_see` says which tools a run's caller may see."""
        ...

    async def load(
        self, config: LoadedConfig, taken: Collection[str]
    ) -> tuple[Mapping[str, ConfiguredAgent], list[ConfigIssue]]:
        """Return the agents that a configuration offers as tools, and the problems.

        Names in `taken` are already used.
        """
        ...


class WorkflowService(PartRuntime):
    """One gateway's workflows: files, engine, and server. It does nothing if no files are configured."""

    def __init__(self, part: Part, context: PartContext) -> None:
        self.hub = context.hub
        self.agents: AgentSource | None = None  # of the part that has agents
        self._part = part
        self._context = context
        self._is_configured = False
        self._definitions: list[Definition] = []
        self._agents: Mapping[str, ConfiguredAgent] = {}
        self._opening: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_scheduled = True
        self._server: WorkflowServer | None = None
        self._definition: Server | None = None  # how the hub starts it
        self._file_issues: tuple[ConfigIssue, ...] = ()
        self._journal_issue: ConfigIssue | None = None
        self.engine: Workflows | None = None

    @property
    def issues(self) -> Sequence[ConfigIssue]:
        """The current problems with the workflow files and the journal."""
        return (*self._file_issues, self._journal_issue) if self._journal_issue is not None else self._file_issues

    def servers(self) -> Mapping[str, Server]:
        """Return the server `workflows`, if workflows are offered as tools and the journal is open."""
        return {SERVER_NAME: self._definition} if self._definition is not None and self._has_tools else {}

    def stamps(self, gateway: GatewaySettings) -> Sequence[object]:
        """Return the workflow files' names, times, and sizes, which differ if a file was changed."""
        if not gateway.workflows:
            return ()
        found = []
        for file in find_files(gateway.workflows):
            with contextlib.suppress(OSError):
                stat = os.stat(file)
                found.append((file, stat.st_mtime_ns, stat.st_size))
        return found

    async def read_gauges(self) -> Iterable[Gauge]:
        """Return how many runs are waiting for a user, and how many are executing now."""
        if self.engine is None:
            return ()
        asking = len(await self.engine.list_runs("asks", MAX_COUNTED_RUNS))
        return (
            Gauge("toolway_workflow_runs_asking", asking),
            Gauge("toolway_workflow_runs_active", self.engine.active_runs),
        )

    @property
    def _has_tools(self) -> bool:
        return self._is_configured or bool(self._agents)

    async def load(self, config: LoadedConfig) -> None:
        """Read all workflow definitions. If any exist, start opening the run journal in the background.

        Workflows that need review are not in `config`. No server in `config` may be called `workflows`.
        """
        self._is_configured = bool(config.gateway.workflows)
        definitions: list[Definition] = []
        issues: list[ConfigIssue] = []
        if self._is_configured:
            definitions, issues = await asyncio.to_thread(_read_definitions, config)
        taken = {each.name for each in definitions}
        agents, problems = await self.agents.load(config, taken) if self.agents is not None else ({}, [])
        self._definitions, self._agents = definitions, agents  # at once: `_open` may be running
        if SERVER_NAME in config.servers and (self._has_tools or problems):
            issues.append(_name_taken_issue())
        known = {each.message for each in self._file_issues}
        self._file_issues = (*issues, *problems)
        for issue in self._file_issues:
            if issue.message not in known:
                self._report(issue)
        if self._server is not None:
            self._server.set_definitions(self._definitions, self._agents)
            await self._schedule()
        elif self._has_tools and self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def begin(self, config: LoadedConfig) -> None:
        """Start workflows with the gateway: read definitions, open the journal, and add the server `workflows`.

        Runs that a crash interrupted are continued. If opening the journal takes long, it continues in the background.
        """
        await self.load(config)
        if self._opening is not None:
            await asyncio.wait({self._opening}, timeout=OPEN_RETRY_S)

    async def _open(self) -> None:
        """Open the journal, retrying until it works, and add the server `workflows` to the hub."""
        from toolway.hub.hub import Hub
        from toolway.workflows.engine import Workflows
        from toolway.workflows.mcp_tools import KEY_META_KEY, WorkflowServer

        access = GatewayRunAccess(self._context.api_keys, *self._context.rights)
        engine: Workflows | None = None
        while engine is None:
            try:
                hub = Hub._from_core(self.hub)
                code = [self.agents.code(hub, access.may_see)] if self.agents is not None else []
                opening = Workflows(hub, self._open_journal(), code=code, access=access, executes=self._executes)
                engine = await opening.__aenter__()
                break
            except ToolwayError as exc:
                issue = ConfigIssue("", exc.message, exc.detail, exc.hint, exc.code, "error")
                if self._journal_issue is None:
                    self._report(issue)
                self._journal_issue = issue
            await asyncio.sleep(OPEN_RETRY_S)
        self._journal_issue = None
        self.engine = engine
        if self._executes:
            self._watching = asyncio.create_task(self._watch_questions(engine))
        async with self._context.servers_lock:
            self._server = WorkflowServer(engine, self._definitions, roles=access.roles, agents=self._agents)
            self._definition = Server(instance=self._server, idempotency_meta_key=KEY_META_KEY)
            if self._has_tools and SERVER_NAME not in self.hub.servers.entries:
                await self.hub.servers.add(SERVER_NAME, self._definition)
            await self._schedule()

    def _open_journal(self) -> Path | RunJournal:
        """Return the run journal: the cluster's shared one, or this gateway's file.

        Raises `ConfigError` if the cluster's database is not PostgreSQL.
        """
        shared: RunJournal | None = self._context.place.open_store(self._part)
        if shared is not None:
            return shared
        folder = self._context.place.folder
        assert folder is not None  # a gateway that stores nothing loads no configuration
        return folder / JOURNAL_NAME

    @property
    def _executes(self) -> bool:
        return self._context.place.is_first_worker

    async def _schedule(self) -> None:
        """Create the next run of each scheduled workflow, with the gateway's rights.

        If the run journal cannot be used now, this is retried later.
        """
        from toolway.workflows.journal import JournalError

        if self.engine is None or not self._executes:
            return
        self._is_scheduled = True
        try:
            await self.engine.set_schedules(self._definitions)
        except ToolwayError as exc:
            self._is_scheduled = not isinstance(exc, JournalError)
            self._report(ConfigIssue("", exc.message, exc.detail, exc.hint, exc.code, "error"))

    async def _watch_questions(self, engine: Workflows) -> None:
        """Report runs that have been waiting for a user longer than the alert settings allow.

        Each run is reported once.
        """
        asks_after = self._context.alerts.asks_after
        since: dict[str, float] = {}
        clock = asyncio.get_running_loop().time
        reported: set[str] = set()
        while True:
            await asyncio.sleep(min(QUESTION_POLL_S, asks_after / 2))
            if not self._is_scheduled:
                await self._schedule()
            try:
                asking = {each.id: each for each in await engine.list_runs("asks", MAX_WATCHED_RUNS)}
            except ToolwayError:
                continue  # the engine reports it
            now = clock()
            since = {id: since.get(id, now) for id in asking}
            reported &= asking.keys()
            for id, record in asking.items():
                if now - since[id] >= asks_after and id not in reported:
                    reported.add(id)
                    if not self._context.place.is_first():
                        continue
                    question = "; ".join(str(each["title"]) for each in record.asks)
                    self.hub.emit(RunAsks(SERVER_NAME, id, record.workflow, question, now - since[id]))

    def drain(self) -> None:
        """Answer calls that are waiting for a run, and start no new runs, because the gateway is shutting down."""
        if self._server is not None:
            self._server.stop_waiting()
        if self.engine is not None:
            self.engine.stop_taking()

    async def finish(self, timeout: float) -> None:
        """Stop the workflows, waiting at most `timeout` seconds for running steps.

        Unfinished runs continue after the next start.
        """
        tasks = [task for task in (self._opening, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.engine is not None:
            await self.engine.aclose(timeout)
            self.engine = None

    def _report(self, issue: ConfigIssue) -> None:
        _log.error("workflows: %s", issue)
        self._context.report(f"{issue.message}: {issue.detail or issue.hint}")


def _read_definitions(config: LoadedConfig) -> tuple[list[Definition], list[ConfigIssue]]:
    from toolway.workflows.files import read_workflows

    return read_workflows(config.capture_workflows())


def _name_taken_issue() -> ConfigIssue:
    return ConfigIssue(
        SERVER_NAME,
        f"the server name {SERVER_NAME} is taken, so the workflows are not offered",
        "toolway.workflows is set, and a server has this name",
        "rename the server",
        "E-CONFIG-NAME",
        "error",
    )
