"""A file of every client, of the shape that its documents give, put where the client would look for it."""

from __future__ import annotations

from pathlib import Path

import yaml  # type: ignore[import-untyped]

from toolway.config.clients import ClientConfigFile, ExportPlan, find_client_files
from toolway.config.editing.document import ConfigDocument, apply_edit

FILES = sorted((Path(__file__).parent / "files").iterdir())
NAMES = [path.name for path in FILES]
EDITED = [name for name in NAMES if not name.endswith(".yaml")]


def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A home and a project in it."""
    home, project = tmp_path / "home", tmp_path / "home" / "code" / "project"
    (project / ".git").mkdir(parents=True, exist_ok=True)
    return home, project


def places(tmp_path: Path) -> list[ClientConfigFile]:
    home, project = folders(tmp_path)
    return find_client_files({"HOME": str(home)}, project, "linux")


def place_of(tmp_path: Path, client: str, scope: str) -> ClientConfigFile:
    return next(place for place in places(tmp_path) if (place.client, place.scope) == (client, scope))


def switch_on(place: ClientConfigFile, *names: str) -> None:
    """A server of a Docker catalog is there when another file says so."""
    if place.client == "docker-mcp":
        lines = "".join(f'  "{name}": {{ref: ""}}\n' for name in names)
        place.path.parent.parent.joinpath("registry.yaml").write_text(f"registry:\n{lines}")


def placed(tmp_path: Path, name: str) -> ClientConfigFile:
    """The fixture of that name, in its place."""
    client, scope, _ = name.split(".")
    path = place_of(tmp_path, client, scope).path
    text = next(file for file in FILES if file.name == name).read_text()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("@DIRECTORY@", str(folders(tmp_path)[1])))
    switch_on(place_of(tmp_path, client, scope), "github", "stripe", "events", "new")
    return place_of(tmp_path, client, scope)


def carry_out(place: ClientConfigFile, plan: ExportPlan, backups: Path) -> None:
    """Make the edit of a plan; do by hand what a user does with the lines for a YAML file."""
    apply_edit(plan.edit, backups)
    if plan.snippet is None:
        return
    (root,) = place.root
    value = ConfigDocument(place.path, place.format).value
    pasted = (yaml.safe_load(plan.snippet.text()) or {}).get(root, {})
    found = value.get(root)
    if isinstance(found, list) or isinstance(pasted, list):
        gone = {*plan.snippet.removed, *(each["name"] for each in pasted)}
        value[root] = [each for each in found or [] if each["name"] not in gone] + list(pasted)
    else:
        value[root] = {key: item for key, item in (found or {}).items() if key not in plan.snippet.removed} | pasted
    place.path.parent.mkdir(parents=True, exist_ok=True)
    place.path.write_text(yaml.safe_dump(value, sort_keys=False))
