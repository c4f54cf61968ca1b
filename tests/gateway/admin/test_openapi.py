"""`GET /admin/openapi.json`: every route is described, and every GET replies as described."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.gateway.edge_lab import Edge, edge
from toolway.config.loader import load_file
from toolway.events import StateChanged
from toolway.gateway.admin.config import ConfigHistory
from toolway.gateway.admin.openapi import all_schemas
from toolway.gateway.admin.routes import all_routes
from toolway.gateway.cluster_hooks import ClusterHooks

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


NODE = {
    "id": "one-1",
    "address": "",
    "version": "1",
    "capacity": 10,
    "labels": [],
    "state": "ready",
    "draining": False,
    "lease": 9.5,
    "seen": 0.5,
}


class OneNode(ClusterHooks):
    """Hooks of the only node of a cluster, and its admin operations."""

    @property
    def admin(self):
        return self

    async def list_nodes(self):
        nodes = [{**NODE, "servers": 2}]
        return {
            "cluster": "c",
            "tenant": "t",
            "node": "one-1",
            "nats": True,
            "nodes": nodes,
            "unowned": 0,
            "rejected": [],
        }

    async def get_node(self, name):
        return {**NODE, "owns": [{"tenant": "t", "server": "a", "instance": 0}], "more": False}

    async def owners_by_server(self):
        return {"a": ("one-1",)}


def test_every_route_is_described_once_with_existing_schemas():
    assert len({(route.method, route.path) for route in all_routes()}) == len(all_routes())
    assert {name for route in all_routes() for name in (route.response, route.body) if name} <= all_schemas().keys()


async def test_openapi_document_names_every_route(tmp_path: Path):
    async with edge(tmp_path) as found:
        description = json.loads((await found.ask("GET", "/admin/openapi.json")).body)
    described = {(method.upper(), path) for path, methods in description["paths"].items() for method in methods}
    assert description["openapi"] == "3.1.0"
    assert described == {(route.method, route.path) for route in all_routes()}
    parameters = description["paths"]["/admin/tools/{server}/{tool}"]["get"]["parameters"]
    assert [(each["name"], each["in"]) for each in parameters] == [("server", "path"), ("tool", "path")]
    for schema in description["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


@pytest.mark.parametrize("in_cluster", [False, True])
async def test_every_get_replies_as_described(tmp_path: Path, in_cluster: bool):
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"a": {"url": "http://127.0.0.1:1", "color": "red"}}}))
    loaded = load_file(str(file))
    history = ConfigHistory(lambda: loaded, _reload, os.environ)
    async with edge(tmp_path, config_history=history, cluster=OneNode() if in_cluster else ClusterHooks()) as found:
        params = await _make_history(found)
        description = json.loads((await found.ask("GET", "/admin/openapi.json")).body)
        for route in all_routes():
            if route.method == "GET":
                path = route.path.format(**params)
                answer = await found.ask("GET", path)
                expected = route.response
                # tests/parts/workflows/test_gateway.py has runs, tests/parts/agents/test_admin.py runs of agents,
                # tests/parts/approvals/test_admin.py requests for approval
                absent = ("/admin/runs/", "/admin/agents/", "/admin/approvals/", "/admin/approval-links/")
                is_absent = "diff" in path or path.startswith(absent)
                if (route.cluster == "required" and not in_cluster) or is_absent:
                    assert answer.status in (404, 422)
                    expected = "Error"
                else:
                    assert answer.status == 200, (path, answer.body)
                _check(description, expected, json.loads(answer.body), path)
        errors = [await found.ask("GET", "/admin/none"), await found.ask("PUT", "/admin/servers/x", {"url": 1})]
        for answer in errors:
            assert answer.status >= 400
            _check(description, "Error", json.loads(answer.body), "an error")


async def _reload() -> Json:
    return {"changed": {}}


async def _make_history(found: Edge) -> dict[str, str]:
    """Make every list have an entry. Return the parameters of paths."""
    await found.call("a__echo", {"text": "x"})
    await found.call("a__nothing", {})
    found.key("both")
    found.hub.emit(StateChanged("b", "starting", "failed", "exit code 1"))
    await found.ask("POST", "/admin/breakers/b/echo/trip")
    [call] = json.loads((await found.ask("GET", "/admin/calls")).body)["calls"]
    return {"name": "a", "server": "a", "tool": "echo", "id": call["id"], "version": "1", "link": "A"}


def _check(description: Json, name: str, reply: Any, path: str) -> None:
    """Check a reply against its shape, in which no other keys are allowed."""
    components = deepcopy(description["components"])
    _forbid_more(components["schemas"])
    schema = {"$ref": f"#/components/schemas/{name}", "components": components}
    problems = [f"{path}: {each.instance_path} {each.message}" for each in jsonschema_rs.iter_errors(schema, reply)]
    assert problems == []


def _forbid_more(value: Any) -> None:
    if isinstance(value, dict):
        if "properties" in value:
            value.setdefault("additionalProperties", False)
        for each in value.values():
            _forbid_more(each)
    elif isinstance(value, list):
        for each in value:
            _forbid_more(each)
