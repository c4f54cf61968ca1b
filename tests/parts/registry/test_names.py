"""What a name proves, and which names look alike."""

import pytest

from toolway.parts.registry.lookalikes import find_lookalikes
from toolway.parts.registry.publisher import describe_publisher
from toolway.parts.registry.settings import OFFICIAL_URL, parse_settings


@pytest.mark.parametrize(
    ("name", "publisher"),
    [
        ("io.github.acme/weather", "GitHub account acme (checked by the registry)"),
        ("com.acme/weather", "domain acme.com, or one above it (checked by the registry)"),
        ("com.acme.tools/weather", "domain tools.acme.com, or one above it (checked by the registry)"),
        ("io.modelcontextprotocol.anonymous/weather", "nobody (anonymous)"),
    ],
)
def test_public_registry_checks_the_namespace(name, publisher):
    assert describe_publisher(name, OFFICIAL_URL) == publisher


def test_private_registry_is_only_quoted():
    found = describe_publisher("io.github.acme/weather", "https://mcp.corp.example")
    assert found == "io.github.acme (as https://mcp.corp.example says)"


@pytest.mark.parametrize(
    "other",
    ["io.github.acrne/weather", "io.github.acme/Weather", "io.github.acme/we-ather", "io.github.acme/vveather"],
)
def test_names_that_look_alike(other):
    assert find_lookalikes("io.github.acme/weather", [other]) == [other]


@pytest.mark.parametrize("other", ["io.github.acme/weather", "io.github.acme/climate", "com.acme/weather"])
def test_names_that_differ_visibly(other):
    assert find_lookalikes("io.github.acme/weather", [other]) == []


def test_official_is_the_public_registry():
    settings = parse_settings({"registries": ["https://mcp.corp.example/", "official"]}, {})
    assert settings.registries == ("https://mcp.corp.example", OFFICIAL_URL)
