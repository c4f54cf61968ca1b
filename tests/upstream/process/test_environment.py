"""The environment of a server is built from nothing: what its entry names, and a base."""

import pytest

from toolway.upstream.process.spawner import build_environment

OWN = {
    "PATH": "/bin",
    "HTTPS_PROXY": "http://proxy",
    "AWS_SECRET_ACCESS_KEY": "canary",
    "TOOLWAY_TOKEN": "canary-of-the-gateway",
    "TOOLWAY_SECRETS_PASSPHRASE": "canary-of-the-store",
}


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ("safe", {"PATH", "HTTPS_PROXY", "NAMED"}),
        ("none", {"PATH", "NAMED"}),
        ("inherit", {"PATH", "HTTPS_PROXY", "AWS_SECRET_ACCESS_KEY", "NAMED"}),
    ],
)
@pytest.mark.promise("A6")
def test_server_environment_follows_policy_and_entry(policy, names):
    assert build_environment(OWN, policy, {"NAMED": "x"}).keys() == names
