"""Workflows of a gateway: executes their runs and offers them as tools of the server `workflows`.

The configuration brings the contents of the workflows that are approved; no workflow file is opened here. A workflow
that cannot be used is reported and costs the other workflows and servers nothing. If the journal cannot be opened,
because another gateway uses it, opening is tried again until it succeeds.

In a cluster, each node has the server `workflows` in its own process. All nodes share the definitions, which are part
of the shared configuration, and the journal in PostgreSQL: any node starts, shows, answers and executes runs. The
workers of one gateway share the journal in a file: worker 0 executes the runs, each worker starts and answers them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolway.config.schema import ConfigIssue, Server
from toolway.errors import AccessDenied, ConfigError, ToolwayError
from toolway.events import RunAsks
from toolway.gateway.principals import KEY_PREFIX, LOCAL_ADMIN, PERSON_PREFIX, ApiKeyStore, Principal
from toolway.hub.core import HubCore
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.config.agent_settings import ConfiguredAgent
    from toolway.config.loader import LoadedConfig
    from toolway.workflows.definition import Definition
    from toolway.workflows.engine import Workflows
    from toolway.workflows.journal import RunJournal
    from toolway.workflows.mcp_tools import WorkflowServer

SERVER_NAME: Final = "workflows"
JOURNAL_NAME: Final = "workflows.db"
OPEN_RETRY_S: Final = 2.0
QUESTION_POLL_S: Final = 30.0  # seconds between two searches for runs that ask
MAX_WATCHED_RUNS: Final = 1000
_log = logging.getLogger("toolway.gateway")


class GatewayRunAccess:
    """Access rights of workflow runs in a gateway: a run may call what the principal that started it may call now.

    `find_person` returns the principal of a person as of its last login at this gateway. Without one, the runs of the
    person call nothing.
    """

    def __init__(
        self,
        api_keys: ApiKeyStore | None,
        may_call: Callable[[Principal, str, Json | None], bool],
        may_see: Callable[[Principal, str], bool],
        find_person: Callable[[str], Principal | None] = lambda id_: None,
    ) -> None:
        self._api_keys = api_keys
        self._may_call = may_call
        self._may_see = may_see
        self._find_person = find_person

    def caller_id(self, caller: str) -> str:
        return caller if caller.startswith((KEY_PREFIX, PERSON_PREFIX)) else ""

    def person_of(self, caller: str) -> str:
        return self._api_keys.person_of(caller) if self._api_keys is not None else caller

    def find_problem(self, caller: str, tool: str, arguments: Json | None = None) -> ToolwayError | None:
        principal = self._find_principal(caller)
        if principal is None and caller.startswith(PERSON_PREFIX):
            return AccessDenied(
                "the person who started the run is not logged in",
                detail=f"{caller}: this gateway saw no valid token of the person in the last 24 hours",
                hint="the person must log in again and call any tool; then resume the run",
                code="E-WORKFLOW-STARTER",
            )
        if principal is None:
            return AccessDenied(
                "the API key that started the run was revoked",
                detail=caller,
                hint="start the workflow again with a valid key",
                code="E-WORKFLOW-STARTER",
            )
        if not tool or self._may_call(principal, tool, arguments):
            return None
        starter = "person who" if principal.is_person else "API key that"
        return AccessDenied(
            f"{tool} is not allowed for the {starter} started the run",
            detail=f"{principal.name}: its scopes or the policy of the gateway do not include the tool",
            hint="add the tool to a group of the key or person, or start the workflow with another one",
            code="E-WORKFLOW-STARTER",
        )

    def may_see(self, caller: str, tool: str) -> bool:
        """Return True if the caller of a run may see a tool: so may the model of an agent run."""
        principal = self._find_principal(caller)
        return principal is not None and self._may_see(principal, tool)

    def roles(self, caller: str) -> tuple[str, ...]:
        """Return the names under which a caller may answer questions of runs."""
        principal = self._find_principal(caller)
        return principal.roles if principal is not None else ()

    def _find_principal(self, caller: str) -> Principal | None:
        if caller.startswith(PERSON_PREFIX):
            return self._find_person(caller)
        if self._api_keys is None or not caller.startswith(KEY_PREFIX):
            return LOCAL_ADMIN
        return self._api_keys.principal_for(caller.removeprefix(KEY_PREFIX))


class WorkflowService:
    """Workflows of one gateway: files, engine and server. Without configured files it does nothing.

    `open_journal` returns the journal, or the file of one; it may raise `ConfigError`. `lock` is held while the servers
    of the hub are changed. `is_reporter` returns True at the one node of a cluster that reports runs which wait too
    long for a person. With `executes=False`, another process executes the runs.
    """

    def __init__(
        self,
        hub: HubCore,
        open_journal: Callable[[], Path | RunJournal],
        access: GatewayRunAccess,
        on_problem: Callable[[str], None],
        asks_after: float,
        lock: asyncio.Lock,
        is_reporter: Callable[[], bool] = lambda: True,
        *,
        executes: bool = True,
    ) -> None:
        self._hub = hub
        self._open_journal = open_journal
        self._access = access
        self._on_problem = on_problem
        self._lock = lock
        self._is_reporter = is_reporter
        self._executes = executes
        self._is_configured = False
        self._definitions: list[Definition] = []
        self._agents: dict[str, ConfiguredAgent] = {}
        self._opening: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._asks_after = asks_after
        self._is_scheduled = True
        self._server: WorkflowServer | None = None
        self._file_issues: tuple[ConfigIssue, ...] = ()
        self._journal_issue: ConfigIssue | None = None
        self.engine: Workflows | None = None

    @property
    def issues(self) -> tuple[ConfigIssue, ...]:
        """Return the current problems of the workflow files and of the journal."""
        return (*self._file_issues, self._journal_issue) if self._journal_issue is not None else self._file_issues

    def with_server(self, servers: dict[str, Server]) -> dict[str, Server]:
        """Return `servers` and, if workflows are offered as tools, the server `workflows` too."""
        if self._server is None or not self._has_tools or SERVER_NAME in servers:
            return servers
        return {**servers, SERVER_NAME: _definition_of(self._server)}

    def stamps(self, sources: Sequence[str | Mapping[str, Any]]) -> list[tuple[str, int, int]]:
        """Return names, times and sizes of the workflow files; they differ if a file was changed."""
        if not sources:
            return []
        from toolway.config.approval.workflow_files import find_files

        found = []
        for file in find_files(sources):
            with contextlib.suppress(OSError):
                stat = os.stat(file)
                found.append((file, stat.st_mtime_ns, stat.st_size))
        return found

    @property
    def _has_tools(self) -> bool:
        return self._is_configured or bool(self._agents)

    async def load(self, config: LoadedConfig) -> None:
        """Read the definitions of all workflows; if there are any, begin to open the journal of runs in the background.

        Workflows that wait for approval are not among those of `config`. None of its servers may be called `workflows`.
        """
        self._is_configured, self._agents = bool(config.gateway.workflows), dict(config.gateway.agents)
        if not self._has_tools:
            self._definitions, self._file_issues = [], ()
        else:
            from toolway.workflows.files import read_workflows

            captured = await asyncio.to_thread(config.capture_workflows)
            self._definitions, issues = await asyncio.to_thread(read_workflows, captured)
            if SERVER_NAME in config.servers:
                issues.append(_name_taken_issue())
            issues += await asyncio.to_thread(self._check_agents)
            known = {each.message for each in self._file_issues}
            self._file_issues = tuple(issues)
            for issue in issues:
                if issue.message not in known:
                    self._report(issue)
        if self._server is not None:
            self._server.set_definitions(self._definitions, self._agents)
            await self._schedule()
        elif self._has_tools and self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def start(self, config: LoadedConfig) -> None:
        """Read the definitions of workflows, open the journal and add the server `workflows`, when the gateway starts.

        Runs that a crash interrupted are continued. If the journal cannot be opened soon, that goes on in the
        background.
        """
        await self.load(config)
        if self._opening is not None:
            await asyncio.wait({self._opening}, timeout=OPEN_RETRY_S)

    def _check_agents(self) -> list[ConfigIssue]:
        """Return the problems of the configured agents.

        An agent that has the name of a workflow is not offered as a tool.
        """
        from toolway.agents.agent import require_package
        from toolway.workflows.files import STATUS_TOOL

        issues = []
        taken = {STATUS_TOOL, *(each.name for each in self._definitions)}
        for name in sorted(taken & self._agents.keys()):
            del self._agents[name]
            detail = "a workflow, or a tool of the gateway, has this name"
            hint = "rename it in toolway.agents"
            issues.append(
                ConfigIssue("", f"the agent {name} is not offered", detail, hint, "E-AGENT-SETTINGS", "error")
            )
        if self._agents:
            try:
                require_package()
            except ConfigError as exc:
                issues.append(ConfigIssue.from_error(exc))
        return issues

    async def _open(self) -> None:
        """Open the journal, retried until it succeeds, and add the server `workflows` to the hub."""
        from toolway.agents.agent import agent_workflow
        from toolway.hub.hub import Hub
        from toolway.workflows.engine import Workflows
        from toolway.workflows.mcp_tools import WorkflowServer

        engine: Workflows | None = None
        while engine is None:
            try:
                hub = Hub._from_core(self._hub)
                code = [agent_workflow(hub, may_see=self._access.may_see)]
                journal, access = self._open_journal(), self._access
                opening = Workflows(hub, journal, code=code, access=access, executes=self._executes)
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
        async with self._lock:
            self._server = WorkflowServer(engine, self._definitions, roles=self._access.roles, agents=self._agents)
            if self._has_tools and SERVER_NAME not in self._hub.servers:
                await self._hub.add_server(SERVER_NAME, _definition_of(self._server))
            await self._schedule()

    async def _schedule(self) -> None:
        """Create the next run of each workflow that has a schedule, with the rights of the gateway itself.

        If the journal of runs cannot be used now, this is tried again later.
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
        """Report, once each, the runs that have waited for a person longer than the alert settings allow."""
        since: dict[str, float] = {}
        clock = asyncio.get_running_loop().time
        reported: set[str] = set()
        while True:
            await asyncio.sleep(min(QUESTION_POLL_S, self._asks_after / 2))
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
                if now - since[id] >= self._asks_after and id not in reported:
                    reported.add(id)
                    if not self._is_reporter():
                        continue
                    question = "; ".join(str(each["title"]) for each in record.asks)
                    self._hub.emit(RunAsks(SERVER_NAME, id, record.workflow, question, now - since[id]))

    def stop_waiting(self) -> None:
        """Answer at once the calls that wait for a run, and begin no more runs, because the gateway shuts down."""
        if self._server is not None:
            self._server.stop_waiting()
        if self.engine is not None:
            self.engine.stop_taking()

    async def close(self, timeout: float) -> None:
        """Stop the workflows: wait at most `timeout` seconds for running steps.

        Unfinished runs continue at the next start.
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
        self._on_problem(f"{issue.message}: {issue.detail or issue.hint}")


def _definition_of(server: WorkflowServer) -> Server:
    from toolway.workflows.mcp_tools import KEY_META_KEY

    return Server(instance=server, idempotency_meta_key=KEY_META_KEY)


def _name_taken_issue() -> ConfigIssue:
    return ConfigIssue(
        SERVER_NAME,
        f"the server name {SERVER_NAME} is taken, so the workflows are not offered",
        "toolway.workflows is set, and a server has this name",
        "rename the server",
        "E-CONFIG-NAME",
        "error",
    )
