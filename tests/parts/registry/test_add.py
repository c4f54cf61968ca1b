"""`toolway add io.github.owner/server`: what is shown, what is written, and what is refused."""

import json
import os

import pytest

from tests.parts.lock.lab import Lab, has_npm
from tests.parts.lock.registry import serving
from toolway.config.server_entry import parse_entry_with_issues
from toolway.testing.fake_registry import FakeRegistry, npm_server

NAME = "io.github.acme/weather"
TINY_VERSION = "1.0.0"  # of a package in the npm registry of the tests


def offline(registry: FakeRegistry) -> None:
    registry.status = 503


def test_entry_has_pinned_package_origin_and_guard(shop, registry):
    registry.add(npm_server(NAME, "1.1.0"))
    registry.add(npm_server(NAME, "1.2.0"))
    result = shop.run("add", NAME, "--yes")
    assert result.exit_code == 0, result.output
    entry = shop.entries["weather"]
    origin = entry.pop("registry")
    assert entry == {
        "command": "npx",
        "args": ["-y", "@acme/weather@1.2.0"],
        "env": {"API_KEY": "${keyring:weather.API_KEY}"},
        "sandbox": "guard",
    }
    assert (origin["name"], origin["version"], origin["url"]) == (NAME, "1.2.0", registry.url)
    assert len(origin["digest"]) == 64
    server, issues = parse_entry_with_issues(shop.entries["weather"], {})
    assert (server.sandbox, server.extras["registry"], issues) == ("guard", origin, [])


def test_review_shows_publisher_status_and_entry(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    result = shop.run("add", NAME, "--dry-run")
    assert f"{NAME} 1.2.0, active, published 2026-10-01, from {registry.url}" in result.stdout
    assert "publisher: io.github.acme (as http://127.0.0.1" in result.stdout
    assert "Nobody has checked the code." in result.stdout
    assert '"@acme/weather@1.2.0"' in result.stdout
    assert shop.entries == {}


def test_nothing_is_added_without_a_confirmation(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    assert shop.run("add", NAME).exit_code == 2
    assert shop.entries == {}


def test_chosen_name_version_and_offer_are_used(shop, registry):
    registry.add(npm_server(NAME, "1.1.0"))
    registry.add(npm_server(NAME, "1.2.0"))
    shop.run("add", "mine", f"{NAME}@1.1.0", "--yes")
    assert shop.entries["mine"]["args"] == ["-y", "@acme/weather@1.1.0"]
    shop.run("add", "far", NAME, "--offer", "2", "--yes")
    assert shop.entries["far"]["url"] == "https://weather.example.com/mcp"
    assert "sandbox" not in shop.entries["far"]


def test_name_is_case_sensitive_and_percent_encoded(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    assert shop.refused("add", "io.github.Acme/weather", "--yes")["code"] == "E-REGISTRY-NONE"
    assert registry.requests[0] == "/v0.1/servers/io.github.Acme%2Fweather/versions/latest"


@pytest.mark.parametrize(
    "word", ["io.github.acme/..", "io.github.acme/../../x", "../x.y/z", "acme/weather", "a.b/c@/../d"]
)
def test_other_words_are_not_looked_up(shop, registry, word):
    assert shop.run("add", word, "--yes").exit_code != 0
    assert registry.requests == []


def test_relative_program_stays_a_command(shop, registry, machine):
    machine.write("project/my.tools/run", "")
    assert shop.run("add", "files", "--", "my.tools/run").exit_code == 0
    assert (shop.entries["files"], registry.requests) == ({"command": "my.tools/run"}, [])


# -- the order of registries -------------------------------------------------------------------------------------------


def test_first_registry_with_the_name_decides(shop, registry, private):
    private.add(npm_server("com.acme/notes", "1.0.0", description="private"))
    registry.add(npm_server("com.acme/notes", "9.0.0", description="public"))
    shop.use(private.url, registry.url)
    shop.run("add", "com.acme/notes", "--yes")
    assert shop.entries["notes"]["registry"]["url"] == private.url
    assert registry.requests == []
    error = shop.refused("add", "other", "com.acme/notes@9.0.0", "--yes")
    assert (error["code"], registry.requests) == ("E-REGISTRY-NONE", [])


def test_public_name_is_found_after_a_private_404(shop, registry, private):
    registry.add(npm_server(NAME, "1.2.0"))
    shop.use(private.url, registry.url)
    assert shop.run("add", NAME, "--yes").exit_code == 0
    assert shop.entries["weather"]["registry"]["url"] == registry.url


@pytest.mark.parametrize("status", [429, 500, 503, 403, 302])
def test_failing_private_registry_is_not_skipped(shop, registry, private, status):
    registry.add(npm_server(NAME, "1.2.0"))
    private.status = status
    private.headers = {"Location": f"{registry.url}/v0.1/servers"}
    shop.use(private.url, registry.url)
    assert shop.refused("add", NAME, "--yes")["code"] == "E-REGISTRY"
    assert registry.requests == []


def test_unusable_private_versions_are_not_skipped(shop, registry, private):
    private.add(npm_server(NAME, "1 beta"))
    registry.add(npm_server(NAME, "1.2.0"))
    shop.use(private.url, registry.url)
    assert shop.refused("add", f"{NAME}@1.2.0", "--yes")["code"] == "E-REGISTRY-ANSWER"
    assert registry.requests == []


def test_only_forbids_other_registries(shop, registry, private):
    registry.add(npm_server(NAME, "1.2.0"))
    shop.use({"url": private.url, "only": True}, registry.url, "official")
    error = shop.refused("add", NAME, "--yes")
    assert (error["code"], error["detail"]) == ("E-REGISTRY-NONE", f"asked: {private.url}")
    assert registry.requests == []


def test_name_from_another_registry_is_pointed_out(shop, registry, private):
    registry.add(npm_server(NAME, "1.2.0"))
    origin = {"name": NAME, "version": "1.0.0", "url": private.url, "digest": "0" * 64}
    shop.use(registry.url, mine={"command": "x", "registry": origin})
    assert f"from another registry: {private.url}" in shop.run("add", NAME, "--dry-run").stdout


# -- records that changed, disappeared or are bad ----------------------------------------------------------------------


def test_deprecated_server_is_shown_with_its_reason(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"), "deprecated", "use io.github.acme/climate")
    assert "It is deprecated: use io.github.acme/climate" in shop.run("add", NAME, "--dry-run").stdout


def test_deleted_server_is_refused(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"), "deleted", "malware")
    error = shop.refused("add", NAME, "--yes")
    assert (error["code"], error["detail"]) == ("E-REGISTRY-NONE", "malware")


def test_missing_version_names_the_others(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    error = shop.refused("add", f"{NAME}@1.1.0", "--yes")
    assert (error["code"], error["hint"]) == ("E-REGISTRY-NONE", f"pick one: toolway add {NAME}@1.2.0")


def test_disappeared_version_is_not_taken_from_the_cache(shop, registry):
    registry.add(npm_server(NAME, "1.1.0"))
    registry.add(npm_server(NAME, "1.2.0"))
    shop.run("add", f"{NAME}@1.1.0", "--dry-run")
    registry.remove(NAME, "1.1.0")
    assert shop.refused("add", f"{NAME}@1.1.0", "--yes")["code"] == "E-REGISTRY-NONE"


def test_version_with_another_digest_is_refused(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    shop.run("add", NAME, "--yes")
    registry.add(npm_server(NAME, "1.2.0", description="taken over"))
    error = shop.refused("add", "--replace", NAME, "--yes")
    assert (error["code"], "toolway rm weather" in error["hint"]) == ("E-REGISTRY-CHANGED", True)
    reordered = dict(reversed(npm_server(NAME, "1.2.0").items()))
    registry.add(reordered)
    assert shop.run("add", "--replace", NAME, "--yes").exit_code == 0


def test_answer_about_another_server_is_refused(shop, registry):
    registry.body = json.dumps({"server": npm_server("io.github.evil/weather", "1.2.0")}).encode()
    assert shop.refused("add", NAME, "--yes")["code"] == "E-REGISTRY-ANSWER"


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"server":' * 100_000, b'{"a":"' + b"x" * 5_000_000 + b'"}']
)
def test_unusable_answer_is_refused(shop, registry, body):
    registry.body = body
    assert shop.refused("add", NAME, "--yes")["code"] == "E-REGISTRY-ANSWER"


# -- hostile documents -------------------------------------------------------------------------------------------------


def test_documents_cannot_refer_to_secrets_or_commands(shop, registry):
    document = npm_server(NAME, "1.2.0")
    document["packages"][0]["environmentVariables"] = [
        {"name": "A_PLACE", "default": "${command:touch /tmp/x}${keyring:other.TOKEN}"}
    ]
    registry.add(document)
    shop.run("add", NAME, "--yes")
    assert shop.entries["weather"]["env"] == {"A_PLACE": "$${command:touch /tmp/x}$${keyring:other.TOKEN}"}


@pytest.mark.parametrize(
    "package",
    [
        {"runtimeHint": "bash", "runtimeArguments": [{"type": "positional", "value": "-c"}]},
        {"runtimeArguments": [{"type": "named", "name": "--registry", "value": "https://evil.example"}]},
        {"environmentVariables": [{"name": "LD_PRELOAD", "value": "/tmp/x.so"}]},
    ],
)
def test_admission_rules_apply(shop, registry, package):
    document = npm_server(NAME, "1.2.0")
    document["packages"][0] |= package
    registry.add(document)
    assert shop.refused("add", NAME, "--yes")["code"] == "E-ADMISSION"
    assert shop.entries == {}


def test_other_package_registries_and_http_are_left_out(shop, registry):
    document = npm_server(NAME, "1.2.0")
    document["packages"][0]["registryBaseUrl"] = "https://npm.evil.example"
    document["remotes"].insert(0, {"type": "sse", "url": "http://weather.example.com/sse"})
    registry.add(document)
    shop.run("add", NAME, "--yes")
    assert shop.entries["weather"]["url"] == "https://weather.example.com/mcp"
    del document["remotes"][1]
    assert shop.refused("add", "other", NAME, "--yes")["code"] == "E-REGISTRY-CHANGED"
    assert shop.run("rm", "weather").exit_code == 0
    assert shop.refused("add", "other", NAME, "--yes")["code"] == "E-REGISTRY-PACKAGE"


@pytest.mark.parametrize(
    "url", ["https://pypi.org", "https://api.npmjs.org.evil.example", "https://x@npmjs.org", "x", 7, "https://["]
)
def test_misleading_package_registry_is_left_out(shop, registry, url):
    document = npm_server(NAME, "1.2.0", remotes=[])
    document["packages"][0]["registryBaseUrl"] = url
    registry.add(document)
    assert shop.refused("add", NAME, "--yes")["code"] == "E-REGISTRY-PACKAGE"


def test_public_package_registry_is_accepted(shop, registry):
    document = npm_server(NAME, "1.2.0", remotes=[])
    document["packages"][0]["registryBaseUrl"] = "https://registry." + "npmjs.org"
    registry.add(document)
    assert shop.run("add", NAME, "--yes").exit_code == 0


def test_named_package_registry_is_accepted(shop, registry):
    document = npm_server(NAME, "1.2.0")
    document["packages"][0]["registryBaseUrl"] = registry.url
    registry.add(document)
    shop.run("add", NAME, "--yes")
    assert shop.entries["weather"]["command"] == "npx"


def test_private_remote_address_is_refused(shop, registry):
    registry.add(npm_server(NAME, "1.2.0", packages=[], remotes=[{"type": "sse", "url": "https://169.254.169.254/"}]))
    assert shop.refused("add", NAME, "--yes")["code"] == "E-ADMISSION"


def test_terminal_controls_are_removed(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"), "deprecated", "\x1b[2Jfine\u202e\x07")
    result = shop.run("add", NAME, "--dry-run")
    assert "It is deprecated: [2Jfine" in result.stdout
    assert not {"\x1b", "\u202e", "\x07"} & set(result.output)


# -- locks -------------------------------------------------------------------------------------------------------------


def test_server_without_npm_is_added_unlocked(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    result = shop.run("add", NAME, "--yes")
    assert (result.exit_code, "npm is not installed" in result.stderr) == (0, True)
    assert "toolway trust lock weather" in result.stderr
    (problem,) = shop.json("add", "--replace", NAME, "--yes")["source"]["notSecured"]
    assert "npm is not installed" in problem


@pytest.mark.skipif(not has_npm, reason="npm is not installed")
def test_package_is_locked_right_after_it_was_added(tmp_path, registry):
    with serving() as packages:
        lab = Lab(tmp_path, packages)
        block = {"registries": [registry.url], "gateway": {"minAge": 0}}
        lab.config.write_text(json.dumps({"mcpServers": {}, "toolway": block}))
        package = {"registryType": "npm", "identifier": "acme-tiny", "version": TINY_VERSION}
        registry.add(npm_server("io.github.acme/tiny", "1.2.0", packages=[package]))
        added = lab.toolway("add", "io.github.acme/tiny", "--yes", "--json")
        assert added.exit_code == 0, added.output
        (done,) = json.loads(added.stdout)["source"]["secured"]
        assert done.startswith(f"locked acme-tiny {TINY_VERSION} in ")
        assert lab.locked("trust", "lock", "--check")["servers"][0]["state"] == "locked"


# -- similar names, and offline ----------------------------------------------------------------------------------------


def test_similar_name_is_shown(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    registry.add(npm_server("io.github.acrne/weather", "9.0.0"))
    registry.add(npm_server("io.github.other/weather", "9.0.0"))
    assert shop.json("add", "io.github.acrne/weather", "--dry-run")["source"]["similar"] == [NAME]
    assert "Similar name: io.github.acrne/weather." in shop.run("add", NAME, "--dry-run").stdout


def test_add_works_offline_after_a_search(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    shop.run("search-servers", "weather")
    for each in shop.cache.iterdir():
        os.utime(each, (each.stat().st_atime, each.stat().st_mtime - 3 * 86400))
    offline(registry)
    result = shop.run("add", NAME, "--yes")
    assert (result.exit_code, "this answer is 3 d old" in result.stdout) == (0, True)
    assert shop.entries["weather"]["registry"]["version"] == "1.2.0"
    assert shop.refused("add", "io.github.acme/other", "--yes")["code"] == "E-REGISTRY"


def test_answer_is_forgotten_after_30_days(shop, registry):
    registry.add(npm_server(NAME, "1.2.0"))
    shop.run("search-servers", "weather")
    for each in shop.cache.iterdir():
        os.utime(each, (0, each.stat().st_mtime - 31 * 86400))
    offline(registry)
    assert shop.refused("add", NAME, "--yes")["code"] == "E-REGISTRY"


def test_private_name_stays_private_while_offline(shop, registry, private):
    registry.add(npm_server(NAME, "1.2.0"))
    shop.use(private.url, registry.url)
    shop.run("search-servers", "weather")
    offline(private)
    assert shop.refused("add", NAME, "--yes")["code"] == "E-REGISTRY"


def test_busy_registry_names_the_time_to_try_again(shop, registry):
    registry.status, registry.headers = 429, {"Retry-After": "17"}
    assert shop.refused("add", NAME, "--yes")["hint"] == "try again in 17 s"


def test_other_sources_send_no_request(shop, registry):
    for words in (["npm:tiny"], ["https://a.example/mcp"], ["mine", "--", "npx", "x"]):
        assert shop.run("add", *words).exit_code == 0
    for words in (["ls"], ["show", "mine"], ["config"], ["config", "validate"], ["help"]):
        shop.run(*words)
    assert registry.requests == []
