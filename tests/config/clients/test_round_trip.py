"""For every client: a file of the shape that its documents give → import → export gives an equal file."""

import json
import re

import pytest

from tests.config.clients.fixtures import NAMES, carry_out, place_of, placed, switch_on
from toolway.config.clients import CLIENTS, plan_export, read_client_file, to_portable
from toolway.config.editing.document import ConfigDocument

# No servers for others: they live inside their client.
INSIDE = {("zed", "built-in"), ("goose", "developer")}


def test_every_client_has_a_fixture():
    assert {name.split(".")[0] for name in NAMES} == CLIENTS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_exporting_imported_servers_changes_nothing(name, tmp_path):
    place = placed(tmp_path, name)
    imported = read_client_file(place)
    assert imported.entries
    export = plan_export(place, {entry.name: to_portable(entry) for entry in imported.entries})
    assert (export.edit.diff(), export.changed) == ("", ())
    assert export.edit.after == place.path.read_bytes()
    assert list(export.unchanged) == [entry.name for entry in imported.entries]


@pytest.mark.parametrize("name", NAMES)
def test_export_to_new_file_writes_the_same_entries(name, tmp_path):
    imported = read_client_file(placed(tmp_path / "old", name))
    client, scope, _ = name.split(".")
    before = ConfigDocument(imported.file.path, imported.file.format).get(imported.file.root)
    place = place_of(tmp_path / "new", client, scope)
    carry_out(place, plan_export(place, {entry.name: entry.value for entry in imported.entries}), tmp_path / "backups")
    after = ConfigDocument(place.path, place.format).get(place.root)
    if isinstance(before, dict):
        before = {key: item for key, item in before.items() if (client, key) not in INSIDE}
    # `$VAR` is written as `${VAR}`, which says the same to all who know both.
    assert after == json.loads(re.sub(r"\$([A-Z_]+)\b", r"${\1}", json.dumps(before)))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_unsupported_on_the_way_back(name, tmp_path):
    place = placed(tmp_path, name)
    imported = read_client_file(place)
    export = plan_export(place, {entry.name: entry.value for entry in imported.entries})
    assert export.unsupported == ()


@pytest.mark.parametrize("name", NAMES)
def test_entries_have_file_and_line(name, tmp_path):
    place = placed(tmp_path, name)
    lines = place.path.read_text().splitlines()
    for entry in read_client_file(place).entries:
        assert entry.file == place
        assert entry.line is not None
        assert entry.name in lines[entry.line - 1] or "[[" in lines[entry.line - 1]


def parts(value):
    """The fields of an entry, those of maps one by one."""
    for field, item in value.items():
        if field in ("env", "headers", "tools", "auth"):
            yield from ((f"{field}.{key}", inner) for key, inner in item.items())
        elif field != "extras":
            yield field, item


def fields_lost(export, client, server):
    said = [loss.message for loss in export.unsupported if loss.server == server]
    title = CLIENTS[client].title
    return {what.removeprefix(f"{title} does not support ").removesuffix(f" of {server}") for what in said}


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """All entries of all files, in one map."""
    folder = tmp_path_factory.mktemp("all")
    files = {name: read_client_file(placed(folder / name, name)) for name in NAMES}
    return {f"{name}-{entry.name}": to_portable(entry) for name, file in files.items() for entry in file.entries}


@pytest.mark.parametrize("client", CLIENTS)
def test_fields_lost_in_another_client_are_reported(client, everything, tmp_path):
    place = place_of(tmp_path, client, "user")
    export = plan_export(place, everything)
    carry_out(place, export, tmp_path / "backups")
    switch_on(place, *everything)
    back = {entry.name: dict(parts(to_portable(entry))) for entry in read_client_file(place).entries}
    for server, value in everything.items():
        lost = fields_lost(export, client, server)
        if server not in back:
            assert lost & {"url", "command", "enabled"}
            continue
        for field, wanted in parts(value):
            if not {field, field.split(".")[0]} & lost and wanted != [] and (field, wanted) != ("enabled", True):
                assert back[server].get(field) == wanted, (server, field)
