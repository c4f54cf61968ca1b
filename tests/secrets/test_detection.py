import pytest

from toolway.secrets import looks_like_secret
from toolway.secrets.detection import is_secret_name, secrets_in_url


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_TOKEN", "abcdefgh12"),
        ("GITHUB_PERSONAL_ACCESS_TOKEN", "ghp_" + "x" * 36),
        ("whatever", "ghp_" + "x" * 36),
        ("whatever", "sk-proj-" + "x" * 30),
        ("whatever", "AKIAIOSFODNN7EXAMPLE"),
        ("whatever", "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"),
        ("Authorization", "Bearer abcdefghij"),
        ("X-Anything", "Bearer abcdefghij"),
        ("apiKey", "abcdefghij"),
        ("--api-key", "abcdefghij"),
        ("DATABASE_URL", "postgres://me:hunter22@db.example/x"),
        ("anything", "https://x.example/mcp?api_key=abcdefghij"),
        ("PGPASSWORD", "hunter2"),
    ],
)
def test_value_looks_like_a_secret(name, value):
    assert looks_like_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_TOKEN", ""),
        ("GITHUB_TOKEN", "${GITHUB_TOKEN}"),
        ("GITHUB_TOKEN", "$GITHUB_TOKEN"),
        ("GITHUB_TOKEN", "%GITHUB_TOKEN%"),
        ("GITHUB_TOKEN", "{env:GITHUB_TOKEN}"),
        ("Authorization", "Bearer ${keyring:x}"),
        ("GITHUB_TOKEN", "<your token here>"),
        ("API_KEY", "…"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json"),
        ("SSH_KEY_PATH", "whatever-it-is"),
        ("MAX_TOKENS", "1000000000"),
        ("TOKENIZERS_PARALLELISM", "disabled-for-good"),
        ("KEYBOARD_LAYOUT", "qwertzuiop"),
        ("AUTHOR", "somebody-else"),
        ("LOG_LEVEL", "debug-with-traces"),
        ("url", "https://x.example/mcp"),
        ("DATABASE_URL", "postgres://me@db.example/x"),
    ],
)
def test_value_does_not_look_like_a_secret(name, value):
    assert not looks_like_secret(name, value)


def test_names_are_matched_word_by_word():
    assert is_secret_name("myApiKey")
    assert is_secret_name("x-api-key")
    assert not is_secret_name("monkey")
    assert not is_secret_name("tokenUrl")
    assert not is_secret_name("")


def test_secret_parts_of_url_are_found():
    assert secrets_in_url("https://u:pass-word@x.example/a?token=abcdefgh&b=1") == ["pass-word", "abcdefgh"]
    assert secrets_in_url("https://[broken") == []
