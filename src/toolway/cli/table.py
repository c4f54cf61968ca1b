"""Table of all `toolway` commands. `--help` reads only this table and loads no command."""

from __future__ import annotations

from typing import Any, Final

from toolway.cli.framework import CommandSpec
from toolway.cli.options import CONFIG_OPTIONS, OUTPUT_OPTIONS
from toolway.part_api import registry

CLIENTS_COMMANDS: Final = {
    "import": CommandSpec("Import servers from your clients.", "import_:import_", CONFIG_OPTIONS),
    "export": CommandSpec("Write your servers into your clients' config files.", "export:export", CONFIG_OPTIONS),
    "sync": CommandSpec("Import from all clients, then export to all of them.", "export:sync", CONFIG_OPTIONS),
}

SECRETS_COMMANDS: Final = {
    "set": CommandSpec("Save a secret. You type the value at a prompt.", "approvals.trust:secrets_set", OUTPUT_OPTIONS),
    "ls": CommandSpec("List secrets and the servers that use them.", "approvals.trust:secrets_ls", CONFIG_OPTIONS),
    "rm": CommandSpec("Delete a secret.", "approvals.trust:secrets_rm", CONFIG_OPTIONS),
}

TOOLS_COMMANDS: Final = {
    "codegen": CommandSpec("Write a typed Python client for a server.", "catalogs.lists:codegen"),
}

TRUST_COMMANDS: Final = {
    "sandbox": CommandSpec(
        "See what a server needs to run in a sandbox.", "approvals.sandbox:sandbox_try", CONFIG_OPTIONS
    ),
}

CALLS_COMMANDS: Final = {
    "show": CommandSpec("Show where the time went in one call.", "activity:calls_show"),
    "replay": CommandSpec("Make a recorded call again.", "activity:calls_replay"),
}

KEYS_COMMANDS: Final = {
    "create": CommandSpec("Create an API key. It is shown once.", "keys:keys_create"),
    "ls": CommandSpec("List API keys.", "keys:keys_ls"),
    "revoke": CommandSpec("Revoke an API key.", "keys:keys_revoke"),
    "local-token": CommandSpec("Print this machine's gateway token.", "keys:keys_local_token", OUTPUT_OPTIONS),
}

CLUSTER_COMMANDS: Final = {
    "nodes": CommandSpec("List nodes and the servers they own.", "cluster:nodes"),
    "drain": CommandSpec("Move all servers off a node before you stop it.", "cluster:drain"),
    "keygen": CommandSpec("Create the key all nodes share.", "cluster:keygen", OUTPUT_OPTIONS),
    "tenant-key": CommandSpec("Create a key for one tenant.", "cluster:tenant_key", OUTPUT_OPTIONS),
    "trust": CommandSpec("Review a rejected database and sign it.", "cluster:trust", OUTPUT_OPTIONS),
}

CONFIG_COMMANDS: Final = {
    "path": CommandSpec("Show which config files are used.", "config:path", CONFIG_OPTIONS),
    "validate": CommandSpec("Check every entry without starting a server.", "config:validate", CONFIG_OPTIONS),
    "diff": CommandSpec("Show what changed since an earlier version.", "config:diff", CONFIG_OPTIONS),
    "history": CommandSpec("List earlier versions.", "config:history", CONFIG_OPTIONS),
    "rollback": CommandSpec("Go back to an earlier version.", "config:rollback", CONFIG_OPTIONS),
}

_COMMANDS: Final = {
    "init": CommandSpec("Import the servers your editors and agents already use.", "import_:init", CONFIG_OPTIONS),
    "add": CommandSpec("Add a server: a URL, a command, or a package.", "add:add", CONFIG_OPTIONS),
    "new": CommandSpec("Create a new MCP server in Python, with tests.", "add:new", OUTPUT_OPTIONS),
    "clients": CommandSpec("Exchange servers with your clients' config files.", subcommands=CLIENTS_COMMANDS),
    "connect": CommandSpec("Connect a client to the gateway.", "export:connect"),
    "completion": CommandSpec("Set up shell completion.", "reference:completion", OUTPUT_OPTIONS),
    "ls": CommandSpec("List your servers, and why any of them are down.", "servers:ls"),
    "show": CommandSpec("Show everything about one server.", "servers:show"),
    "edit": CommandSpec("Open the config file in your editor.", "servers:edit", CONFIG_OPTIONS),
    "rm": CommandSpec("Remove a server.", "servers:rm", CONFIG_OPTIONS),
    "enable": CommandSpec("Turn a server on.", "servers:enable", CONFIG_OPTIONS),
    "disable": CommandSpec("Turn a server off.", "servers:disable", CONFIG_OPTIONS),
    "restart": CommandSpec("Restart a server in the running gateway.", "servers:restart"),
    "login": CommandSpec("Log in to a server.", "login:login"),
    "logout": CommandSpec("Log out of a server and revoke the token.", "login:logout"),
    "secrets": CommandSpec("Keep secrets out of your config files.", subcommands=SECRETS_COMMANDS),
    "tools": CommandSpec(
        "List tools, or show the arguments of one.", "tools:tools", subcommands=TOOLS_COMMANDS, takes_words=True
    ),
    "call": CommandSpec("Call a tool.", "tools:call"),
    "prompts": CommandSpec("List prompts, or show one.", "catalogs.lists:prompts"),
    "resources": CommandSpec("List resources, or read one.", "catalogs.lists:resources"),
    "trust": CommandSpec(
        "Review project files and entries waiting for you.",
        "approvals.trust:trust",
        CONFIG_OPTIONS,
        TRUST_COMMANDS,
        takes_words=True,
    ),
    "serve": CommandSpec("Start the gateway: all your servers at one URL.", "serve:serve", CONFIG_OPTIONS),
    "ui": CommandSpec("Open the dashboard.", "activity:ui"),
    "top": CommandSpec("Watch load and health live.", "activity:top"),
    "calls": CommandSpec("List recent calls: all, failed, or slow.", "activity:calls", subcommands=CALLS_COMMANDS),
    "keys": CommandSpec("Manage API keys.", subcommands=KEYS_COMMANDS),
    "whoami": CommandSpec("Show who the gateway thinks you are.", "whoami:whoami"),
    "cluster": CommandSpec("Manage cluster nodes and keys.", subcommands=CLUSTER_COMMANDS),
    "doctor": CommandSpec("Find out what is wrong and how to fix it.", "diagnostics:doctor"),
    "logs": CommandSpec("Show what your servers print to stderr.", "diagnostics:logs"),
    "ps": CommandSpec("List server processes; find and stop orphans.", "diagnostics:ps"),
    "config": CommandSpec("Show settings and where each one is set.", "config:config", CONFIG_OPTIONS, CONFIG_COMMANDS),
    "explain": CommandSpec("Explain an error code.", "reference:explain", OUTPUT_OPTIONS),
    "help": CommandSpec("Show help. --all: every command; agents: a page for programs.", "help:help_", OUTPUT_OPTIONS),
}


def _with_parts(table: dict[str, CommandSpec]) -> dict[str, CommandSpec]:
    """Return the table with the commands of all built-in parts, each in the group that its first words name."""
    found = dict(table)
    of_parts = [(path.split(), each) for part in registry.built_in() for path, each in part.commands.items()]
    for (*groups, name), command in sorted(of_parts, key=lambda row: len(row[0])):
        level: Any = found
        for group in groups:
            level = level[group].subcommands
        rows = list(level.items())
        names = [" ".join((*groups, each)) for each in level]
        at = names.index(command.after) + 1 if command.after in names else len(rows)
        rows.insert(at, (name, CommandSpec.of_part(command)))
        level.clear()
        level.update(rows)
    return found


COMMANDS: Final = _with_parts(_COMMANDS)
