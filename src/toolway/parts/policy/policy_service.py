"""A running gateway's policy file (`toolway.policy`): loaded at startup, and again when it changes.

If the file is invalid at startup, the process ends. If it becomes invalid later, the previous policies stay in use, and
an alert is raised. If a policy is configured while the gateway is running but cannot be read, everything is denied.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final

from toolway.errors import ConfigError
from toolway.events import PartCondition, PolicyChanged
from toolway.part_api.part import Part, PartContext, PartRuntime
from toolway.parts.policy.access_policy import AccessPolicy
from toolway.parts.policy.policy_file import find_unfit, invalid_error, load_policy, policy_path

if TYPE_CHECKING:
    from pathlib import Path

    from toolway.parts.policy.policy_file import LoadedPolicy
    from toolway.parts.policy.settings import PolicySettings

POLL_INTERVAL_S: Final = 0.5  # seconds between two polls of the file
REJECTED: Final = "policy-rejected"  # the condition of an alert
MAX_REPORTED: Final = 20  # policies that do not fit a tool, in the log
_log = logging.getLogger("toolway.gateway")


class PolicyService(PartRuntime):
    """Loads a gateway's policy file, and reloads it when it changes.

    The Cedar library is loaded only if a policy is configured.
    """

    def __init__(self, part: Part, context: PartContext) -> None:
        self._hub = context.hub
        self._config_file = context.config_file
        self._permissions = context.permissions
        context.permissions.decide_by(lambda: self.policy)
        self._path: Path | None = None
        self._stamp: object = None
        self._loaded: LoadedPolicy | None = None
        self._policy: AccessPolicy | None = None
        self._reported: set[tuple[str, str]] = set()  # policies that do not fit a tool, which were logged
        self._hour = -1
        self.problem = ""  # why the file cannot be used; "" if it is in use

    @property
    def policy(self) -> AccessPolicy | None:
        """The policy in use, or None if no policy is configured."""
        return self._policy

    def start(self, settings: Any) -> None:
        """Load the policy file when the gateway starts.

        Raises `ConfigError` if the file cannot be used. The gateway must then not start.
        """
        setting = _file_in(settings)
        if not setting:
            return

        self._path = policy_path(setting, self._config_file())
        self._stamp = _file_stamp(self._path)
        self._use(load_policy(self._path))

    async def reload(self, settings: Any) -> list[str]:
        """Apply the policy setting from a reloaded configuration, and load the policy file again if it changed.

        Return the file's problems.
        """
        setting = _file_in(settings)
        if not setting:
            if self._path is not None:
                _log.warning("toolway.policy was removed from the configuration: policies are off")
                self._path = self._loaded = self._policy = None
                self.problem = ""
                self._permissions.on_changed()
            return []

        path = policy_path(setting, self._config_file())
        if path != self._path or _file_stamp(path) != self._stamp:
            self._path = path
            await self._reload()
        return [self.problem] if self.problem else []

    async def run(self) -> None:
        """Poll the policy file until cancelled: reload it if it changed, and report policies that do not fit a tool."""
        if self._loaded is not None:
            self._emit("loaded")
        seen = self._stamp
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            if self._path is None:
                continue
            before, seen = seen, _file_stamp(self._path)
            if seen != self._stamp and seen == before:  # changed, and stable since the last poll
                await self._reload()
            self._report_unfit()
            self._check_hour()

    async def _reload(self) -> None:
        """Reload the policy file. If it cannot be used, the previous policies stay in use.

        Without previous policies, everything is denied.
        """
        path = self._path
        assert path is not None
        self._stamp = _file_stamp(path)
        tools = self._hub.lists.catalog.tools()

        def read() -> LoadedPolicy:
            loaded = load_policy(path)
            unfit = find_unfit(loaded.engine, tools)
            if unfit:
                raise invalid_error(unfit, str(path))
            return loaded

        try:
            loaded = await asyncio.to_thread(read)
        except ConfigError as exc:
            self.problem = f"{exc.message}: {exc.detail}"
            if self._policy is None:
                self._close()
                _log.error("cannot load a policy, so everything is denied: %s", exc)
            else:
                _log.error("policy file rejected, keeping the policies loaded before: %s", exc)
            self._emit("rejected", self.problem)
            return
        if self._loaded is None or loaded.digest != self._loaded.digest or self.problem:
            self._use(loaded)
            self._permissions.on_changed()
            _log.info("policy file loaded: %d policies", len(loaded.engine.policies))
            self._emit("loaded")

    def _use(self, loaded: LoadedPolicy) -> None:
        self._loaded, self._policy = loaded, AccessPolicy(loaded.engine, self._hub.emit)
        self._reported = set()
        self.problem = ""

    def _close(self) -> None:
        """Deny everything, because a policy is configured but could never be loaded."""
        self._loaded, self._policy = None, AccessPolicy(None, self._hub.emit)
        self._permissions.on_changed()

    def _report_unfit(self) -> None:
        """Log each policy that is invalid for a tool's argument schema, once.

        Calls to that tool are denied.
        """
        engine = self._loaded.engine if self._loaded is not None else None
        if engine is None or len(engine.unfit) == len(self._reported):
            return
        new = [each for key, each in list(engine.unfit.items()) if key not in self._reported]
        self._reported = set(engine.unfit)
        for problem in new[:MAX_REPORTED]:
            _log.error("calls of %s are denied, because a policy is not valid for it: %s", problem.tool, problem)
        if new:
            self._emit("unfit", "; ".join(map(str, new[:3])))

    def _check_hour(self) -> None:
        """Call `on_changed` when the hour changed and a policy reads it, so clients list again."""
        policy = self._policy
        if policy is not None and policy.reads_hour and policy.hour != self._hour:
            if self._hour >= 0:
                self._permissions.on_changed()
            self._hour = policy.hour

    def _emit(self, action: str, reason: str = "") -> None:
        digest = self._loaded.digest if self._loaded is not None else ""
        self._hub.emit(PolicyChanged("", action, reason[:1000], str(self._path), digest))
        if action == "loaded":
            self._hub.emit(PartCondition("", REJECTED, is_open=False))
            return
        if action == "unfit":
            message = "a policy is not valid for the arguments of a tool, so its calls are denied"
        elif digest:
            message = "the policy file was rejected; the policies loaded before stay in use"
        else:
            message = "cannot use the policy file, so everything is denied"
        hint = "fix the file, then check it: toolway policy check"
        self._hub.emit(PartCondition("", REJECTED, True, message, reason[:1000], hint))


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _file_in(settings: PolicySettings | None) -> str:
    return settings.policy if settings is not None else ""
