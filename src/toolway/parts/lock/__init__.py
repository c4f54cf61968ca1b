"""Package locks: `npx` and `uvx` servers run exactly the packages in `toolway.lock`, from installed trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from toolway.part_api.part import Command, Part

if TYPE_CHECKING:
    from toolway.parts.lock.settings import LockSettings


class PackageLocks(Part):
    """The lock file next to a config file. A hub without a gateway uses it, too."""

    name = "lock"
    code: ClassVar[Mapping[str, str]] = {
        "parse_settings": "settings:parse_settings",
        "secure_added": "cli:secure_added",
    }
    gateway_keys = ("lock", "minAge")
    commands: ClassVar[Mapping[str, Command]] = {
        "trust lock": Command(
            "Pin the npm and PyPI packages your servers run.",
            "toolway.parts.lock.cli:lock",
            section="Trust",
            after="trust tools",
            is_offline=True,
        ),
        "trust update": Command(
            "Update a pinned package.",
            "toolway.parts.lock.update:update",
            section="Trust",
            after="trust lock",
            is_offline=True,
        ),
    }
    start_guard = "toolway.parts.lock.guard:PackageGuard"
    guard_checks = "toolway.parts.lock.doctor_check:PackageChecks"
    entry_file = "toolway.lock"
    program_folder = "packages"

    def requires_guard(self, settings: LockSettings | None, *, is_public: bool) -> bool:
        chosen = settings.lock if settings is not None else ""
        return chosen == "required" or (not chosen and is_public)
