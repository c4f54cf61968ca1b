"""The agents part of a gateway: it offers configured agents as tools, lists their runs, and answers their questions.

The engine is the package `toolway.agents`, which programs use without a gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from toolway.part_api.part import Command, Part

_CLI = "toolway.parts.agents.cli"
_FILE = ("config",)


class GatewayAgents(Part):
    """A gateway's agents. Their runs are workflow runs, so they share the journal and the server of the workflows.

    This part does not parse the agents setting: each agent must be trusted before it runs, and `toolway.config` decides
    that.
    """

    name = "agents"
    needs = ("workflows",)
    code: ClassVar[Mapping[str, str]] = {
        "open": "runtime:AgentsRuntime",
        "routes": "routes:ROUTES",
        "schemas": "schemas:SCHEMAS",
    }
    inbox = "toolway.parts.agents.inbox:AgentInbox"
    commands: ClassVar[Mapping[str, Command]] = {
        "agent": Command(
            "Run an agent with your tools.",
            subcommands={
                "run": Command("Give an agent a task.", f"{_CLI}:agent_run", options=_FILE),
                "ls": Command("List recent agent runs.", f"{_CLI}:agent_ls", options=()),
                "show": Command("Show the conversation of a run.", f"{_CLI}:agent_show", options=()),
                "resume": Command("Resume a run.", f"{_CLI}:agent_resume", options=_FILE),
                "replay": Command(
                    "Replay a run from its journal, without a model.", f"{_CLI}:agent_replay", options=()
                ),
            },
            section="Automate",
            after="workflow",
        )
    }
    former_commands: ClassVar[Mapping[str, str]] = {
        "agent approve": "approvals approve",
        "agent approve --no": "approvals deny",
    }
