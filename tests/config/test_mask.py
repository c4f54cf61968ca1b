from toolway.config.mask import masker
from toolway.config.spec import Server


def test_secrets_are_masked_by_the_name_of_their_variable_and_headers_always():
    mask = masker(
        [
            Server(command="x", env={"GITHUB_TOKEN": "ghp_12345", "DATA": "/srv/data", "API_KEY": "short"}),
            Server(url="https://x", headers={"Authorization": "Bearer abcdef123"}),
        ]
    )
    assert mask("ghp_12345 at /srv/data") == "*** at /srv/data"
    assert mask("sent Bearer abcdef123, got abcdef123") == "sent ***, got ***"
    assert mask("a short word") == "a short word"


def test_without_secrets_nothing_changes():
    assert masker([Server(command="x")])("text") == "text"
