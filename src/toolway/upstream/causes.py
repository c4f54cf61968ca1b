"""The likely cause of a failed start, read from what is known: the command, its exit code, its stderr, our own code.

A table, because it grows by experience: each row is a pattern seen in the wild, what it means, and what to do about it.
Rows for what is certain stand before rows for what is merely usual; the first that matches is told.
"""

from __future__ import annotations

import functools
import os.path
import re
from typing import Final, NamedTuple

from toolway.protocol.wire import clean_text

LOOKED_AT: Final = 8 * 1024  # characters of stderr; a start that fails says why at the end
LINE: Final = 300  # characters of a line of it; keeps every pattern quick, whatever a server writes
NODE_PROGRAMS: Final = frozenset({"npx", "npm", "node", "bunx", "pnpm", "yarn"})
PACKAGE_RUNNERS: Final = frozenset({"npx", "uvx", "bunx", "pnpm", "pipx", "docker", "podman"})


class Cause(NamedTuple):
    cause: str
    fix: str


class _Row(NamedTuple):
    pattern: re.Pattern[str]
    cause: str  # {0} is the first group that matched
    fix: str


def likely_cause(command: str, exit_code: int | None, stderr: str, error_code: str) -> Cause | None:
    """What most likely went wrong, and what to do; None where nothing is known that the error does not say itself."""
    end = "\n".join(line[:LINE] for line in stderr[-LOOKED_AT:].splitlines())
    return _of_spawn(command, error_code) or _of_stderr(end) or _of_code(command, exit_code, error_code)


def _of_spawn(command: str, error_code: str) -> Cause | None:
    if error_code != "E-STDIO-ENOENT":
        return None
    program = os.path.basename(command)
    if re.search(r"\s", command.strip()):
        first, *rest = command.split()
        args = ", ".join(f'"{word}"' for word in rest)
        return Cause(
            "the command and its arguments are in one text",
            f'write "command": "{first}", "args": [{args}] in its entry',
        )
    if program in NODE_PROGRAMS:
        return Cause(
            f"Node.js is not installed, or {program} is not on PATH", "install Node.js 22 or newer (nodejs.org)"
        )
    if program in ("uv", "uvx"):
        return Cause(f"uv is not installed, or {program} is not on PATH", "install uv: pip install uv")
    if program == "python":
        return Cause("this system has no program called python", 'write "command": "python3"')
    if os.path.dirname(command):
        return Cause(f"there is no file {command}", f"ls -l {command}")
    return Cause(f"{program} is not installed, or not on PATH", f"which {program}, and give the full path as command")


def _row(pattern: str, cause: str, fix: str) -> _Row:
    return _Row(re.compile(pattern, re.MULTILINE), cause, fix)


_VARIABLE: Final = r"\b(?!ERR_|NODE_MODULE_)([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b"
_MISSING: Final = r"(?:required|missing|not (?:set|provided|found|defined)|undefined|must be set|unset|is empty)"
_WANTED: Final = r"\b(?i:missing|required|provide|please set|must set|needs?|no)\b"
_ROWS: Final = (
    # -- getting the program ------------------------------------------------------------------------------------------
    _row(
        r"self[- ]signed certificate|CERTIFICATE_VERIFY_FAILED|[Uu]nable to (?:get|verify)[^\n]{0,30} certificate"
        r"|UNABLE_TO_(?:GET_ISSUER|VERIFY_LEAF)|SELF_SIGNED_CERT",
        "a TLS certificate is not trusted, often that of a company's proxy",
        "name your CA file in its env: NODE_EXTRA_CA_CERTS (Node.js) or SSL_CERT_FILE (Python)",
    ),
    _row(
        r"npm (?:ERR!|error) 404\s+(?:The requested resource )?'?(@?[^@'\s]+)@?[^'\n]*'?"
        r" (?:is not in|could not be found)",
        "the npm package {0} does not exist, or is private",
        "check the name of the package in args: npm view {0}",
    ),
    _row(
        r"npm (?:ERR!|error) code E?404",
        "the npm package does not exist, or is private",
        "check the name of the package in args",
    ),
    _row(
        r"npm (?:ERR!|error) code (ENOTFOUND|ETIMEDOUT|ECONNREFUSED|ECONNRESET|EAI_AGAIN|ENETUNREACH)",
        "npm cannot reach its registry ({0})",
        "check network and proxy with: npm ping; or install the package beforehand",
    ),
    _row(
        r"No matching distribution found for (\S+)|Because (\S+) was not found in the package registry",
        "the Python package {0} does not exist for this Python",
        "check the name of the package in args",
    ),
    _row(
        r"Cannot connect to the Docker daemon|docker daemon is not running|dockerDesktopLinuxEngine",
        "Docker is not running",
        "start Docker, then: docker info",
    ),
    _row(
        r"pull access denied for ([^\s,]+)|manifest for (\S+) not found",
        "the image {0} does not exist, or needs a login",
        "docker pull {0}",
    ),
    _row(
        r": ([^\s:']+): (?:command )?not found|command not found: (\S+)|env: \W?([\w.+-]+)\W?: No such file",
        "the server needs the program {0}, which is not installed or not on PATH",
        "install {0}, or put its folder on PATH in the server's env",
    ),
    _row(r"spawn (\S+) ENOENT", "the server tried to run {0}, which is not on its PATH", "install {0}"),
    # -- the program and what it stands on ----------------------------------------------------------------------------
    _row(
        r"NODE_MODULE_VERSION|compiled against a different Node\.js version",
        "a native module was built for another version of Node.js",
        "npm rebuild, in the folder of the server",
    ),
    _row(
        r"EBADENGINE|Unsupported engine|[Rr]equires? [Nn]ode(?:\.js)?\s*+(?:version\s*+)?[>=^~v]*+\s*+\d"
        r"|ReferenceError: (?:fetch|File|Headers|ReadableStream|WebSocket|CustomEvent|crypto) is not defined"
        r"|SyntaxError: Unexpected (?:token|identifier|reserved word)(?![^\n]*JSON)",
        "Node.js is too old for this server",
        "node --version; install Node.js 22 or newer",
    ),
    _row(
        r"requires a different Python|requires Python\s*[<>=!~]|Python>=\d\.\d+ is required"
        r"|SyntaxError: invalid syntax",
        "the Python that runs it has the wrong version",
        "python3 --version; use the version the server asks for, e.g. uvx --python 3.12 …",
    ),
    _row(
        r"ModuleNotFoundError: No module named '([^']+)'",
        "the Python module {0} is not installed where the server runs",
        "install it for the Python in command, or start the server with uvx",
    ),
    _row(
        r"Cannot find (?:module|package) '([^']+)'",
        "the Node.js module {0} is missing",
        "npm install, in the folder of the server; or check the path in args",
    ),
    _row(
        r"version `?(GLIBC[A-Z]*_[\d.]+)'? not found",
        "the program was built for a newer system ({0})",
        "use a build for this system, or a container",
    ),
    _row(r"Exec format error|ENOEXEC", "the program was built for another processor", "use a build for this one"),
    _row(r"heap out of memory|^MemoryError", "the server ran out of memory", "give it more memory, or less to do"),
    # -- what it was given --------------------------------------------------------------------------------------------
    _row(
        rf"KeyError: '{_VARIABLE}'|{_VARIABLE}[^\n]{{0,60}}?{_MISSING}|{_WANTED}[^\n]{{0,60}}?{_VARIABLE}",
        "the variable {0} is missing",
        'add it to the server\'s entry: "env": {{"{0}": "${{{0}}}"}}',
    ),
    _row(
        r"(?i)\b(?:missing|no|required|invalid|provide)\b[^\n]{0,40}?"
        r"\b(api[ _-]?key|(?:access[ _-]?)?token|credentials?)\b",
        "a credential is missing or wrong ({0})",
        "look up in the server's documentation which variable it reads, and add it to env",
    ),
    _row(
        r"the following arguments are required: ([^\n]+)|[Mm]issing required (?:argument|option)s?:? ([^\n]+)",
        "an argument is missing: {0}",
        "add it to args in the server's entry",
    ),
    _row(
        r"unrecognized arguments: ([^\n]+)|[Uu]nknown (?:option|argument):? ([^\n]+)|[Uu]nexpected argument '([^']+)'",
        "the server does not know the argument {0}",
        "correct args in the server's entry",
    ),
    # -- what it met --------------------------------------------------------------------------------------------------
    _row(
        r"EADDRINUSE[^\n]*?:(\d{2,5})\b",
        "the port {0} is already in use, perhaps by a copy of this server",
        "find who has it: ss -ltnp 'sport = :{0}', then end it or choose another port",
    ),
    _row(
        r"EADDRINUSE|[Aa]ddress already in use",
        "a port is already in use, perhaps by a copy of this server",
        "find who has it: ss -ltnp, then end it or choose another port",
    ),
    _row(
        r"(?:EACCES|EPERM)[^\n]*? '([^'\n]+)'|[Pp]ermission denied: '([^'\n]+)'|(\S+): Permission denied",
        "the server may not access {0}",
        "ls -ld {0}, and give this user the right to it",
    ),
    _row(
        r"\bEACCES\b|[Pp]ermission denied",
        "the server may not access something that it needs",
        "look in its stderr for what, and give this user the right to it",
    ),
    _row(
        r"ENOENT: no such file or directory[^\n]*? '([^'\n]+)'|No such file or directory: '([^'\n]+)'"
        r"|can't open file '([^'\n]+)'",
        "the file {0} does not exist",
        "correct the path in args, env or cwd of the server's entry",
    ),
    _row(
        r"\b401\b[^\n]{0,40}[Uu]nauthori[sz]ed|\b[Uu]nauthori[sz]ed\b|(?i:bad credentials|invalid_token)"
        r"|(?i:status(?: code)?:? )401\b",
        "its credential was refused",
        "renew the token in env or headers of the server's entry",
    ),
    _row(
        r"\b403\b[^\n]{0,40}[Ff]orbidden|(?i:status(?: code)?:? )403\b",
        "its credential lacks a right",
        "give the token the scopes that the server's documentation names",
    ),
    _row(
        r"(?:ENOTFOUND|EAI_AGAIN) ([\w.-]+)",
        "the host {0} cannot be resolved",
        "check network, VPN and the address in the server's entry",
    ),
    _row(
        r"Name or service not known|Temporary failure in name resolution|getaddrinfo failed|EAI_AGAIN",
        "the name of a host cannot be resolved",
        "check network, VPN and the address in the server's entry",
    ),
    _row(
        r"ECONNREFUSED ([\w.:\[\]-]+)",
        "nothing listens at {0}, which the server depends on",
        "start what the server connects to, or correct its address",
    ),
    _row(
        r"ECONNREFUSED|[Cc]onnection refused",
        "what the server depends on does not listen",
        "start what the server connects to, or correct its address",
    ),
    _row(
        r"ETIMEDOUT|(?i:(?:connection|connect|request|read) timed out)",
        "what the server depends on did not answer in time",
        "check network, VPN and proxy",
    ),
)
_LAST_WORDS: Final = re.compile(
    r"^(?:[\w.]*(?:Error|Exception)|[Ff]atal(?: error)?|FATAL|panic|[Ee]rror|ERROR)\b:? ?.+", re.MULTILINE
)


@functools.lru_cache(maxsize=256)  # asked again with every look at a server's status
def _of_stderr(text: str) -> Cause | None:
    for row in _ROWS:
        found = row.pattern.search(text)
        if found:
            name = clean_text(next((group for group in found.groups() if group), ""), 100)
            return Cause(row.cause.format(name), row.fix.format(name))
    # A traceback and most crashes end with the sentence that matters.
    last = _LAST_WORDS.findall(text)
    return Cause(clean_text(last[-1].strip(), 200), "") if last else None


_OF_CODES: Final = {
    "E-STDIO-EACCES": Cause(
        "the file may not be run", "chmod +x the file, or name the program that runs it as command"
    ),
    "E-HTTP-CONNECT": Cause("nothing listens at that address, or a firewall is between", "curl -v the url from here"),
    "E-HTTP-DNS": Cause("the host in the url does not exist, or there is no network", "check the url, network and VPN"),
    "E-HTTP-TLS": Cause("the server's TLS certificate is not trusted", "name your CA file in SSL_CERT_FILE"),
    "E-HTTP-TIMEOUT": Cause("the address does not answer", "check the url, network, VPN and proxy"),
}
_OF_EXITS: Final = {
    126: Cause("the program is not executable", "chmod +x the file"),
    127: Cause("a program that the server needs was not found", "install it, or put its folder on PATH in env"),
    137: Cause("it was killed, most often because memory ran out", "look for it in: dmesg | tail"),
    -9: Cause("it was killed, most often because memory ran out", "look for it in: dmesg | tail"),
    -11: Cause("the program crashed (segmentation fault)", "update or reinstall it"),
    139: Cause("the program crashed (segmentation fault)", "update or reinstall it"),
}


def _of_code(command: str, exit_code: int | None, error_code: str) -> Cause | None:
    program = os.path.basename(command)
    if error_code == "E-START-TIMEOUT" and program in PACKAGE_RUNNERS:
        return Cause(
            f"{program} may still be downloading the package",
            'run the command once by hand, or set "startTimeout": "120s" in the server\'s entry',
        )
    if error_code in _OF_CODES:
        return _OF_CODES[error_code]
    if exit_code in _OF_EXITS:
        return _OF_EXITS[exit_code]
    if exit_code == 0:
        return Cause(
            "the program ended by itself without an error; perhaps it is no MCP server over stdio",
            "run the command by hand; some servers need an argument such as stdio",
        )
    return None
