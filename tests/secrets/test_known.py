import json
from urllib.parse import quote

from toolway.secrets.known import Known

SECRET = 'a"b\\c/d é&='


def test_a_secret_is_hidden_however_it_is_written():
    known = Known()
    known.remember(SECRET)
    for form in (SECRET, json.dumps(SECRET), json.dumps(SECRET, ensure_ascii=False), quote(SECRET, safe="")):
        assert known.hide(f"x {form} y").strip('"').replace('"', "") == "x *** y"


def test_lines_of_a_key_are_hidden_one_by_one():
    known = Known()
    known.remember("-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG\n-----END PRIVATE KEY-----")
    assert known.hide("parsing MIIEvQIBADANBgkqhkiG failed") == "parsing *** failed"
    assert known.hide("-----BEGIN PRIVATE KEY----- expected") == "-----BEGIN PRIVATE KEY----- expected"


def test_the_longer_of_two_secrets_is_hidden_whole():
    known = Known()
    known.remember("secret")
    known.remember("secret-and-more")
    assert known.hide("secret-and-more, secret") == "***, ***"


def test_short_words_are_left_alone():
    known = Known()
    known.remember("true")
    assert known.hide("true") == "true"


def test_what_is_remembered_is_bounded():
    known = Known(most=2)
    for value in ("first-value", "second-value", "third-value"):
        known.remember(value)
    assert known.hide("first-value second-value third-value") == "first-value *** ***"
