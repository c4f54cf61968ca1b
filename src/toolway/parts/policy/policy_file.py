"""Reads policy files and validates them, including against the schemas of the tools they cover."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from toolway.catalog.catalog import Item
from toolway.errors import ConfigError
from toolway.parts.policy.engine import POLICY_CODE, InvalidPolicies, PolicyEngine, PolicyProblem

MAX_FILE_BYTES: Final = 1024 * 1024
MAX_NAMED: Final = 3  # problems in one error


class LoadedPolicy(NamedTuple):
    """The compiled policies of a file, ready to use."""

    engine: PolicyEngine
    file: str
    digest: str  # SHA-256 of the text


def policy_path(setting: str, config_file: str) -> Path:
    """Return a policy file's path. A relative path starts at the configuration file's folder."""
    folder = Path(config_file).absolute().parent if config_file else Path.cwd()
    return folder / Path(setting).expanduser()


def load_policy(path: Path) -> LoadedPolicy:
    """Read and validate a policy file. Raises `ConfigError` if it cannot be read or is invalid."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
        text = data.decode("utf-8")
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"cannot read the policy file: {path}",
            file=str(path),
            detail=getattr(exc, "strerror", None) or str(exc),
            hint="fix toolway.policy in the configuration file, or create a policy: toolway policy new",
            code=POLICY_CODE,
        ) from None
    return LoadedPolicy(parse_policy(text, str(path)), str(path), hashlib.sha256(data).hexdigest())


def parse_policy(text: str, file: str) -> PolicyEngine:
    """Compile the policies in a string. Raises `ConfigError` if they are not valid.

    `file` is only used in the error.
    """
    try:
        return PolicyEngine(text)
    except InvalidPolicies as exc:
        raise invalid_error(exc.problems, file) from None


def invalid_error(problems: Iterable[PolicyProblem], file: str) -> ConfigError:
    """Return the error for a policy file that has problems."""
    found = list(problems)
    more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return ConfigError(
        f"the policy file is not valid: {file}",
        file=file,
        line=found[0].line or None,
        detail="; ".join(str(each) for each in found[:MAX_NAMED]) + more,
        hint="fix it, then check it: toolway policy check",
        code=POLICY_CODE,
    )


def find_unfit(engine: PolicyEngine, tools: Iterable[Item]) -> list[PolicyProblem]:
    """Return the policies whose argument conditions do not fit a tool's schema.

    Each policy is compared with the tools that it can apply to.
    """
    problems = []
    for tool in tools:
        facts = engine.reduce.item("Tool", tool)
        for policy in engine.conditional_policies(facts):
            name = f"{tool.server}.{tool.name}"
            problem = engine.find_problem(policy, facts.arguments, name)
            if problem is not None:
                problems.append(PolicyProblem(policy.label, policy.line, problem, name))
    return problems
