"""Attribute names of OpenTelemetry's conventions for MCP and models (GenAI), and Toolway's own attributes.

The conventions are not stable yet, so this is the only file that spells their names:
https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/mcp.md and gen-ai-agent-spans.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from toolway.config.schema import Server

ATTR_METHOD: Final = "mcp.method.name"
ATTR_PROTOCOL_VERSION: Final = "mcp.protocol.version"
ATTR_RESOURCE_URI: Final = "mcp.resource.uri"
ATTR_TOOL: Final = "gen_ai.tool.name"
ATTR_PROMPT: Final = "gen_ai.prompt.name"
ATTR_OPERATION: Final = "gen_ai.operation.name"
OPERATION_EXECUTE_TOOL: Final = "execute_tool"
OPERATION_CHAT: Final = "chat"
OPERATION_INVOKE_AGENT: Final = "invoke_agent"
ATTR_PROVIDER: Final = "gen_ai.provider.name"
ATTR_REQUEST_MODEL: Final = "gen_ai.request.model"
ATTR_RESPONSE_MODEL: Final = "gen_ai.response.model"
ATTR_RESPONSE_ID: Final = "gen_ai.response.id"
ATTR_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
ATTR_CONVERSATION: Final = "gen_ai.conversation.id"
ATTR_TOOL_TYPE: Final = "gen_ai.tool.type"
ATTR_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
ATTR_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
ATTR_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ATTR_CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
ATTR_CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
ATTR_REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
ATTR_REQUEST_ID: Final = "jsonrpc.request.id"
ATTR_TRANSPORT: Final = "network.transport"  # pipe or tcp
ATTR_NETWORK_PROTOCOL: Final = "network.protocol.name"  # http
ATTR_SERVER_ADDRESS: Final = "server.address"
ATTR_SERVER_PORT: Final = "server.port"
ATTR_ERROR_TYPE: Final = "error.type"
ATTR_STATUS_CODE: Final = "rpc.response.status_code"

SERVER_DURATION_METRIC: Final = "mcp.server.operation.duration"
OTEL_BOUNDS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

# Toolway's own attributes
ATTR_CALL_ID: Final = "toolway.call.id"
ATTR_SERVER: Final = "toolway.server"
ATTR_CALLER: Final = "toolway.caller"
ATTR_EXECUTED: Final = "toolway.executed"
ATTR_CERTAINTY: Final = "toolway.certainty"
ATTR_ATTEMPT: Final = "toolway.attempt"
ATTR_ATTEMPTS: Final = "toolway.attempts"
ATTR_SOURCE: Final = "toolway.source"
ATTR_PHASE: Final = "toolway.phase"
ATTR_RUN: Final = "toolway.run"
ATTR_WORKFLOW: Final = "toolway.workflow"
ATTR_STEP: Final = "toolway.step"
ATTR_STATE: Final = "toolway.state"  # of a run or a step

#: Keys in `_meta`, without a prefix: the MCP convention
TRACEPARENT_KEY: Final = "traceparent"
TRACESTATE_KEY: Final = "tracestate"
TRACEPARENT_PATTERN: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
MAX_TRACESTATE_CHARS: Final = 512


#: Names of providers by the conventions, if they differ from those of pydantic-ai.
_PROVIDERS: Final = {
    "google": "gcp.gemini",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "mistral": "mistral_ai",
    "openai-chat": "openai",
    "openai-responses": "openai",
}


class StepSpan(NamedTuple):
    """Name and attributes of the trace span of an agent's run or step, used instead of those for a workflow."""

    name: str
    attributes: Mapping[str, Any]
    is_client: bool = False  # the step asks a remote service
    describe: Callable[[Any], Mapping[str, Any]] | None = None  # attributes that follow from the result


def agent_span(model: str, run: str) -> StepSpan:
    """Return name and attributes for the span of an agent run.

    `model` is provider and model, such as `openai:gpt-5`.
    """
    provider, _, name = model.partition(":")
    return StepSpan(OPERATION_INVOKE_AGENT, _model_attributes(OPERATION_INVOKE_AGENT, provider, name, run))


def chat_span(provider: str, model: str, run: str, describe: Callable[[Any], Mapping[str, Any]]) -> StepSpan:
    """Return name and attributes for the span of one request to a model."""
    attributes = _model_attributes(OPERATION_CHAT, provider, model, run)
    return StepSpan(f"{OPERATION_CHAT} {model}", attributes, True, describe)


def tool_span(tool: str, call_id: str) -> StepSpan:
    """Return name and attributes for the span of a tool call that a model requested."""
    attributes = {ATTR_OPERATION: OPERATION_EXECUTE_TOOL, ATTR_TOOL: tool, ATTR_TOOL_TYPE: "extension"}
    return StepSpan(f"{OPERATION_EXECUTE_TOOL} {tool}", {**attributes, ATTR_TOOL_CALL_ID: call_id})


def _model_attributes(operation: str, provider: str, model: str, run: str) -> dict[str, Any]:
    return {
        ATTR_OPERATION: operation,
        ATTR_PROVIDER: _PROVIDERS.get(provider, provider),
        ATTR_REQUEST_MODEL: model,
        ATTR_CONVERSATION: run,
    }


def span_name(method: str, target: str) -> str:
    """Return the OpenTelemetry span name of a request: MCP method plus tool or prompt name.

    Resource URIs are left out, because span names must have few distinct values.
    """
    return f"{method} {target}" if target and method in ("tools/call", "prompts/get") else method


def request_attributes(method: str, target: str) -> dict[str, str]:
    """Return the span attributes of an MCP request: method, and tool, prompt or resource URI."""
    if method == "tools/call":
        return {ATTR_METHOD: method, ATTR_TOOL: target, ATTR_OPERATION: OPERATION_EXECUTE_TOOL}
    if method == "prompts/get":
        return {ATTR_METHOD: method, ATTR_PROMPT: target}
    if method == "resources/read":
        return {ATTR_METHOD: method, ATTR_RESOURCE_URI: target}
    return {ATTR_METHOD: method}


def server_attributes(server: Server | None, version: str) -> dict[str, Any]:
    """Return the span attributes of a server: protocol version, transport, host and port.

    The rest of the server's URL may contain secrets and is left out.
    """
    found: dict[str, Any] = {ATTR_PROTOCOL_VERSION: version} if version else {}
    if server is not None and server.url:
        return found | _address_attributes(server.url)
    if server is not None and server.command:
        found[ATTR_TRANSPORT] = "pipe"
    return found


@lru_cache(maxsize=1000)
def _address_attributes(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return {}
    return {
        ATTR_TRANSPORT: "tcp",
        ATTR_NETWORK_PROTOCOL: "http",
        ATTR_SERVER_ADDRESS: parts.hostname or "",
        ATTR_SERVER_PORT: port,
    }
