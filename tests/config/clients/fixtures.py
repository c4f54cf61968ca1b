"""A file of every client, of the shape that its documents give, put where the client would look for it."""

from __future__ import annotations

from pathlib import Path

from toolway.config.clients import ClientConfigFile, find_client_files

FILES = sorted((Path(__file__).parent / "files").iterdir())
NAMES = [path.name for path in FILES]


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
