"""Attacks on Toolway: each test does what an attacker would do, and is named after the defense.

The mark `attack("B1")` names the finding that a test holds; findings.toml lists them all. `make attacks` runs every
test that has the mark, here and elsewhere in tests/.
"""
