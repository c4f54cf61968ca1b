"""Exit codes of the CLI, its own errors, and suggestions for the user.

Scripts rely on the numbers: their meaning never changes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from toolway import errors


class ExitCode(enum.IntEnum):
    """Exit code of a `toolway` command."""

    OK = 0
    ERROR = 1  # any other failure
    USAGE = 2  # invalid command line
    CONFIG = 3  # invalid configuration
    UNREACHABLE = 4  # the server or gateway cannot be reached or started
    TOOL_FAILED = 5  # the tool ran and reported a failure
    AUTH = 6  # credentials are missing or were rejected
    TIMEOUT = 7
    PARTIAL = 8  # some servers are down
    LINT = 9  # the check found problems
    INTERRUPTED = 130  # Ctrl-C


class UsageError(errors.ToolwayError):
    """Raised when the command line is invalid or lacks a needed argument."""

    code = "E-USAGE"


class GatewayError(errors.ToolwayError):
    """Raised when the gateway does not respond, or when the response does not come from a gateway."""

    code = "E-GATEWAY"


class GatewayDenied(GatewayError):
    """Raised when the gateway rejects the access token of the command."""

    code = "E-GATEWAY-TOKEN"


class GatewayAdmin(GatewayDenied):
    """Raised when the gateway accepts the token, but the request requires an administrator."""

    code = "E-GATEWAY-ADMIN"


_EXIT_CODES = (
    (UsageError, ExitCode.USAGE),
    (GatewayDenied, ExitCode.AUTH),
    (GatewayError, ExitCode.UNREACHABLE),
    (errors.ConfigError, ExitCode.CONFIG),
    (errors.InvalidArguments, ExitCode.USAGE),
    (errors.ServerUnavailable, ExitCode.UNREACHABLE),
    (errors.AccessDenied, ExitCode.AUTH),
    (errors.CallTimeout, ExitCode.TIMEOUT),
    (errors.ToolError, ExitCode.TOOL_FAILED),
)


def exit_code_for(error: errors.ToolwayError) -> ExitCode:
    """Return the exit code of a command that ends with this error."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), ExitCode.ERROR)


# -- suggestions -------------------------------------------------------------------------------------------------------


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion such as `did you mean tools?`; "" if no name in `known` is similar."""
    matches = get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(matches)}?" if matches else ""


@dataclass(frozen=True)
class SetupState:
    """Counts of servers, unusable entries and untrusted files, found without starting a server.

    `choose_next_step` derives its suggestion from them.
    """

    servers: int = 0
    never_queried: int = 0
    unusable_entries: int = 0  # entries with errors
    untrusted_files: int = 0  # project files that are not trusted
    client_servers: int = 0  # servers in client config files
    gateway_running: bool = False
    down_servers: tuple[str, ...] = ()


@dataclass(frozen=True)
class NextStep:
    """Command suggested to the user as the next step, and the reason for it."""

    why: str
    command: str


def choose_next_step(state: SetupState) -> NextStep:
    """Return the most urgent command to suggest to the user in this state."""
    if state.untrusted_files:
        return NextStep("A project's config file is not trusted yet", "toolway trust")
    if state.unusable_entries:
        return NextStep(f"{_count_entries(state.unusable_entries)} cannot be used", "toolway config validate")
    if not state.servers and state.client_servers:
        return NextStep(f"Your clients have {_count_servers(state.client_servers)}; import them", "toolway init")
    if not state.servers:
        return NextStep("Import servers from your clients, or add one", "toolway init")
    if state.down_servers:
        return NextStep(
            f"{', '.join(state.down_servers[:3])} cannot be used; find the cause",
            f"toolway doctor {state.down_servers[0]}",
        )
    if state.never_queried:
        return NextStep(f"{_count_servers(state.never_queried)} never responded yet; check them", "toolway doctor")
    if state.gateway_running:
        return NextStep("All servers are up; find a tool", "toolway tools WORD")
    return NextStep("Call a tool, or serve all servers to your clients at one endpoint", "toolway serve")


def _count_servers(number: int) -> str:
    return "1 server" if number == 1 else f"{number} servers"


def _count_entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"
