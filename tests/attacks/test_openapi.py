"""Attacks by the document of an HTTP API: the receiver of its credentials."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolway.config.server_entry import parse_entry
from toolway.parts.openapi.bindings import NoBaseUrl, base_url_for
from toolway.parts.openapi.document.loader import load_document
from toolway.parts.openapi.document.models import OperationSelection

Json = dict[str, Any]


def origins(document: Json, **entry: Any) -> dict[str, str]:
    """The origin to which each operation is sent; "" if it is not a tool."""
    server = parse_entry({"type": "openapi", "openapi": {"document": document}, **entry})
    loaded = load_document(
        json.dumps(document).encode(), source="x", selection=OperationSelection(), user_supplied=frozenset()
    )
    found = {}
    for operation in loaded.operations:
        try:
            found[operation.path] = str(base_url_for(operation, loaded, server).target.origin)
        except NoBaseUrl as refused:
            found[operation.path] = "" if "must not get the credentials" in refused.reason else refused.reason
    return found


def document(servers: list[str], **operations: list[str]) -> Json:
    paths = {
        f"/{name}": {
            "get": {
                "operationId": name,
                "servers": [{"url": url} for url in urls],
                "responses": {"200": {"description": ""}},
            }
        }
        for name, urls in operations.items()
    }
    return {
        "openapi": "3.0.3",
        "info": {"title": "t", "version": "1"},
        "servers": [{"url": url} for url in servers],
        "paths": paths,
    }


KEY = {"headers": {"X-Key": "canary-of-the-api"}}


@pytest.mark.attack("W17")
def test_operation_at_another_origin_gets_no_credentials() -> None:
    api = document(["https://api.example/v1"], good=[], same=["https://api.example/v2"], evil=["https://evil.example"])
    assert origins(api, **KEY) == {"/good": "https://api.example", "/same": "https://api.example", "/evil": ""}
    assert set(origins(api, url="https://own.example", **KEY).values()) == {"https://own.example"}
    without = origins(api)  # nothing to steal
    assert without["/evil"] == "https://evil.example"


@pytest.mark.attack("W17")
def test_first_operation_decides_the_origin_of_credentials() -> None:
    api = document([], first=["https://api.example"], other=["https://evil.example"], port=["https://api.example:8443"])
    assert origins(api, **KEY) == {"/first": "https://api.example", "/other": "", "/port": ""}


@pytest.mark.attack("R2-C-5")
@pytest.mark.parametrize(("of_entry", "of_document"), [("X-Api-Key", "X_Api_Key"), ("x_api_key", "X-Api-Key")])
def test_document_cannot_replace_an_entry_header_by_spelling(of_entry: str, of_document: str) -> None:
    """CGI and WSGI servers take `X_Api_Key` and `X-Api-Key` for the same header."""
    names = [of_document, "Content_Length", "X-Other"]
    parameters = [{"name": name, "in": "header", "schema": {"type": "string"}} for name in names]
    operation = {"operationId": "o", "parameters": parameters, "responses": {"200": {"description": ""}}}
    document = {"openapi": "3.0.3", "info": {"title": "t", "version": "1"}, "paths": {"/o": {"get": operation}}}
    loaded = load_document(
        json.dumps(document).encode(),
        source="x",
        selection=OperationSelection(),
        user_supplied=frozenset({of_entry, of_entry.lower()}),
    )
    arguments = [each.name for each in loaded.operations[0].parameters if not each.user_supplied]
    assert arguments == ["X-Other"]
