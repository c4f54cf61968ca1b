"""The files of every client that we know: where they are, what they say, and how they are changed.

    places = find(os.environ, Path.cwd())           # every file in which a client would look
    imported = read(place)                          # its entries in our own form, and what is wrong with others
    entry = portable(imported.entries[0])           # as it can stand in our file
    export = plan_export(place, {"github": entry})  # the change, and what the client cannot be told
    apply(export.edit)                              # toolway.config.editing.write

`values.py` says what that form is. `dialect.py` is how a client spells it, one value for each client in `claude.py`,
`editors.py`, `terminals.py`, `desktops.py` (JSON), `tables.py` (TOML) and `indented.py` (YAML).
"""

from toolway.config.clients.catalog import CLIENTS, TOOLWAY, client_named, own_place
from toolway.config.clients.exporting import plan_export
from toolway.config.clients.importing import find, read
from toolway.config.clients.portable import portable
from toolway.config.clients.values import Client, Entry, Export, Imported, Place

__all__ = [
    "CLIENTS",
    "TOOLWAY",
    "Client",
    "Entry",
    "Export",
    "Imported",
    "Place",
    "client_named",
    "find",
    "own_place",
    "plan_export",
    "portable",
    "read",
]
