"""The audit log's commands, signatures, PostgreSQL storage, doctor checks, and metrics.

The package `toolway.audit` writes the log, and programs can use it without a gateway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from toolway.part_api.part import Command, Metric, Part

if TYPE_CHECKING:
    from toolway.part_api import Check, GatewaySettings

_CLI = "toolway.parts.audit.cli"
_FILE = ("config",)


class AuditLogs(Part):
    """Everything about the audit log except recording calls.

    This part does not parse the audit setting, because programs may write a log too, and `toolway.config` checks the
    signer.
    """

    name = "audit"
    code: ClassVar[Mapping[str, str]] = {
        "open": "runtime:AuditRuntime",
        "check_file": "doctor_check:check_file",
        "check_security": "security_check:check_security",
    }
    audit_sinks: ClassVar[Mapping[str, str]] = {"postgresql": "toolway.parts.audit.postgres:create_postgres_sink"}
    commands: ClassVar[Mapping[str, Command]] = {
        "audit": Command(
            "Read, verify, and sign the audit log.",
            subcommands={
                "ls": Command("Show the latest records.", f"{_CLI}:audit_ls", options=_FILE),
                "verify": Command("Check that nobody changed the log.", f"{_CLI}:audit_verify", options=_FILE),
                "export": Command(
                    "Export records as JSON Lines; --sign adds a signature.",
                    f"{_CLI}_export:audit_export",
                    options=_FILE,
                ),
                "check": Command("Verify a signed export.", f"{_CLI}_export:audit_check", options=()),
                "prove": Command(
                    "Prove that one record is in a signed export.", f"{_CLI}_export:audit_prove", options=()
                ),
                "key": Command("Print the public key for signed exports.", f"{_CLI}_export:audit_key", options=_FILE),
                "restart": Command(
                    "Start over after the log was lost or changed.", f"{_CLI}_restart:audit_restart", options=_FILE
                ),
            },
            after="policy",
        )
    }
    metrics: ClassVar[Mapping[str, Metric]] = {
        "toolway_audit_failing": Metric("1 while the audit log cannot be written and calls are rejected"),
        "toolway_audit_waiting": Metric("Audit records that are not on disk yet"),
        "toolway_audit_lost": Metric("Audit records dropped because the buffer was full", kind="counter"),
    }

    def check_file(self, gateway: GatewaySettings) -> Iterable[Check]:
        return super().check_file(gateway) if gateway.audit is not None else ()  # the checks load the engine
