"""Client for the conformance suite: a hub with one server that performs the requested scenario.

The suite passes the URL as the last argument, the scenario in MCP_CONFORMANCE_SCENARIO and, for some scenarios, more
data in MCP_CONFORMANCE_CONTEXT.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from toolway import Hub, ToolwayError

NAME = "suite"
CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"  # the URL that the suite expects
Json = dict[str, Any]
Scenario = Callable[[Hub, Json], Awaitable[None]]


def main() -> int:
    logging.basicConfig(level=logging.WARNING)
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context: Json = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    perform = SCENARIOS.get(scenario, _list_and_call)
    try:
        asyncio.run(_run_scenario(perform, sys.argv[-1], context))
    except ToolwayError as error:
        print(f"{scenario}: {error}", file=sys.stderr)
        return 1
    return 0


async def _run_scenario(perform: Scenario, url: str, context: Json) -> None:
    server: Json = {"url": url, "auth": await _auth(url, context)}
    if perform is _call_from_context:
        server["validateArguments"] = False  # the suite sends null where its own tool's schema allows no null
    roots = ["file:///conformance"]
    hub = Hub(
        {NAME: server},
        elicitation_callback=_accept,
        sampling_callback=_sample,
        list_roots_callback=roots,
        login_callback=_log_in,
        catalog_storage=None,
    )
    async with hub:
        await hub.wait_ready(NAME)
        await perform(hub, context)


# -- client identity --------------------------------------------------------------------------------------------------


async def _auth(url: str, context: Json) -> Json:
    """Return the auth settings of the client that the suite has registered, if any."""
    auth: Json = {"type": "oauth", "clientMetadataUrl": CLIENT_METADATA}
    if "client_id" in context:
        auth |= {"clientId": context["client_id"], "issuer": context.get("issuer") or await _issuer(url)}
    if "client_secret" in context:
        auth["clientSecret"] = context["client_secret"]
    if "private_key_pem" in context:
        auth |= {"privateKey": context["private_key_pem"], "algorithm": context["signing_algorithm"]}
    if os.environ["MCP_CONFORMANCE_SCENARIO"].startswith("auth/client-credentials"):
        auth["grant"] = "client_credentials"
    return auth


async def _issuer(url: str) -> str:
    """Discover the issuer. You would know it; the suite passes it only to some scenarios."""
    async with httpx2.AsyncClient() as client:
        metadata = httpx2.URL(url).join("/.well-known/oauth-protected-resource/mcp")
        issuer: str = (await client.get(metadata)).json()["authorization_servers"][0]
        return issuer


async def _log_in(server: str, url: str) -> str:
    """Follow the login URL once: the suite's authorization servers redirect without user interaction."""
    async with httpx2.AsyncClient() as client:
        return (await client.get(url, follow_redirects=False)).headers["location"]


# -- callbacks for server requests ------------------------------------------------------------------------------------


def _accept(server: str, params: Json) -> Json:
    """Accept with the default values of the form; a field without a default gets a value of its type."""
    fields: Json = params.get("requestedSchema", {}).get("properties", {})
    return {"action": "accept", "content": {name: _value(field) for name, field in fields.items()}}


def _value(field: Json) -> Any:
    return field["default"] if "default" in field else _EMPTY.get(field.get("type", ""), "")


_EMPTY: Json = {"boolean": True, "integer": 0, "number": 0, "array": []}


def _sample(server: str, params: Json) -> Json:
    content = {"type": "text", "text": "as you say"}
    return {"role": "assistant", "content": content, "model": "none", "stopReason": "endTurn"}


# -- scenarios --------------------------------------------------------------------------------------------------------


async def _list(hub: Hub, context: Json) -> None:
    await hub.list_tools(server=NAME)


async def _list_and_call(hub: Hub, context: Json) -> None:
    """Call every tool with empty values for its required arguments."""
    for tool in await hub.list_tools(server=NAME):
        schema = tool.input_schema
        fields = schema.get("properties", {})
        await hub.call_tool(
            tool.qualified_name,
            {name: _value(fields.get(name, {})) for name in schema.get("required", [])},
            raise_on_error=False,
        )


async def _read_everything(hub: Hub, context: Json) -> None:
    await _list_and_call(hub, context)
    for resource in await hub.list_resources(server=NAME):
        await hub.read_resource(resource.uri, server=NAME)
    for prompt in await hub.list_prompts(server=NAME):
        await hub.get_prompt(prompt.qualified_name)


async def _call_from_context(hub: Hub, context: Json) -> None:
    for call in context["toolCalls"]:
        await hub.call_tool(f"{NAME}.{call['name']}", call["arguments"], raise_on_error=False)


async def _call_concurrently(hub: Hub, context: Json) -> None:
    """Call tools that need client input and one that does not concurrently."""
    names = ("test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type")
    await asyncio.gather(*(hub.call_tool(f"{NAME}.{name}", raise_on_error=False) for name in names))


async def _echo_schema(hub: Hub, context: Json) -> None:
    schemas = {tool.name: tool.input_schema for tool in await hub.list_tools(server=NAME)}
    await hub.call_tool(
        f"{NAME}.json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]}, raise_on_error=False
    )


SCENARIOS: dict[str, Scenario] = {
    "initialize": _list,
    "request-metadata": _list,
    "json-schema-ref-no-deref": _list,
    "json-schema-2020-12-preservation": _echo_schema,
    "http-standard-headers": _read_everything,
    "http-custom-headers": _call_from_context,
    "sep-2322-client-request-state": _call_concurrently,
}


if __name__ == "__main__":
    sys.exit(main())
