"""Diagnoses a failed start from the command, exit code, stderr, and Toolway's own error code.

This is a table, because it grows with experience. Each row is a pattern seen in practice, its meaning, and a hint.
Certain rows come before merely probable ones, and the first match wins.
"""

from __future__ import annotations

import functools
import os.path
import re
from typing import Final, NamedTuple

from toolway._os import HAS_DRIVES
from toolway.protocol.sanitize import sanitize

MAX_STDERR_CHARS: Final = 8 * 1024  # at the end of stderr, where a failed start reports its reason
MAX_LINE_CHARS: Final = 300  # per line; keeps every pattern fast for any output
NODE_PROGRAMS: Final = frozenset({"npx", "npm", "node", "bunx", "pnpm", "yarn"})
PACKAGE_RUNNERS: Final = frozenset({"npx", "uvx", "bunx", "pnpm", "pipx", "docker", "podman"})


class Diagnosis(NamedTuple):
    """Likely cause of a failed start, and a hint to fix it."""

    cause: str
    hint: str


class _Pattern(NamedTuple):
    """Pattern for a server's stderr, with the cause and hint that it indicates."""

    pattern: re.Pattern[str]
    cause: str  # {0} is the first group that matched
    hint: str


def diagnose(command: str, exit_code: int | None, stderr: str, error_code: str) -> Diagnosis | None:
    """Return the most likely cause of a server's failed start, or None if it is unknown."""
    tail = "\n".join(line[:MAX_LINE_CHARS] for line in stderr[-MAX_STDERR_CHARS:].splitlines())
    return (
        _diagnose_spawn(command, error_code) or _diagnose_stderr(tail) or _diagnose_code(command, exit_code, error_code)
    )


def _diagnose_spawn(command: str, error_code: str) -> Diagnosis | None:
    if error_code != "E-STDIO-ENOENT":
        return None
    program = os.path.basename(command)
    if not HAS_DRIVES and _WINDOWS_PATH.match(command):
        own_name = re.split(r"[\\/]", command)[-1].removesuffix(".exe")
        return Diagnosis(
            f"{command} is a Windows path, and this is another system",
            f'use the name or path of the program here: "command": "{own_name}"',
        )
    if re.search(r"\s", command.strip()):
        first, *rest = command.split()
        args = ", ".join(f'"{word}"' for word in rest)
        return Diagnosis(
            "the command and its arguments are in one string",
            f'set "command": "{first}", "args": [{args}] in its entry',
        )
    if program in NODE_PROGRAMS:
        return Diagnosis(
            f"Node.js is not installed, or {program} is not on PATH", "install Node.js 22 or newer (nodejs.org)"
        )
    if program in ("uv", "uvx"):
        return Diagnosis(f"uv is not installed, or {program} is not on PATH", "install uv: pip install uv")
    if program == "python":
        return Diagnosis("this system has no program called python", 'set "command": "python3"')
    if os.path.dirname(command):
        return Diagnosis(f"the file {command} does not exist", f"ls -l {command}")
    return Diagnosis(
        f"{program} is not installed, or not on PATH", f"which {program}, and use the full path as command"
    )


def _pattern(pattern: str, cause: str, hint: str) -> _Pattern:
    return _Pattern(re.compile(pattern, re.MULTILINE), cause, hint)


_WINDOWS_PATH: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_ENV_VARIABLE: Final = r"\b(?!ERR_|NODE_MODULE_)([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b"
_MISSING: Final = r"(?:required|missing|not (?:set|provided|found|defined)|undefined|must be set|unset|is empty)"
_REQUIRED: Final = r"\b(?i:missing|required|provide|please set|must set|needs?|no)\b"
_STDERR_PATTERNS: Final = (
    # -- getting the program ------------------------------------------------------------------------------------------
    _pattern(
        r"self[- ]signed certificate|CERTIFICATE_VERIFY_FAILED|[Uu]nable to (?:get|verify)[^\n]{0,30} certificate"
        r"|UNABLE_TO_(?:GET_ISSUER|VERIFY_LEAF)|SELF_SIGNED_CERT",
        "a TLS certificate is not trusted, often a company proxy's",
        "set your CA file in its env: NODE_EXTRA_CA_CERTS (Node.js) or SSL_CERT_FILE (Python)",
    ),
    _pattern(
        r"npm (?:ERR!|error) 404\s+(?:The requested resource )?'?(@?[^@'\s]+)@?[^'\n]*'?"
        r" (?:is not in|could not be found)",
        "the npm package {0} does not exist, or is private",
        "check the name of the package in args: npm view {0}",
    ),
    _pattern(
        r"npm (?:ERR!|error) code E?404",
        "the npm package does not exist, or is private",
        "check the name of the package in args",
    ),
    _pattern(
        r"npm (?:ERR!|error) code (ENOTFOUND|ETIMEDOUT|ECONNREFUSED|ECONNRESET|EAI_AGAIN|ENETUNREACH)",
        "npm cannot reach its registry ({0})",
        "check network and proxy with: npm ping; or install the package beforehand",
    ),
    _pattern(
        r"No matching distribution found for (\S+)|Because (\S+) was not found in the package registry",
        "the Python package {0} does not exist for this Python",
        "check the name of the package in args",
    ),
    _pattern(
        r"[Ee]xecutable (?:named )?`([^`\n]+)` is not provided by package",
        "the package has no program {0}",
        "put both in args: --from PACKAGE PROGRAM; the lines below list its programs",
    ),
    _pattern(
        r"Your cache folder contains root-owned files",
        "npm's cache belongs to root",
        "give it back to your user: sudo chown -R $(id -u):$(id -g) ~/.npm",
    ),
    _pattern(
        r"No version is set for command (\S+)|pyenv: version `([^'\n]+)' is not installed",
        "the version manager has no version of {0} for this folder",
        "pick one with your version manager, or set command to the program's full path",
    ),
    _pattern(
        r"the input device is not a TTY",
        "the container was asked for a terminal, which a client does not have",
        "remove -t from args, and keep -i",
    ),
    _pattern(
        r"Cannot connect to the Docker daemon|docker daemon is not running|dockerDesktopLinuxEngine",
        "Docker is not running",
        "start Docker, then: docker info",
    ),
    _pattern(
        r"pull access denied for ([^\s,]+)|manifest for (\S+) not found",
        "the image {0} does not exist, or needs a login",
        "docker pull {0}",
    ),
    _pattern(
        r"\\r['\u2019]?: (?:No such file|command not found)|\^M: bad interpreter|\$'\\r': command not found",
        "a script has Windows line endings",
        "save it with Unix line endings, or run sed -i 's/\\r$//' on its file",
    ),
    _pattern(
        r": ([^\s:']+): (?:command )?not found|command not found: (\S+)|env: \W?([\w.+-]+)\W?: No such file",
        "the server needs the program {0}, which is not installed or not on PATH",
        "install {0}, or put its folder on PATH in the server's env",
    ),
    _pattern(r"spawn (\S+) ENOENT", "the server tried to run {0}, which is not on its PATH", "install {0}"),
    # -- the program and its runtime ----------------------------------------------------------------------------------
    _pattern(
        r"AttributeError: '(?:Server|FastMCP)' object has no attribute '\w+'|cannot import name '\w+' from 'mcp[.\w]*'"
        r"|No module named 'mcp\.[\w.]+'",
        "the server was written for another version of the Python package mcp",
        "start it with the older one, for example uvx --with 'mcp<2' …; or update the server",
    ),
    _pattern(
        r"Executable doesn't exist at [^\n]*(?:chrom|firefox|webkit|playwright)|playwright install",
        "the browser that the server controls is not installed",
        "npx playwright install chromium",
    ),
    _pattern(
        r"error while loading shared libraries: ([^\s:]+)|ImportError: ([^\s:]+\.so[.\d]*): cannot open shared object",
        "the system library {0} is missing",
        "install the system package that contains it",
    ),
    _pattern(
        r"NODE_MODULE_VERSION|compiled against a different Node\.js version",
        "a native module was built for another version of Node.js",
        "npm rebuild, in the folder of the server",
    ),
    _pattern(
        r"ERR_UNKNOWN_BUILTIN_MODULE|No such built-in module: node:"
        r"|EBADENGINE|Unsupported engine|[Rr]equires? [Nn]ode(?:\.js)?\s*+(?:version\s*+)?[>=^~v]*+\s*+\d"
        r"|ReferenceError: (?:fetch|File|Headers|ReadableStream|WebSocket|CustomEvent|crypto) is not defined"
        r"|SyntaxError: Unexpected (?:token|identifier|reserved word)(?![^\n]*JSON)",
        "Node.js is too old for this server",
        "node --version; install Node.js 22 or newer",
    ),
    _pattern(
        r"requires a different Python|requires Python\s*[<>=!~]|Python>=\d\.\d+ is required"
        r"|SyntaxError: invalid syntax",
        "the Python that runs it has the wrong version",
        "python3 --version; use the version the server asks for, e.g. uvx --python 3.12 …",
    ),
    _pattern(
        r"ModuleNotFoundError: No module named '([^']+)'",
        "the Python module {0} is not installed where the server runs",
        "install it for the Python in command, or start the server with uvx",
    ),
    _pattern(
        r"Cannot find (?:module|package) '(/[^'\n]*/(?:dist|build|out|lib)/[^'\n]+)'",
        "the file {0} does not exist: the server is not built, or the path is wrong",
        "npm install && npm run build, in the server's folder; or fix the path in args",
    ),
    _pattern(
        r"Cannot find (?:module|package) '(/[^'\n]+)'",
        "the file {0} does not exist",
        "fix the path in args of the server's entry",
    ),
    _pattern(
        r"Cannot find (?:module|package) '([^']+)'",
        "the Node.js module {0} is missing",
        "npm install, in the folder of the server; or check the path in args",
    ),
    _pattern(
        r"version `?(GLIBC[A-Z]*_[\d.]+)'? not found",
        "the program was built for a newer system ({0})",
        "use a build for this system, or a container",
    ),
    _pattern(r"Exec format error|ENOEXEC", "the program was built for another processor", "use a build for this one"),
    _pattern(
        r"heap out of memory|^MemoryError", "the server ran out of memory", "increase its memory, or reduce its load"
    ),
    # -- its settings -------------------------------------------------------------------------------------------------
    _pattern(
        rf"KeyError: '{_ENV_VARIABLE}'|{_ENV_VARIABLE}[^\n]{{0,60}}?{_MISSING}"
        rf"|{_REQUIRED}[^\n]{{0,60}}?{_ENV_VARIABLE}",
        "the variable {0} is missing",
        'add it to the server\'s entry: "env": {{"{0}": "${{{0}}}"}}',
    ),
    _pattern(
        r"(?i)\b(?:missing|no|required|invalid|provide)\b[^\n]{0,40}?"
        r"\b(api[ _-]?key|(?:access[ _-]?)?token|credentials?)\b",
        "a credential is missing or wrong ({0})",
        "find the variable in the server's documentation, and add it to env: a server does not inherit your variables,"
        ' unless its entry has "envPolicy": "inherit"',
    ),
    _pattern(
        r"the following arguments are required: ([^\n]+)|[Mm]issing required (?:argument|option)s?:? ([^\n]+)",
        "an argument is missing: {0}",
        "add it to args in the server's entry",
    ),
    _pattern(
        r"unrecognized arguments: ([^\n]+)|[Uu]nknown (?:option|argument):? ([^\n]+)|[Uu]nexpected argument '([^']+)'",
        "the server does not know the argument {0}",
        "fix args in the server's entry",
    ),
    # -- its surroundings at run time ---------------------------------------------------------------------------------
    _pattern(r"ENOSPC|[Nn]o space left on device", "the disk is full", "free disk space: df -h"),
    _pattern(
        r"EMFILE|[Tt]oo many open files",
        "too many files are open",
        "raise the limit: ulimit -n 4096; or run fewer servers",
    ),
    _pattern(
        r"(?:Cannot access|Error accessing) directory ([^\s:,]+)",
        "the folder {0} does not exist, or may not be read",
        "fix the folder in args of the server's entry: ls -ld {0}",
    ),
    _pattern(
        r"(\S+) is not a valid Git repository",
        "{0} is not a Git repository",
        "fix the folder in args of the server's entry, or run git init there",
    ),
    _pattern(
        r"unable to open database file",
        "the database file cannot be opened",
        "fix its path in args or env, and check that its folder exists",
    ),
    _pattern(
        r"EADDRINUSE[^\n]*?:(\d{2,5})\b",
        "the port {0} is already in use, perhaps by a copy of this server",
        "find the process: ss -ltnp 'sport = :{0}', then stop it or pick another port",
    ),
    _pattern(
        r"EADDRINUSE|[Aa]ddress already in use",
        "a port is already in use, perhaps by a copy of this server",
        "find the process: ss -ltnp, then stop it or pick another port",
    ),
    _pattern(
        r"(?:EACCES|EPERM)[^\n]*? '([^'\n]+)'|[Pp]ermission denied: '([^'\n]+)'|(\S+): Permission denied",
        "the server may not access {0}",
        "ls -ld {0}, and grant this user access to it",
    ),
    _pattern(
        r"\bEACCES\b|[Pp]ermission denied",
        "the server may not access a resource it needs",
        "find the resource in its stderr, and grant this user access to it",
    ),
    _pattern(
        r"ENOENT: no such file or directory[^\n]*? '([^'\n]+)'|No such file or directory: '([^'\n]+)'"
        r"|can't open file '([^'\n]+)'",
        "the file {0} does not exist",
        "fix the path in args, env or cwd of the server's entry",
    ),
    _pattern(
        r"\b401\b[^\n]{0,40}[Uu]nauthori[sz]ed|\b[Uu]nauthori[sz]ed\b|(?i:bad credentials|invalid_token)"
        r"|(?i:status(?: code)?:? )401\b",
        "its credential was rejected",
        "replace the token in env or headers of the server's entry",
    ),
    _pattern(
        r"\b403\b[^\n]{0,40}[Ff]orbidden|(?i:status(?: code)?:? )403\b",
        "its credential lacks a right",
        "add the scopes named in the server's documentation to the token",
    ),
    _pattern(
        r"(?:ENOTFOUND|EAI_AGAIN) ([\w.-]+)",
        "the host {0} cannot be resolved",
        "check network, VPN and the address in the server's entry",
    ),
    _pattern(
        r"Name or service not known|Temporary failure in name resolution|getaddrinfo failed|EAI_AGAIN",
        "the name of a host cannot be resolved",
        "check network, VPN and the address in the server's entry",
    ),
    _pattern(
        r"ECONNREFUSED ([\w.:\[\]-]+)",
        "nothing listens at {0}, which the server depends on",
        "start what the server connects to, or fix its address",
    ),
    _pattern(
        r"ECONNREFUSED|[Cc]onnection refused",
        "a service that the server depends on is not running",
        "start what the server connects to, or fix its address",
    ),
    _pattern(
        r"ETIMEDOUT|(?i:(?:connection|connect|request|read) timed out)",
        "a service that the server depends on did not respond in time",
        "check network, VPN and proxy",
    ),
)
_FINAL_ERROR_LINE: Final = re.compile(
    r"^(?:[\w.]*(?:Error|Exception)|[Ff]atal(?: error)?|FATAL|panic|[Ee]rror|ERROR)\b:? ?.+", re.MULTILINE
)


@functools.lru_cache(maxsize=256)  # evaluated again for every status request
def _diagnose_stderr(text: str) -> Diagnosis | None:
    for row in _STDERR_PATTERNS:
        match = row.pattern.search(text)
        if match:
            name = sanitize(next((group for group in match.groups() if group), ""), 100)
            return Diagnosis(row.cause.format(name), row.hint.format(name))
    # A traceback and most crashes end with the sentence that matters.
    last = _FINAL_ERROR_LINE.findall(text)
    return Diagnosis(sanitize(last[-1].strip(), 200), "") if last else None


_BY_ERROR_CODE: Final = {
    "E-STDIO-EACCES": Diagnosis(
        "the file is not executable", "chmod +x the file, or use the program that runs it as command"
    ),
    "E-HTTP-CONNECT": Diagnosis(
        "nothing listens at that address, or a firewall blocks it", "curl -v the url from here"
    ),
    "E-HTTP-DNS": Diagnosis(
        "the host in the url does not exist, or the network is down", "check the url, network and VPN"
    ),
    "E-HTTP-TLS": Diagnosis("the server's TLS certificate is not trusted", "set your CA file: tls.caFile"),
    "E-HTTP-TIMEOUT": Diagnosis("the address does not respond", "check the url, network, VPN and proxy"),
}
_BY_EXIT_CODE: Final = {
    126: Diagnosis("the program is not executable", "chmod +x the file"),
    127: Diagnosis("a program that the server needs was not found", "install it, or put its folder on PATH in env"),
    137: Diagnosis("it was killed, most often because memory ran out", "check the kernel log: dmesg | tail"),
    -9: Diagnosis("it was killed, most often because memory ran out", "check the kernel log: dmesg | tail"),
    -11: Diagnosis("the program crashed (segmentation fault)", "update or reinstall it"),
    139: Diagnosis("the program crashed (segmentation fault)", "update or reinstall it"),
}


def _diagnose_code(command: str, exit_code: int | None, error_code: str) -> Diagnosis | None:
    program = os.path.basename(command)
    if error_code == "E-START-TIMEOUT" and program in PACKAGE_RUNNERS:
        return Diagnosis(
            f"{program} may still be downloading the package",
            'run the command once manually, or set "startTimeout": "120s" in the server\'s entry',
        )
    if error_code in _BY_ERROR_CODE:
        return _BY_ERROR_CODE[error_code]
    if exit_code in _BY_EXIT_CODE:
        return _BY_EXIT_CODE[exit_code]
    if exit_code == 0:
        return Diagnosis(
            "the program ended by itself without an error; it may not be an MCP server over stdio",
            "run the command manually; some servers need an argument such as stdio",
        )
    return None
