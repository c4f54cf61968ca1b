"""Table of all `toolway` commands. `--help` reads only this table and loads no command."""

from __future__ import annotations

from typing import Final

from toolway.cli.framework import CommandSpec
from toolway.cli.options import CONFIG_OPTIONS, OUTPUT_OPTIONS, RUN_OPTIONS

KEYS_COMMANDS: Final = {
    "create": CommandSpec("Create an API key and show it once.", "keys:keys_create"),
    "ls": CommandSpec("List all API keys.", "keys:keys_ls"),
    "revoke": CommandSpec("Revoke an API key.", "keys:keys_revoke"),
    "local-token": CommandSpec(
        "Show the access token of this machine's gateway.", "keys:keys_local_token", OUTPUT_OPTIONS
    ),
}

SESSIONS_COMMANDS: Final = {
    "ls": CommandSpec("List people who logged in.", "people:sessions_ls"),
    "end": CommandSpec("End the logins of a person.", "people:sessions_end"),
}

AUDIT_COMMANDS: Final = {
    "verify": CommandSpec("Check that the log was not altered.", "audit.verify:audit_verify", CONFIG_OPTIONS),
    "ls": CommandSpec("Show the newest records.", "audit.verify:audit_ls", CONFIG_OPTIONS),
    "export": CommandSpec("Write the records as JSON lines.", "audit.export:audit_export", CONFIG_OPTIONS),
    "check": CommandSpec("Check a signed export or a proof.", "audit.export:audit_check", OUTPUT_OPTIONS),
    "prove": CommandSpec("Prove that a record is in a signed export.", "audit.export:audit_prove", OUTPUT_OPTIONS),
    "key": CommandSpec("Print the public key of signed exports.", "audit.export:audit_key", CONFIG_OPTIONS),
}

CONFIG_COMMANDS: Final = {
    "path": CommandSpec("Show which config files are used.", "config:path", CONFIG_OPTIONS),
    "validate": CommandSpec("Check every entry without starting a server.", "config:validate", CONFIG_OPTIONS),
    "diff": CommandSpec("Show what changed since an earlier version.", "config:diff", CONFIG_OPTIONS),
    "history": CommandSpec("List the earlier versions.", "config:history", CONFIG_OPTIONS),
    "rollback": CommandSpec("Restore an earlier version.", "config:rollback", CONFIG_OPTIONS),
}

SECRETS_COMMANDS: Final = {
    "set": CommandSpec("Store a secret; prompts for the value.", "approvals.trust:secrets_set", OUTPUT_OPTIONS),
    "ls": CommandSpec(
        "List the names of all secrets and the servers that use them.", "approvals.trust:secrets_ls", CONFIG_OPTIONS
    ),
    "rm": CommandSpec("Delete a secret.", "approvals.trust:secrets_rm", CONFIG_OPTIONS),
}

PINS_COMMANDS: Final = {
    "ls": CommandSpec("List definitions that changed or wait for approval.", "approvals.pins:pins_ls"),
    "diff": CommandSpec("Show what changed in a definition.", "approvals.pins:pins_diff"),
    "approve": CommandSpec("Approve changed definitions.", "approvals.pins:pins_approve"),
}

APPROVALS_COMMANDS: Final = {
    "ls": CommandSpec("List calls that wait for an approval.", "approvals.calls:approvals_ls"),
    "show": CommandSpec("Show a call with its arguments.", "approvals.calls:approvals_show"),
    "yes": CommandSpec("Approve a call.", "approvals.calls:approvals_yes"),
    "no": CommandSpec("Deny a call, with a reason.", "approvals.calls:approvals_no"),
}

POLICY_COMMANDS: Final = {
    "check": CommandSpec("Validate the policies and their names.", "approvals.policies:policy_check"),
    "why": CommandSpec("Show which policies decide a call.", "approvals.policies:policy_why"),
    "test": CommandSpec("Compare the policies with a table of tests.", "approvals.policies:policy_test"),
    "new": CommandSpec("Write a policy file to start from.", "approvals.policies:policy_new", CONFIG_OPTIONS),
}

FLOWS_COMMANDS: Final = {
    "suggest": CommandSpec("Propose labels for tools.", "approvals.flows:flows_suggest"),
    "show": CommandSpec("Show which calls brought which label.", "approvals.flows:flows_show"),
    "reset": CommandSpec("Forget the labels of a caller.", "approvals.flows:flows_reset"),
}

SANDBOX_COMMANDS: Final = {
    "try": CommandSpec("Start a server in the sandbox strict.", "approvals.sandbox:sandbox_try", CONFIG_OPTIONS),
}

CLUSTER_COMMANDS: Final = {
    "nodes": CommandSpec("List the nodes of the cluster and their servers.", "cluster:nodes"),
    "drain": CommandSpec("Drain a node of the cluster before you stop it.", "cluster:drain"),
    "keygen": CommandSpec("Generate the key that all nodes of a cluster share.", "cluster:keygen", OUTPUT_OPTIONS),
    "tenant-key": CommandSpec(
        "Derive the key of one tenant from the cluster key.", "cluster:tenant_key", OUTPUT_OPTIONS
    ),
    "trust": CommandSpec("Sign the rows of a database, after a look at them.", "cluster:trust", OUTPUT_OPTIONS),
}

WORKFLOW_COMMANDS: Final = {
    "run": CommandSpec("Run a workflow until it ends or asks.", "workflow:workflow_run", CONFIG_OPTIONS),
    "check": CommandSpec("Show what a crash in each step would do.", "workflow:workflow_check", CONFIG_OPTIONS),
    "ls": CommandSpec("List the newest runs.", "workflow:workflow_ls", RUN_OPTIONS),
    "show": CommandSpec("Show the steps of a run.", "workflow:workflow_show", RUN_OPTIONS),
    "approve": CommandSpec("Approve or deny a step.", "workflow:workflow_approve", RUN_OPTIONS),
    "answer": CommandSpec("Answer a question of a run.", "workflow:workflow_answer", RUN_OPTIONS),
    "settle": CommandSpec("State if a call was executed.", "workflow:workflow_settle", RUN_OPTIONS),
    "resume": CommandSpec("Continue a run.", "workflow:workflow_resume", CONFIG_OPTIONS | RUN_OPTIONS),
    "cancel": CommandSpec("Cancel a run.", "workflow:workflow_cancel", RUN_OPTIONS),
    "import": CommandSpec("Make workflow files of an Arazzo document.", "workflow:workflow_import", OUTPUT_OPTIONS),
}

AGENT_COMMANDS: Final = {
    "run": CommandSpec("Let a model work on a task.", "agent:agent_run", CONFIG_OPTIONS),
    "ls": CommandSpec("List the newest agent runs.", "agent:agent_ls", OUTPUT_OPTIONS),
    "show": CommandSpec("Show the conversation of a run.", "agent:agent_show", OUTPUT_OPTIONS),
    "approve": CommandSpec("Approve or deny a call.", "agent:agent_approve", OUTPUT_OPTIONS),
    "resume": CommandSpec("Continue a run.", "agent:agent_resume", CONFIG_OPTIONS),
    "replay": CommandSpec("Replay a run from its journal.", "agent:agent_replay", OUTPUT_OPTIONS),
}

COMMANDS: Final = {
    "init": CommandSpec("Find the servers of your clients and import them.", "import_:init", CONFIG_OPTIONS),
    "add": CommandSpec("Add a server: a URL, a command, a package or a bundle.", "add:add", CONFIG_OPTIONS),
    "new": CommandSpec("Create a server of your own in Python, with tests.", "add:new", OUTPUT_OPTIONS),
    "import": CommandSpec("Import servers from clients.", "import_:import_", CONFIG_OPTIONS),
    "export": CommandSpec("Export your servers, or the gateway, to clients.", "export:export"),
    "sync": CommandSpec("Import from all clients, then export to all clients.", "export:sync", CONFIG_OPTIONS),
    "ls": CommandSpec("List all servers, their state and the cause of failures.", "servers:ls"),
    "status": CommandSpec("Show the full status of a server.", "servers:status"),
    "get": CommandSpec("Show the config entry of a server.", "servers:get", CONFIG_OPTIONS),
    "rm": CommandSpec("Remove a server.", "servers:rm", CONFIG_OPTIONS),
    "enable": CommandSpec("Enable a server.", "servers:enable", CONFIG_OPTIONS),
    "disable": CommandSpec("Disable a server.", "servers:disable", CONFIG_OPTIONS),
    "edit": CommandSpec("Open the config file in your editor.", "servers:edit", CONFIG_OPTIONS),
    "restart": CommandSpec("Restart a server of the running gateway.", "servers:restart"),
    "tools": CommandSpec("List the tools of all servers.", "tools:tools"),
    "search": CommandSpec("Find the tools that fit a task.", "tools:search"),
    "tokens": CommandSpec("Show what tool definitions cost a model.", "tools:tokens"),
    "call": CommandSpec("Call a tool and show its result.", "tools:call"),
    "prompts": CommandSpec("List prompts, or show the messages of one.", "catalogs.lists:prompts"),
    "resources": CommandSpec("List resources, or read one.", "catalogs.lists:resources"),
    "codegen": CommandSpec("Write a typed client for a server.", "catalogs.lists:codegen"),
    "workflow": CommandSpec("Run durable workflows of tool calls.", subcommands=WORKFLOW_COMMANDS),
    "agent": CommandSpec("Let a model work with your tools.", subcommands=AGENT_COMMANDS),
    "doctor": CommandSpec("Find problems, their causes and their fixes.", "diagnostics:doctor"),
    "config": CommandSpec(
        "Show the configuration and the source of each value.",
        "config:config",
        CONFIG_OPTIONS,
        subcommands=CONFIG_COMMANDS,
    ),
    "secrets": CommandSpec("Store secrets of servers outside of config files.", subcommands=SECRETS_COMMANDS),
    "login": CommandSpec("Log in to a server that requires it.", "login:login"),
    "logout": CommandSpec("Delete a login and revoke it at its issuer.", "login:logout"),
    "trust": CommandSpec("Review a project's config file and trust it.", "approvals.trust:trust", CONFIG_OPTIONS),
    "pins": CommandSpec("Review definitions of tools that changed.", subcommands=PINS_COMMANDS),
    "policy": CommandSpec("Check, ask and test the gateway's policies.", subcommands=POLICY_COMMANDS),
    "sandbox": CommandSpec("Try servers in a sandbox.", subcommands=SANDBOX_COMMANDS),
    "lock": CommandSpec("Lock the packages of npx and uvx entries.", "approvals.lock:lock", CONFIG_OPTIONS),
    "update": CommandSpec("Lock a newer version of a package.", "approvals.lock:update", CONFIG_OPTIONS),
    "top": CommandSpec("Watch the load and health of all servers.", "activity:top"),
    "calls": CommandSpec("Show recent calls: all, failed or slow ones.", "activity:calls"),
    "trace": CommandSpec("Show how long each phase of a call took.", "activity:trace"),
    "logs": CommandSpec("Show the stderr output of servers.", "diagnostics:logs"),
    "ps": CommandSpec("Show server processes and orphaned processes.", "diagnostics:ps"),
    "explain": CommandSpec("Explain an error code.", "reference:explain", OUTPUT_OPTIONS),
    "serve": CommandSpec("Serve all servers to every client at one endpoint.", "serve:serve", CONFIG_OPTIONS),
    "ui": CommandSpec("Open the dashboard in a browser.", "activity:ui"),
    "keys": CommandSpec("Manage the API keys and tokens of the gateway.", subcommands=KEYS_COMMANDS),
    "who": CommandSpec("Show who you are at the gateway.", "people:who"),
    "sessions": CommandSpec("List people who logged in, and end logins.", subcommands=SESSIONS_COMMANDS),
    "budgets": CommandSpec("Show budgets and their use.", "approvals.budgets:budgets"),
    "flows": CommandSpec("Follow private data and texts of strangers.", subcommands=FLOWS_COMMANDS),
    "approvals": CommandSpec("Approve or deny calls that wait.", subcommands=APPROVALS_COMMANDS),
    "audit": CommandSpec("Read and verify the gateway's audit log.", subcommands=AUDIT_COMMANDS),
    "cluster": CommandSpec("List and drain cluster nodes, create keys.", subcommands=CLUSTER_COMMANDS),
    "completion": CommandSpec(
        "Complete commands, servers and tools in a shell.", "reference:completion", OUTPUT_OPTIONS
    ),
    "agent-help": CommandSpec(
        "Show a one-page reference for programs and agents.", "reference:agent_help", OUTPUT_OPTIONS
    ),
    "list": CommandSpec("Alias of ls.", "servers:ls", hidden=True),
    "lint": CommandSpec("Alias of doctor --tools.", "diagnostics:lint", hidden=True),
}

SECTIONS: Final = {
    "Start": ("init", "add", "new", "import", "export", "sync"),
    "Servers": ("ls", "status", "get", "rm", "enable", "disable", "edit", "restart"),
    "Tools": ("tools", "search", "tokens", "call", "prompts", "resources", "codegen", "workflow", "agent"),
    "Activity": ("top", "calls", "trace"),
    "Diagnostics": ("doctor", "logs", "ps", "explain"),
    "Configuration": ("config", "secrets", "login", "logout", "trust", "pins", "sandbox", "lock", "update"),
    "Gateway": (
        "serve",
        "ui",
        "keys",
        "who",
        "sessions",
        "policy",
        "budgets",
        "flows",
        "approvals",
        "audit",
        "cluster",
    ),
    "Shells and programs": ("completion", "agent-help"),
}

# Command names of other programs. The error for such a name suggests our command.
ALIASES: Final = {
    "approve": "trust",
    "remove": "rm",
    "delete": "rm",
    "uninstall": "rm",
    "install": "add",
    "create": "new",
    "scaffold": "new",
    "template": "new",
    "show": "get",
    "info": "get",
    "find": "search",
    "run": "call",
    "exec": "call",
    "read": "resources",
    "prompt": "prompts",
    "resource": "resources",
    "generate": "codegen",
    "start": "serve",
    "up": "serve",
    "gateway": "serve",
    "dashboard": "ui",
    "web": "ui",
    "watch": "top",
    "check": "doctor",
    "diagnose": "doctor",
    "validate": "config validate",
    "rollback": "config rollback",
    "undo": "config rollback",
    "history": "config history",
    "auth": "login",
    "authenticate": "login",
    "signin": "login",
    "signout": "logout",
    "whoami": "who",
    "allow": "trust",
    "nodes": "cluster nodes",
    "replicas": "cluster nodes",
    "members": "cluster nodes",
    "cordon": "cluster drain",
    "help": "--help",
}
