"""The doctor of a running gateway: `toolway doctor` checks on the servers it serves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolway._os import home_folder
from toolway.cli.commands.diagnostics import select_servers
from toolway.config.masking import build_masker
from toolway.config.schema import Server
from toolway.config.scopes import ApprovalGate
from toolway.doctor.entry_checks import CheckTarget
from toolway.doctor.file_checks import CheckPlan, plan_own_files
from toolway.doctor.run import run_checks
from toolway.types import Json


async def check_servers(
    name: str | None,
    config: Path | None,
    current: Mapping[str, Server] | None,
    gate: ApprovalGate | None,
    rules: Mapping[str, Any],
) -> Json:
    """Check one server, or all of them. `current` replaces the config file; `rules` are the gateway's."""
    if current is None:
        plan = plan_own_files(os.environ, Path.cwd(), config, gate)
    else:
        found = current.items()
        plan = CheckPlan(targets=[CheckTarget(each, server, "the cluster database", **rules) for each, server in found])
    selected = select_servers(plan, [] if name is None else [name])
    report = await run_checks(selected.targets, os.environ, files=selected.files)
    servers = [target.server for target in selected.targets if target.server is not None]
    return report.with_tilde(home_folder(os.environ)).apply_mask(build_masker(servers)).to_json()
