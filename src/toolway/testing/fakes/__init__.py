"""The parts of the fake servers.

    wire.py         envelopes, revisions, errors
    server.py       one fake server: a request in, a response or steps out; both eras, no transport
    call.py         one call: who asks, and the steps to its answer
    tools.py        its well-behaved tools (asks.py: those that ask back)
    catalog.py      its prompts, resources and completions
    modes.py        what a mode is, and when it strikes
    spoil.py        good responses made bad; lists.py: bad lists; both for either transport
    stdio.py        the server on a pipe (pipe_modes.py, process_modes.py: what goes wrong there)
    http.py         the server on a socket (http_wire.py, http_modes.py)

Only the standard library, nothing from the rest of Toolway, and nothing slow to import: `fake.py` also runs by its
path, with `python -I -S`, where none of that is there.
"""
