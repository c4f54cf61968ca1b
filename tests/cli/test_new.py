"""`toolway new`: the project that it writes works at once, and no existing file is changed."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolway.cli.new_server import TEMPLATES, NewServer, create_project
from toolway.config.loader import load_file

pytestmark = pytest.mark.promise("C2")


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a module of this environment in a project, as its user would."""
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@contextmanager
def serving(folder: Path, package: str):
    """Run the server of an HTTP project, and yield its port."""
    environment = {**os.environ, f"{package.upper()}_PORT": "0"}
    command = [sys.executable, "-m", package]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(
                found[1] for line in process.stderr if (found := re.search(r"running on http://\S+:(\d+)", line))
            )
        finally:
            process.terminate()


@pytest.fixture(params=["stdio", pytest.param("http", marks=pytest.mark.slow)])
def made(request, machine):
    http = request.param == "http"
    result = machine.toolway("new", "my-notes", *(["--http"] if http else []), "--json")
    assert result.exit_code == 0, result.output
    return http, machine.project / "my-notes", json.loads(result.stdout)


def test_generated_tests_pass(made):
    _, folder, _ = made
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (folder / "notes").exists()


def test_doctor_finds_no_problem(made):
    http, folder, document = made
    if http:
        with serving(folder, document["package"]) as port:
            done = run(folder, "toolway.cli", "doctor", "--json", **{f"{document['package'].upper()}_PORT": port})
    else:
        done = run(folder, "toolway.cli", "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["state"], [subject["name"] for subject in report["subjects"]]) == ("ok", [".mcp.json", "my-notes"])


@pytest.mark.slow
def test_generated_project_passes_ruff_and_mypy(made, tmp_path_factory):
    _, folder, _ = made
    cache = str(tmp_path_factory.getbasetemp().parent / "mypy")  # both projects use the same libraries
    for words in (("ruff", "format", "--check", "."), ("ruff", "check", "."), ("mypy", "--strict", ".")):
        done = run(folder, *words, MYPY_CACHE_DIR=cache)
        assert done.returncode == 0, done.stdout + done.stderr


def test_json_lists_files_entry_and_next_steps(made):
    http, folder, document = made
    assert document["files"] == sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    assert (document["server"], document["folder"], document["package"]) == ("my-notes", str(folder), "my_notes_server")
    assert json.loads(Path(document["config"]).read_text()) == {"mcpServers": {"my-notes": document["entry"]}}
    assert document["next"][0] == "cd my-notes" and "toolway doctor" in document["next"]
    assert ("url" in document["entry"]) is http
    loaded = load_file(folder / ".mcp.json")
    assert loaded.issues == () and loaded.servers["my-notes"].transport == ("http" if http else "stdio")


def test_output_shows_entry_and_next_steps(machine):
    result = machine.toolway("new", "my-notes")
    assert json.loads(result.stdout) == {
        "my-notes": {"command": sys.executable, "args": ["-m", "my_notes_server"]},
    }
    assert "cd my-notes" in result.stderr and "toolway doctor" in result.stderr


def test_new_entry_is_trusted_but_a_change_is_not(machine):
    machine.toolway("new", "my-notes", "--dir", ".")
    assert "my-notes" in machine.toolway("config", "--json").stdout
    file = machine.project / ".mcp.json"
    file.write_text(file.read_text().replace("my_notes_server", "other"))
    assert "toolway trust" in machine.toolway("config", "validate").output


@pytest.mark.parametrize("name", ["Notes", "my_notes", "a b", "../up", "-x", "x-", "", "a" * 65, "ü"])
def test_invalid_name_is_rejected_with_suggestion(machine, name):
    result = machine.toolway("new", "--json", "--", name)
    error = json.loads(result.stdout)["error"]
    assert (error["code"], result.exit_code) == ("E-CONFIG-NAME", 3)
    assert error["hint"].startswith("call it ")
    assert list(machine.project.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("notes", "notes_server"),
        ("notes-server", "notes_server"),
        ("my-own-notes", "my_own_notes_server"),
        ("json", "json_server"),
        ("class", "class_server"),
        ("mcp", "mcp_server"),
        ("3d-print", "server_3d_print"),
    ],
)
def test_package_name_is_importable_and_shadows_no_module(name, package):
    assert NewServer(name).package == package
    assert package.isidentifier()


@pytest.mark.parametrize("http", [False, True])
@pytest.mark.parametrize("name", ["a", "x" * 64, "3d-print"])
def test_every_name_renders_valid_files(name, http):
    for path, text in NewServer(name, http).render().items():
        assert "{{" not in text, path
        if path.endswith(".py"):
            compile(text, path, "exec")
        if path.endswith(".json"):
            json.loads(text)


def test_guide_names_every_file():
    guide = (Path(__file__).resolve().parents[2] / "docs/howto/new-server.md").read_text()
    for path in NewServer("my-notes", http=True).render():
        assert f"`{path}`" in guide or path.startswith("tests/") or path.endswith("__init__.py"), path


def test_every_template_is_used():
    rendered = [*NewServer("a").render().values(), *NewServer("a", http=True).render().values()]
    for template in TEMPLATES.iterdir():
        first = template.read_text().splitlines()[0].partition("{{")[0]
        assert any(text.startswith(first) for text in rendered), template.name


def test_existing_files_are_never_changed(machine):
    (machine.project / "my-notes").mkdir()
    kept = machine.project / "my-notes/README.md"
    kept.write_text("mine")
    result = machine.toolway("new", "my-notes", "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"]) == (2, "E-USAGE")
    assert "--dir" in error["hint"]
    assert [path.name for path in kept.parent.iterdir()] == ["README.md"] and kept.read_text() == "mine"


def test_empty_folder_is_used_but_not_a_link_or_file(machine, tmp_path):
    empty = machine.project / "empty"
    empty.mkdir()
    assert machine.toolway("new", "a", "--dir", str(empty)).exit_code == 0
    (machine.project / "link").symlink_to(tmp_path / "elsewhere")
    (machine.project / "file").write_text("")
    for name in ("link", "file"):
        assert machine.toolway("new", "a", "--dir", name).exit_code == 2
    assert not (tmp_path / "elsewhere").exists()


def test_unwritable_folder_is_an_error_with_hint(machine):
    (machine.project / "file").write_text("")
    result = machine.toolway("new", "a", "--dir", "file/below")
    assert (result.exit_code, "--dir" in result.stderr) == (2, True)


def test_files_are_written_only_below_the_folder(tmp_path, machine):
    create_project(NewServer("a", http=True), tmp_path / "deep/er")
    assert all(path.is_relative_to(tmp_path / "deep/er") for path in tmp_path.rglob("*.py"))
