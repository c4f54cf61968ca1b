"""The requests of the load generator match what a client of the era sends."""

import json

import pytest

from bench import wire

ENDPOINT = wire.Endpoint(8000, "/mcp", {"Authorization": "Bearer x"})


def parts(request):
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), json.loads(body) if body else None, len(body)


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("big", [False, True])
def test_content_length_is_correct_and_api_key_is_sent(era, big):
    _, headers, message, size = parts(wire.call(ENDPOINT, era, "s00__echo", big))
    assert headers["Content-Length"] == str(size)
    assert headers["Authorization"] == "Bearer x"
    assert message["params"]["name"] == "s00__echo"


def test_modern_request_needs_no_initialization():
    _, headers, message, _ = parts(wire.call(ENDPOINT, "modern", "s00__echo"))
    assert (headers["Mcp-Method"], headers["Mcp-Name"]) == ("tools/call", "s00__echo")
    assert message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == headers["MCP-Protocol-Version"]
    assert wire.hellos(ENDPOINT, "modern") == []


def test_legacy_client_initializes_first():
    methods = [parts(hello)[2]["method"] for hello in wire.hellos(ENDPOINT, "legacy")]
    assert methods == ["initialize", "notifications/initialized"]
    assert "_meta" not in parts(wire.call(ENDPOINT, "legacy", "echo"))[2]["params"]


def test_rest_clients_name_the_tool_in_the_path():
    first, _, message, _ = parts(wire.call(wire.Endpoint(1, "/s00"), "rest", "echo"))
    assert first == "POST /s00/echo HTTP/1.1"
    assert message == {"text": wire.TEXT}


def test_expected_text_is_part_of_sent_text():
    assert wire.expected("echo") in wire.TEXT
    assert 180 <= len(wire.TEXT) <= 260
