"""What the command ends with. Scripts rely on these numbers: they never change their meaning."""

from __future__ import annotations

import enum

from toolway import errors


class Exit(enum.IntEnum):
    OK = 0
    ERROR = 1  # any other failure
    USAGE = 2  # the command line is wrong
    CONFIG = 3  # the configuration is wrong
    UNREACHABLE = 4  # the server cannot be reached or started
    TOOL_FAILED = 5  # the tool ran and says that it failed
    AUTH = 6  # the server wants credentials, or other ones
    TIMEOUT = 7
    PARTIAL = 8  # some servers are down
    LINT = 9  # what was examined has faults
    INTERRUPTED = 130  # Ctrl-C


class UsageError(errors.ToolwayError):
    """The command line cannot be understood."""

    code = "E-USAGE"


class GatewayError(errors.ToolwayError):
    """The gateway does not answer, or not as one."""

    code = "E-GATEWAY"


class GatewayDenied(GatewayError):
    """The gateway answers, but not to this token."""

    code = "E-GATEWAY-TOKEN"


class GatewayAdmin(GatewayDenied):
    """The gateway knows this token, and keeps this for administrators."""

    code = "E-GATEWAY-ADMIN"


_OF_CLASSES = (
    (UsageError, Exit.USAGE),
    (GatewayDenied, Exit.AUTH),
    (GatewayError, Exit.UNREACHABLE),
    (errors.ConfigError, Exit.CONFIG),
    (errors.Unavailable, Exit.UNREACHABLE),
    (errors.Denied, Exit.AUTH),
    (errors.TimedOut, Exit.TIMEOUT),
    (errors.ToolFailed, Exit.TOOL_FAILED),
)


def of_error(error: errors.ToolwayError) -> Exit:
    return next((code for kind, code in _OF_CLASSES if isinstance(error, kind)), Exit.ERROR)
