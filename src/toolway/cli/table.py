"""Every command of `toolway`, a line each. `--help` shows this table and loads nothing else."""

from __future__ import annotations

from typing import Final

from toolway.cli.frame import Entry
from toolway.cli.options import FILE, TALK

KEYS: Final = {
    "create": Entry("Make a key and show it, once.", "gateway:keys_create"),
    "ls": Entry("Show all keys.", "gateway:keys_ls"),
    "revoke": Entry("End a key.", "gateway:keys_revoke"),
}

AUDIT: Final = {
    "verify": Entry("Check that nobody changed the log since it was written.", "audit:audit_verify", FILE),
    "ls": Entry("Show the newest records.", "audit:audit_ls", FILE),
    "export": Entry("Write the records as lines of JSON.", "audit:audit_export", FILE),
}

CONFIG: Final = {
    "path": Entry("Show which files of servers are used.", "configuration:path", FILE),
    "validate": Entry("Check every entry; nothing is started.", "configuration:validate", FILE),
    "diff": Entry("Show what has changed since an earlier version.", "configuration:diff", FILE),
    "history": Entry("Show the earlier versions.", "configuration:history", FILE),
    "rollback": Entry("Go back to an earlier version.", "configuration:rollback", FILE),
}

SECRETS: Final = {
    "set": Entry("Keep a secret; the value is asked for.", "trust:secrets_set", TALK),
    "ls": Entry("Show the names of all secrets, and who uses them.", "trust:secrets_ls", FILE),
    "rm": Entry("Forget a secret.", "trust:secrets_rm", FILE),
}

TABLE: Final = {
    "init": Entry("Find the servers of your clients, and take them over.", "clients:init", FILE),
    "add": Entry("Add a server: a URL, a command, a package, a bundle.", "entries:add", FILE),
    "import": Entry("Take over the servers of clients.", "clients:import_", FILE),
    "export": Entry("Give your servers to clients.", "clients:export", FILE),
    "sync": Entry("Take over and give, for all clients at once.", "clients:sync", FILE),
    "ls": Entry("Show all servers: whether they work, and why not.", "servers:ls"),
    "status": Entry("Show all that is known about a server.", "servers:status"),
    "get": Entry("Show the entry of a server.", "entries:get", FILE),
    "rm": Entry("Remove a server.", "entries:rm", FILE),
    "enable": Entry("Let a server take part.", "entries:enable", FILE),
    "disable": Entry("Let a server not take part.", "entries:disable", FILE),
    "edit": Entry("Open the file of servers in your editor.", "entries:edit", FILE),
    "restart": Entry("Start a server of the running gateway again.", "servers:restart"),
    "tools": Entry("Search the tools of all servers.", "tools:tools"),
    "call": Entry("Call one tool and show its answer.", "tools:call"),
    "doctor": Entry("Find out what is wrong, why, and how to fix it.", "care:doctor", FILE),
    "lint": Entry("Find what models refuse of the tools.", "care:lint"),
    "config": Entry(
        "Show what is configured, and where each value comes from.", "configuration:config", FILE, of=CONFIG
    ),
    "secrets": Entry("What servers need and no file should hold.", of=SECRETS),
    "login": Entry("Log in to a server that wants it.", "trust:login"),
    "logout": Entry("Forget a login, and tell its issuer.", "trust:logout"),
    "approve": Entry("Look at a project's file, and let it be used.", "trust:approve", TALK),
    "top": Entry("Watch all servers: how busy they are, and how well.", "watching:top"),
    "calls": Entry("Show the last calls: all, the failed, the slow.", "watching:calls"),
    "trace": Entry("Show where the time of a call went.", "watching:trace"),
    "replay": Entry("Make a call once more.", "watching:replay"),
    "logs": Entry("Show what servers write to stderr.", "care:logs"),
    "ps": Entry("Show the processes of servers, and what is left over.", "care:ps"),
    "explain": Entry("Explain an error code.", "care:explain", TALK),
    "serve": Entry("Serve all servers at one endpoint, for every client.", "serving:serve", FILE),
    "ui": Entry("Open the dashboard in a browser.", "watching:ui"),
    "connect": Entry("Show what connects a client to the gateway.", "gateway:connect"),
    "keys": Entry("Keys for others who use the gateway.", of=KEYS),
    "audit": Entry("What the gateway's audit log says, and whether it is whole.", of=AUDIT),
    "token": Entry("Show the token that opens the gateway of this machine.", "gateway:token", TALK),
    "nodes": Entry("Show the gateways of the cluster, and what each owns.", "cluster:nodes"),
    "drain": Entry("Empty a gateway of the cluster before it is stopped.", "cluster:drain"),
    "cluster-key": Entry("Make the key that all gateways of a cluster share.", "cluster:cluster_key", TALK),
    "completion": Entry("Complete commands, servers and tools in a shell.", "care:completion", TALK),
    "agent-help": Entry("All that a program needs to know, on one page.", "care:agent_help", TALK),
    "list": Entry("The same as ls.", "servers:ls", hidden=True),
}

SECTIONS: Final = {
    "Begin": ("init", "add", "import", "export", "sync"),
    "Servers": ("ls", "status", "get", "rm", "enable", "disable", "edit", "restart"),
    "Tools": ("tools", "call"),
    "What happens": ("top", "calls", "trace", "replay"),
    "When something is wrong": ("doctor", "lint", "logs", "ps", "explain"),
    "Configuration": ("config", "secrets", "login", "logout", "approve"),
    "The gateway": ("serve", "ui", "connect", "keys", "token", "audit"),
    "A cluster": ("nodes", "drain", "cluster-key"),
    "For shells and programs": ("completion", "agent-help"),
}

# What other programs call it: nobody has to learn our word by failing.
MEANT: Final = {
    "remove": "rm",
    "delete": "rm",
    "uninstall": "rm",
    "install": "add",
    "show": "get",
    "info": "get",
    "search": "tools",
    "find": "tools",
    "run": "call",
    "exec": "call",
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
    "cluster": "nodes",
    "replicas": "nodes",
    "members": "nodes",
    "cordon": "drain",
    "help": "--help",
}
