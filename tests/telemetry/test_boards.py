"""Grafana dashboard and alert rules use only existing metrics; also checked by Prometheus if it is installed."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml  # type: ignore[import-untyped]  # a few lines of ours are read with it
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.gateway.edge_lab import Edge, edge
from toolway.telemetry.metrics import Metrics
from toolway.telemetry.prometheus import all_metrics

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
BOARD = ROOT / "deploy" / "grafana" / "toolway.json"
RULES = ROOT / "deploy" / "prometheus" / "toolway.rules.yml"
NAME = re.compile(r"\b(?:toolway|process)_\w+")
MATCHED = re.compile(r"\b((?:toolway|process)_\w+)\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([^)]*)\)")
#: Without a sample until there is such a call or definition, where no audit log is kept, or where the gateway is alone.
SELDOM = (
    "toolway_calls_not_sent_total",
    "toolway_audit_",
    "toolway_cluster_",
    "toolway_workflow_",
    "toolway_definitions_",
    "toolway_approvals_",
)
OF_SCRAPES = {"job", "instance", "le"}  # labels that Prometheus adds, or the format


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in json.loads(BOARD.read_text())["panels"] if panel["type"] != "row")


def queries() -> dict[str, str]:
    """Every query of both files, by where it stands."""
    found = {f"{panel['title']} {target['refId']}": target["expr"] for panel in panels() for target in panel["targets"]}
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return found | {rule["alert"]: rule["expr"] for rule in rules}


def labels_of(metric: str) -> set[str]:
    base = re.sub(r"_(total|bucket|sum|count)$", "", metric)
    known = all_metrics()
    return set(known[base][1]) if base in known else set()


async def busy(found: Edge, metrics: Metrics) -> None:
    """Calls of every kind, so every metric has something to say."""
    found.hub.instrumentation.add_sink(metrics)
    for name, arguments in (("a__echo", {"text": "x"}), ("a__fail", {}), ("b__echo", {"text": "y"})):
        await found.modern("tools/call", {"name": name, "arguments": arguments})
    found.fakes["b"].set_mode("status=503;on=echo;times=1")
    await found.modern("tools/call", {"name": "b__echo", "arguments": {"text": "y"}})
    found.fakes["b"].set_mode("reset_before_response;on=bad")
    await found.modern("tools/call", {"name": "b__bad", "arguments": {}})
    found.hub.servers.trip_breaker("a", "fail")


async def test_every_query_uses_existing_metrics(tmp_path: Path) -> None:
    metrics = Metrics()
    async with edge(tmp_path, metrics=metrics) as found:
        await busy(found, metrics)
        page = (await found.ask("GET", "/metrics")).body.decode()
    offered = {sample.name for family in parse(page) for sample in family.samples}
    declared = {name for family in parse(page) for name in (family.name, f"{family.name}_total")}
    for where, query in queries().items():
        used = NAME.findall(query)
        assert used, where
        for name in used:
            assert name in offered or (name in declared and name.startswith(SELDOM)), where
        for name, matchers in MATCHED.findall(query):
            asked = {re.split(r"[=!~]", each)[0].strip() for each in matchers.split(",")}
            assert asked <= labels_of(name) | OF_SCRAPES, (where, name)
        for names in GROUPED.findall(query):
            known = set().union(*(labels_of(name) for name in used)) | OF_SCRAPES
            assert {name.strip() for name in names.split(",")} <= known, where


def test_every_actionable_metric_is_on_the_board() -> None:
    shown = set(NAME.findall(" ".join(queries().values())))
    bases = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown}
    seldom = {"toolway_server_tools", "toolway_server_connects", "toolway_retries_running", "toolway_calls_overflow"}
    seldom |= {"toolway_server_messages_sent", "toolway_server_messages_received", "toolway_server_uptime_seconds"}
    seldom |= {"toolway_server_tokens"}
    assert all_metrics().keys() - bases <= seldom | {"toolway_gateway_draining"}


def test_panels_do_not_overlap_and_have_unique_names() -> None:
    places = [panel["gridPos"] for panel in panels()]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["title"] for panel in panels()}) == len(list(panels()))


needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus is not installed: apt-get install prometheus",
)


@needs_prometheus
async def test_promtool_accepts_the_rules() -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None
    process = await asyncio.create_subprocess_exec(promtool, "check", "rules", str(RULES))
    assert await process.wait() == 0


@needs_prometheus
async def test_prometheus_scrapes_gateway_and_answers_every_query(tmp_path: Path) -> None:
    metrics = Metrics()
    async with edge(tmp_path, metrics=metrics) as found:
        await busy(found, metrics)
        token = found.keyring.create_key_sync("prometheus", ["/metrics"], False, 0.0)[0]
        async with httpx2.AsyncClient(trust_env=False) as http:
            process, base = await _prometheus(tmp_path, found.port, token)
            try:
                await _scraped_twice(http, base)
                await busy(found, metrics)
                await asyncio.sleep(2.5)
                empty = [where for where, query in queries().items() if not await _answer(http, base, query)]
            finally:
                process.terminate()
                await process.wait()
    # Conditions that are not met have no answer; nothing else is without one.
    alerts = {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    unasked = {"Calls not sent to the server A", "Unwritten audit records A", "Audit failures A", "Audit failures B"}
    unasked |= {"Servers by owner A", *(f"Nodes, leases, NATS {each}" for each in "ABC")}
    unasked |= {"Workflow steps A", *(f"Workflow runs {each}" for each in "ABC")}
    unasked |= {f"Mean duration of workflow runs and steps {each}" for each in "AB"}
    unasked |= {f"Approvals of calls {each}" for each in "AB"}
    assert set(empty) - alerts <= unasked
    assert "ToolwayBreakerOpen" not in empty and "ToolwayOutcomeUnknown" not in empty


async def _prometheus(folder: Path, port: int, token: str) -> tuple[asyncio.subprocess.Process, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = free.getsockname()[1]
    config = folder / "prometheus.yml"
    scrape = {
        "job_name": "toolway",
        "authorization": {"credentials": token},
        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
    }
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
    program = shutil.which("prometheus")
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
        "--log.level=error",
    )
    return process, f"http://127.0.0.1:{own}"


async def _answer(http: httpx2.AsyncClient, base: str, query: str) -> list[Any]:
    plain = query.replace("$__rate_interval", "1m").replace("$server", ".*").replace("$job", ".*")
    answer = (await http.get(f"{base}/api/v1/query", params={"query": plain})).json()
    assert answer["status"] == "success", (query, answer)
    found: list[Any] = answer["data"]["result"]
    return found


async def _scraped_twice(http: httpx2.AsyncClient, base: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if any(float(each["value"][1]) >= 2 for each in await _answer(http, base, "count_over_time(up[1m])")):
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.2)
