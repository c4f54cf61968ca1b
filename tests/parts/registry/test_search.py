"""`toolway search-servers`: pages, limits, faults, and the stored answers."""

import os

import pytest

from toolway.parts.registry import cache
from toolway.testing.fake_registry import npm_server

NAME = "io.github.acme/weather"


def fill(registry, count):
    for number in range(count):
        registry.add({"name": f"com.acme/tool-{number:05}", "version": "1.0.0", "description": "A tool"})


def test_table_has_name_version_publisher_and_how_it_runs(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    registry.add(npm_server("com.acme/weather-old", "0.1.0"), "deprecated")
    registry.add(npm_server("com.acme/notes", "1.0.0"))
    shop.run("add", NAME, "--yes")
    lines = shop.run("search-servers", "weather").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "com.acme/weather-old", "*"]
    assert "0.1.0 (deprecated)" in lines[1]
    assert "npm, remote" in lines[2]


def test_json_has_every_fact(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    found = shop.json("search-servers", "weather")
    (row,) = found["servers"]
    assert (row["name"], row["runs"], row["registry"], row["configured"]) == (
        NAME,
        ["npm", "remote"],
        registry.url,
        False,
    )
    assert (found["hasMore"], found["problems"]) == (False, [])


def test_pages_are_followed_up_to_the_limit(shop, registry):
    fill(registry, 250)
    found = shop.json("search-servers", "tool", "--limit", "1000")
    assert (len(found["servers"]), found["hasMore"], len(registry.requests)) == (250, False, 3)


def test_20_000_servers_are_not_all_fetched(shop, registry):
    fill(registry, 20_000)
    found = shop.json("search-servers", "tool")
    assert (len(found["servers"]), found["hasMore"], len(registry.requests)) == (50, True, 1)
    found = shop.json("search-servers", "tool", "--limit", "1000")
    assert (len(found["servers"]), len(registry.requests)) == (1000, 10)


def test_list_without_an_end_is_refused(shop, registry):
    registry.body = b'{"servers": [], "metadata": {"nextCursor": "again"}}'
    assert shop.refused("search-servers", "tool")["code"] == "E-REGISTRY-ANSWER"
    assert len(registry.requests) == 2


def test_fresh_answer_is_used_without_a_request(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    for words in ([], [], ["--refresh"]):
        assert len(shop.json("search-servers", "weather", *words)["servers"]) == 1
    assert len(registry.requests) == 2


def test_old_answer_is_replaced_or_used_with_its_age(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    shop.run("search-servers", "weather")
    (file,) = shop.cache.iterdir()
    os.utime(file, (0, file.stat().st_mtime - 2 * 86400))
    registry.status = 500
    result = shop.run("search-servers", "weather")
    assert (NAME in result.stdout, "this answer is 2 d old" in result.stderr) == (True, True)
    registry.status = 200
    assert shop.json("search-servers", "weather")["registries"][0]["ageSeconds"] == 0


def test_stored_answers_are_private_and_checked(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    shop.run("search-servers", "weather")
    (file,) = shop.cache.iterdir()
    if os.name == "posix":
        assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(file.read_bytes().replace(b"1.2.0", b"6.6.6"))
    assert shop.json("search-servers", "weather")["servers"][0]["version"] == "1.2.0"


def test_cache_keeps_at_most_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MAX_BYTES", 1000)
    store = cache.AnswerCache(tmp_path)
    for number in range(5):
        store.save(f"http://x/{number}", b"x" * 300)
        file = store._path(f"http://x/{number}")
        os.utime(file, (0, file.stat().st_mtime - 100 + number))
    assert [store.load(f"http://x/{number}") is not None for number in range(5)] == [False, False, False, True, True]


def test_private_name_hides_the_public_one(shop, registry, private):
    private.add(npm_server("com.acme/notes", "1.0.0"))
    registry.add(npm_server("com.acme/notes", "9.0.0"))
    shop.use(private.url, registry.url)
    (row,) = shop.json("search-servers", "notes")["servers"]
    assert (row["version"], row["registry"]) == ("1.0.0", private.url)


def test_one_broken_registry_does_not_hide_the_others(shop, registry, private):
    registry.add(npm_server(NAME, "1.2.0"))
    private.status = 502
    shop.use(private.url, registry.url)
    found = shop.json("search-servers", "weather", code=8)
    assert (len(found["servers"]), len(found["problems"])) == (1, 1)


def test_unusable_records_are_left_out(shop, registry):
    for name in ("io.github.acme/../x", "no-namespace", "a.b/" + "x" * 300, "a.b/\x1b[2J"):
        registry.add({"name": name, "version": "1.0.0"})
    registry.add({"name": "a.b/good", "version": "../1"})
    registry.add({"name": "a.b/fine", "version": "1.0.0", "description": "\x1b[31mred\u202e " + "x" * 5000})
    (row,) = shop.json("search-servers", "")["servers"]
    assert row["name"] == "a.b/fine"
    assert row["description"].startswith("[31mred x")
    assert len(row["description"]) <= 300


def test_search_text_is_encoded(shop, registry):
    shop.run("search-servers", "a&version=1#/../é")
    assert registry.requests == ["/v0.1/servers?search=a%26version%3D1%23%2F..%2F%C3%A9&version=latest&limit=100"]


@pytest.mark.parametrize(
    "value",
    [
        "https://mcp.corp.example",
        [],
        ["http://mcp.corp.example"],
        ["https://me@mcp.corp.example"],
        ["https://mcp.corp.example/?a=b"],
        ["file:///etc/passwd"],
        [""],
        [{"url": "official", "onyl": True}],
        [7],
    ],
)
def test_invalid_setting_stops_the_command(shop, registry, machine, value):
    machine.write(".config/toolway/mcp.json", {"mcpServers": {}, "toolway": {"registries": value}})
    assert shop.refused("search-servers", "x")["code"] == "E-CONFIG-KEY"
    assert registry.requests == []
