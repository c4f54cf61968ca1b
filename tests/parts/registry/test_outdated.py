"""`toolway outdated`: servers that have a newer version, or are no longer what was added."""

import pytest

from toolway.testing.fake_registry import npm_server

NAME = "io.github.acme/weather"


@pytest.fixture
def added(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    assert shop.run("add", NAME, "--yes").exit_code == 0
    return shop


def row(shop, code):
    (found,) = shop.json("outdated", code=code)["servers"]
    return found


def test_current_server(added):
    assert row(added, 0)["state"] == "current"


def test_newer_version(added, registry):
    registry.add(npm_server(NAME, "1.3.0"))
    found = row(added, 9)
    assert (found["state"], found["latest"]) == ("outdated", "1.3.0")
    assert found["note"] == f"toolway add --replace {NAME}"
    assert "1.3.0" in added.run("outdated").stdout


def test_newer_version_that_was_deleted_is_ignored(added, registry):
    registry.add(npm_server(NAME, "1.3.0"), "deleted")
    assert row(added, 0)["state"] == "current"


@pytest.mark.parametrize("status", ["deprecated", "deleted"])
def test_status_and_its_reason(added, registry, status):
    registry.add(npm_server(NAME, "1.2.0"), status, "use another")
    found = row(added, 9)
    assert (found["state"], found["note"]) == (status, "use another")


def test_version_that_disappeared(added, registry):
    registry.add(npm_server(NAME, "1.3.0"))
    registry.remove(NAME, "1.2.0")
    assert row(added, 9)["state"] == "gone"


def test_version_with_another_content(added, registry):
    registry.add(npm_server(NAME, "1.2.0", description="taken over"))
    assert row(added, 9)["state"] == "changed"


def test_last_answer_is_used_with_its_age(added, registry):
    registry.status = 503
    found = row(added, 8)
    assert (found["state"], "less than 1 h old" in found["note"]) == ("current", True)


def test_registry_that_is_not_configured_is_not_asked(added, registry, private):
    entry = added.entries["weather"]
    added.use(private.url, weather=entry)
    before = len(registry.requests)
    assert row(added, 8)["state"] == "unknown"
    assert (len(registry.requests), private.requests) == (before, [])


def test_servers_from_elsewhere_are_not_listed(shop, registry):
    shop.use(registry.url, mine={"command": "x"}, odd={"command": "x", "registry": {"name": 7}})
    assert shop.json("outdated")["servers"] == []
    assert registry.requests == []
