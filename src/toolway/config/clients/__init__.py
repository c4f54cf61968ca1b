"""MCP clients' configuration files: finds, reads, and changes them.

    files = find_client_files(os.environ, Path.cwd())  # every file that a client would read
    imported = read_client_file(file)                  # its entries with our keys, and its issues
    entry = to_portable(imported.entries[0])           # the entry for our configuration file
    export = plan_export(file, {"github": entry})      # the edit, and the settings that the client does not support
    apply_edit(export.edit)                            # toolway.config.editing.document

`models.py` defines the common form of entries, the form of our file, and `Dialect`, one client's spelling. The
clients are in `json_clients.py`, `toml_clients.py` and `yaml_clients.py`.
"""

from toolway.config.clients.exporter import plan_export
from toolway.config.clients.importer import find_client_files, read_client_file
from toolway.config.clients.models import Client, ClientConfigFile, ClientEntry, ExportPlan, ImportResult
from toolway.config.clients.portable import to_portable
from toolway.config.clients.registry import CLIENTS, TOOLWAY, get_client, toolway_file

__all__ = [
    "CLIENTS",
    "TOOLWAY",
    "Client",
    "ClientConfigFile",
    "ClientEntry",
    "ExportPlan",
    "ImportResult",
    "find_client_files",
    "get_client",
    "plan_export",
    "read_client_file",
    "to_portable",
    "toolway_file",
]
