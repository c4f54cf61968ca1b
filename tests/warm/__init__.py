"""A warm gateway answers like a cold one: no cache decides rights (docs/decisions/0043).

`python -m tests.warm.run --sequences 200000` is the long form, `make attacks ARGS=warm` its target.
"""
