"""Catalogs of described tools for the tests of the search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolway.catalog.catalog import Catalog
from toolway.search.results import SearchAnswer
from toolway.search.tool_search import ToolSearch

WORK: Mapping[str, Mapping[str, str]] = {
    "github": {
        "create_issue": "Create a new issue in a repository",
        "create_issue_comment": "Add a comment to an issue",
        "list_pull_requests": "List the pull requests of a repository",
        "search_code": "Search code in all repositories",
        "delete_branch": "Delete a branch of a repository",
    },
    "jira": {"create_issue": "Create an issue in Jira", "assignIssue": "Assign an issue to a user"},
    "mail": {"send": "Send a message by e-mail", "search": "Find messages in the mailbox"},
    "weather": {"get_forecast": "Weather forecast for a city", "get_alerts": "Severe weather warnings of a region"},
    "photos": {"resize_image": "Change width and height of an image", "delete_image": "Remove an image from an album"},
}


def definition(name: str, description: str = "", **parameters: str) -> dict[str, Any]:
    """Return the definition of a tool with described parameters."""
    properties = {each: {"type": "string", "description": text} for each, text in parameters.items()}
    return {"name": name, "description": description, "inputSchema": {"type": "object", "properties": properties}}


def catalog_of(servers: Mapping[str, Mapping[str, str]]) -> Catalog:
    """Return a catalog of tools by server, name and description."""
    catalog = Catalog()
    for server, tools in servers.items():
        replace(catalog, server, tools)
    return catalog


def replace(catalog: Catalog, server: str, tools: Mapping[str, str]) -> None:
    """Replace the tools of a server, which may be new."""
    catalog.add_server(server)
    catalog.replace(server, "tools", [definition(name, text) for name, text in tools.items()])
    assert catalog.problems(server) == ()


def names(answer: SearchAnswer) -> list[str]:
    """Return the names of the found tools, best first."""
    return [match.tool.qualified_name for match in answer.matches]


def search_of(servers: Mapping[str, Mapping[str, str]] = WORK, **options: Any) -> ToolSearch:
    """Return a search over described tools."""
    return ToolSearch(catalog_of(servers), **options)


def kinds(answer: SearchAnswer, place: int = 0) -> set[str]:
    """Return the kinds of the reasons of one match."""
    reasons: Iterable[Any] = answer.matches[place].reasons
    return {reason.kind for reason in reasons}
