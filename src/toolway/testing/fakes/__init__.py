"""The parts of the fake servers.

    wire.py            envelopes, revisions, errors
    call.py            one call: who asks, and the steps to its answer
    server.py          one fake server: a request in, a response or steps out; both eras, no transport
    tools.py           its well-behaved tools (asks.py: those that ask back; children.py: processes they start)
    catalog.py         its prompts, resources and completions

    modes.py           what a mode is, and when it strikes
    spoil.py           good responses made bad, for both transports
    lists.py           bad lists of tools, for both transports

    stdio.py           the server on a pipe (stdio_main.py: the command that starts it)
    pipe_modes.py      what goes wrong there, and in process_modes.py with the process

    http_server.py     the server on a socket: FakeHttp
    http_endpoint.py   what it does with one request (http_headers.py: what it demands of the headers)
    sse_endpoint.py    the same over HTTP+SSE, the transport of 2024-11-05
    http_wire.py       HTTP/1.1 by hand
    http_modes.py      what goes wrong there

    options.py         the command line of both

Only the standard library, nothing from the rest of Toolway, and nothing slow to import: `fake.py` also runs by its
path, with `python -I -S`, where none of that is there.
"""
