"""Configuration files: `ConfigError` or servers and problems, whatever somebody saved."""

from __future__ import annotations

from harness import Bytes, fuzz, instrumented

with instrumented(__name__ == "__main__"):
    from toolway.config import formats
    from toolway.config.spec import Server, check_server_name
    from toolway.errors import ConfigError

LONGEST = 16 * 1024
VARIABLES = {"HOME": "/home/x", "A": "1"}


def check(data: bytes) -> None:
    source = Bytes(data)
    repeated = source.number(255)
    text = source.rest.decode("utf-8", "replace")
    _check_text(text)
    if repeated == 255 and text:
        _check_text(text * (LONGEST // len(source.rest)))  # what is slow shows when there is much of it


def _check_text(text: str) -> None:
    try:
        loaded = formats.parse(text, "mcp.json", VARIABLES)
    except ConfigError as error:
        _check_place(error, text)
        return
    for name, server in loaded.servers.items():
        assert check_server_name(name) == name
        assert isinstance(server, Server) and repr(server)
    for problem in loaded.problems:
        assert problem.severity in ("error", "warning", "note")
        _check_place(problem, text)


def _check_place(told: ConfigError | formats.Problem, text: str) -> None:
    assert told.code.startswith("E-CONFIG") and str(told)
    assert told.line is None or 1 <= told.line <= text.count("\n") + 1


if __name__ == "__main__":
    fuzz(check)
