"""Deployment files: chart, compose file and image, compared with the options and variables of the code.

`make deploy` also checks them with helm and the schemas of Kubernetes and compose."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # a few files of ours are read with it

from toolway._version import __version__
from toolway.cli.app import app
from toolway.cluster import options
from toolway.config.loader import load_file
from toolway.config.locations import STATE_FOLDER_VARIABLE
from toolway.gateway.gateway import DRAIN_DELAY_S, DRAIN_TIMEOUT_S
from toolway.gateway.router import _HEALTH_PATHS

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "toolway"
VALUES = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
KUBERNETES = ("1.25", "1.37")  # the oldest that the chart allows, and the newest whose schemas there are
TOOLS = Path(os.environ.get("TOOLWAY_DEPLOY", ROOT / ".deploy")).resolve() / "bin"
OURS = {
    *options.ENV_VARIABLES.values(),
    options.CLUSTER_KEY_VARIABLE,
    options.DATABASE_FILE_VARIABLE,
    STATE_FOLDER_VARIABLE,
}
needs_tools = pytest.mark.skipif(not (TOOLS / "helm").exists(), reason="helm is not installed: make deploy")


def run(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, **more)


def options_of_serve() -> set[str]:
    import typer

    command = typer.main.get_command(app).get_command(None, "serve")  # type: ignore[attr-defined] # a group of ours
    return {name for param in command.params for name in param.opts}


def compose(file: str = "compose.yaml") -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / file).read_text())
    return found


def strings(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from (key, *strings(value))
    elif isinstance(tree, list):
        for value in tree:
            yield from strings(value)
    elif isinstance(tree, str):
        yield tree


# -- our words --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file", ["compose.yaml", "Dockerfile", "helm/toolway/templates/deployment.yaml", "toolway.service"]
)
def test_every_set_variable_is_read(file: str) -> None:
    named = set(re.findall(r"\bTOOLWAY_[A-Z_]*[A-Z]\b", (DEPLOY / file).read_text()))
    assert named and named <= OURS


def test_gateways_start_with_existing_options() -> None:
    chart = re.search(r"args: \[serve, (.*)\]", (CHART / "templates/deployment.yaml").read_text())
    assert chart is not None
    starts = [chart[1].split(", "), *(s["command"][1:] for n, s in compose()["services"].items() if "gateway" in n)]
    starts.append(compose("compose.single.yaml")["services"]["gateway"]["command"][1:])
    unit = re.search(r"^ExecStart=\S+/toolway serve (.*)$", (DEPLOY / "toolway.service").read_text(), re.MULTILINE)
    assert unit is not None
    starts.append(unit[1].split())
    assert len(starts) == 6
    for words in starts:
        assert {word for word in words if word.startswith("--")} <= options_of_serve()


def test_probes_use_public_paths() -> None:
    asked = set(re.findall(r"path: (/\w+z),", (CHART / "templates/deployment.yaml").read_text()))
    for file in ("compose.yaml", "compose.single.yaml", "Dockerfile"):
        found = set(re.findall(r"8765(/\w+)'", (DEPLOY / file).read_text()))
        assert found, file
        asked |= found
    assert asked == _HEALTH_PATHS


def test_chart_version_and_schema_match() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)

    def compared(values: dict[str, Any], schema: dict[str, Any], where: str) -> None:
        known = schema["properties"].keys() - ({"global"} if not where else set())
        assert values.keys() == known, where
        for name, value in values.items():
            if "properties" in schema["properties"][name] and name != "config":
                compared(value, schema["properties"][name], f"{where}.{name}")

    schema = json.loads((CHART / "values.schema.json").read_text())
    compared(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "")


def test_grace_period_is_long_enough() -> None:
    least = DRAIN_DELAY_S + DRAIN_TIMEOUT_S
    assert yaml.safe_load((CHART / "values.yaml").read_text())["terminationGracePeriodSeconds"] > least
    for name, service in compose()["services"].items():
        if "gateway" in name:
            assert int(service["stop_grace_period"].removesuffix("s")) > least
    single = compose("compose.single.yaml")["services"]["gateway"]
    assert int(single["stop_grace_period"].removesuffix("s")) > least
    unit = re.search(r"^TimeoutStopSec=(\d+)$", (DEPLOY / "toolway.service").read_text(), re.MULTILINE)
    assert unit is not None and int(unit[1]) > least


def test_containers_are_rootless_and_read_only() -> None:
    gateways = [each for name, each in compose()["services"].items() if "gateway" in name]
    for service in (*gateways, compose("compose.single.yaml")["services"]["gateway"]):
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert "uid=" not in str(service["tmpfs"]), "podman refuses the option"
    last_stage = (DEPLOY / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert "USER 1000:1000" in last_stage and "HEALTHCHECK" in last_stage and "pip install" not in last_stage


def test_build_tools_are_not_in_the_image() -> None:
    """The image has the packages of image.txt, and its list of components is made from them."""
    pins = {file: (ROOT / "requirements" / file).read_text() for file in ("build.txt", "image.txt")}
    assert [file for file, text in pins.items() if "\nhatchling==" in text] == ["build.txt"]


def test_image_script_names_the_missing_program(tmp_path: Path) -> None:
    result = run(sys.executable, ROOT / "scripts" / "image.py", env={"PATH": str(tmp_path)})
    assert result.returncode == 0 and result.stdout.startswith("skipped, no image was built: buildah, podman")


def test_compose_gateways_accept_each_others_names() -> None:
    loaded = load_file(DEPLOY / "mcp.json")
    gateways = {name: each for name, each in compose()["services"].items() if "gateway" in name}
    assert loaded.issues == () and set(loaded.gateway.hosts) == set(gateways)
    for name, service in gateways.items():
        environ = {**service["environment"], options.CLUSTER_KEY_VARIABLE: "00" * 32}
        del environ["TOOLWAY_CLUSTER_KEY_FILE"]
        found = options.read_options(options.Flags(), environ)
        assert found is not None and (found.node_name, found.advertise_url) == (name, f"http://{name}:8765")


def test_all_files_of_the_image_exist() -> None:
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY") and "--from=" not in line:
            assert all((ROOT / source).exists() for source in line.split()[1:-1]), line


def test_guide_names_existing_options_variables_and_values() -> None:
    guide = (ROOT / "docs" / "cluster" / "overview.md").read_text()
    table = re.findall(r"^\| `(--[a-z-]+)` \| (.*?) \|", guide, re.MULTILINE)
    serve = options_of_serve()
    assert {option for option, _ in table} <= serve and len(table) == len(options.ENV_VARIABLES)
    named = {variable for _, cell in table for variable in re.findall(r"TOOLWAY_\w+", cell)}
    assert named == OURS - {STATE_FOLDER_VARIABLE}
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for part, name in re.findall(r"--set (\w+)\.(\w+)=", guide):
        assert name in values[part]


# -- by those who read them -------------------------------------------------------------------------------------------


def rendered(values: str, *more: str) -> str:
    made = run(TOOLS / "helm", "template", "tw", CHART, "-n", "tools", "-f", CHART / "ci" / f"{values}.yaml", *more)
    assert made.returncode == 0, made.stderr
    return made.stdout


def objects(text: str) -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(text) if each}


@needs_tools
@pytest.mark.parametrize("values", VALUES)
def test_helm_lint_accepts_the_chart(values: str) -> None:
    result = run(TOOLS / "helm", "lint", "--strict", CHART, "-f", CHART / "ci" / f"{values}.yaml")
    assert result.returncode == 0, result.stdout


@needs_tools
@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", VALUES)
def test_rendered_chart_is_valid_for_kubernetes(values: str, version: str, tmp_path: Path) -> None:
    text = rendered(values)
    (tmp_path / "made.yaml").write_text(text)
    result = run(TOOLS / "kubernetes-validate", "-k", version, "--strict", tmp_path / "made.yaml")
    assert result.returncode == 0, result.stdout + result.stderr
    (tmp_path / "wrong.yaml").write_text(text.replace("containerPort:", "containerPrt:"))
    assert run(TOOLS / "kubernetes-validate", "-k", version, "--strict", tmp_path / "wrong.yaml").returncode != 0


@needs_tools
def test_config_file_of_the_chart_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    for document in yaml.safe_load_all(rendered("all")):
        if document and "mcp.json" in document.get("stringData", {}):
            (tmp_path / "mcp.json").write_text(document["stringData"]["mcp.json"])
    loaded = load_file(tmp_path / "mcp.json")
    assert (loaded.issues, set(loaded.servers)) == ((), {"time", "docs"})
    named = {"other.example", "tools.internal", "tools.example", "tw-toolway", "tw-toolway.tools.svc"}
    assert named < set(loaded.gateway.hosts)


@needs_tools
def test_pod_environment_configures_a_node(tmp_path: Path) -> None:
    pod = objects(rendered("all"))["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    environ = {each["name"]: each.get("value", "tw-toolway-6d4cf56db6-x2xkz") for each in pod["env"]}
    mounts = {mount["mountPath"] for mount in pod["volumeMounts"]}
    assert str(Path(environ.pop("TOOLWAY_NATS_CREDENTIALS")).parent) in mounts
    environ["TOOLWAY_INSECURE_NATS"] = "1"  # instead of those credentials, which are not here
    for name, text in (("DATABASE_FILE", "postgresql://db/x"), ("CLUSTER_KEY_FILE", "00" * 32)):
        assert str(Path(environ[f"TOOLWAY_{name}"]).parent) in mounts
        (tmp_path / name).write_text(text)
        environ[f"TOOLWAY_{name}"] = str(tmp_path / name)
    found = options.read_options(options.Flags(), environ)
    assert found is not None and found.nats_urls == ("nats://a:4222", "nats://b:4222")
    assert (found.cluster_name, found.tenant, found.capacity, found.labels) == (
        "blue",
        "acme",
        200,
        ("gpu", "region=eu"),
    )
    assert (found.node_name, found.advertise_url) == ("tw-toolway-6d4cf56db6-x2xkz", None)


@needs_tools
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("replica=3", "replica"),
        ("nats.url=http://x", "nats"),
        ("cluster.tenant=A B", "tenant"),
        ("database.existingSecret=", "database.existingSecret, or database.url"),
        ("cluster.existingSecret=", "toolway cluster keygen"),
        ("nats.url=", "nats.url"),
    ],
)
def test_invalid_chart_values_are_rejected(given: str, said: str) -> None:
    minimal = CHART / "ci" / "minimal.yaml"
    result = run(TOOLS / "helm", "template", "tw", CHART, "-f", minimal, "--set", given)
    assert result.returncode != 0 and said in result.stderr


@needs_tools
def test_compose_files_are_valid(tmp_path: Path) -> None:
    check = (TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec")
    result = run(*check, DEPLOY / "compose.yaml", DEPLOY / "compose.single.yaml")
    assert result.returncode == 0, result.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((DEPLOY / "compose.yaml").read_text().replace("healthcheck:", "healthchek:"))
    assert run(*check, wrong).returncode != 0


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TOOLWAY_LONG") != "1", reason="installs an image's packages anew: make deploy")
@pytest.mark.timeout(1500)  # next to other checks, an installation takes minutes
def test_image_steps_build_a_gateway(tmp_path: Path) -> None:
    """Without a container engine: the first stage, with a folder instead of /src and another one instead of /opt."""
    made, source = tmp_path / "opt" / "toolway", tmp_path / "src"
    source.mkdir()
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    first_stage = (DEPLOY / "Dockerfile").read_text().rpartition("\nFROM ")[0].replace("\\\n", "")
    for line in first_stage.splitlines():
        if line.startswith("COPY"):
            *froms, to = line.split()[1:]
            for each in froms:
                into = source / (f"{to}{Path(each).name}" if to.endswith("/") else to)
                copy = shutil.copytree if (ROOT / each).is_dir() else shutil.copy
                into.parent.mkdir(parents=True, exist_ok=True)
                copy(ROOT / each, into)
        elif line.startswith("RUN"):
            words = line.removeprefix("RUN ").replace("/opt/", f"{tmp_path}/opt/")
            result = run("sh", "-c", words, cwd=source, env=environ)
            assert result.returncode == 0, result.stderr
    shown = run(made / "bin" / "toolway", "serve", "--help", cwd=tmp_path)
    assert "--cluster" in shown.stdout
    loaded = "import nats, sqlalchemy, alembic, psycopg, aiosqlite, uvloop; import toolway.cluster.db.engine"
    assert run(made / "bin" / "python", "-c", loaded, cwd=tmp_path).returncode == 0
    assert run(made / "bin" / "toolway", "explain", "E-RECORD", cwd=tmp_path).returncode == 0
