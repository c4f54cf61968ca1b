import json
from urllib.parse import quote

from toolway.secrets.detection import SecretMasker

SECRET = 'a"b\\c/d é&='


def test_secret_is_masked_in_every_encoding():
    known = SecretMasker()
    known.add(SECRET)
    for form in (SECRET, json.dumps(SECRET), json.dumps(SECRET, ensure_ascii=False), quote(SECRET, safe="")):
        assert known.mask(f"x {form} y").strip('"').replace('"', "") == "x *** y"


def test_lines_of_a_key_are_masked_one_by_one():
    known = SecretMasker()
    known.add("-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG\n-----END PRIVATE KEY-----")
    assert known.mask("parsing MIIEvQIBADANBgkqhkiG failed") == "parsing *** failed"
    assert known.mask("-----BEGIN PRIVATE KEY----- expected") == "-----BEGIN PRIVATE KEY----- expected"


def test_longer_of_two_secrets_is_masked_entirely():
    known = SecretMasker()
    known.add("secret")
    known.add("secret-and-more")
    assert known.mask("secret-and-more, secret") == "***, ***"


def test_short_words_are_not_masked():
    known = SecretMasker()
    known.add("true")
    assert known.mask("true") == "true"


def test_remembered_secrets_are_bounded():
    known = SecretMasker(max_secrets=2)
    for value in ("first-value", "second-value", "third-value"):
        known.add(value)
    assert known.mask("first-value second-value third-value") == "first-value *** ***"
