"""User login: verifies an identity provider's access tokens and identity assertions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from toolway.part_api.part import Command, Implied, Part

if TYPE_CHECKING:
    from toolway.parts.identity.settings import IdentitySettings

_CLI = "toolway.parts.identity.cli"


class Identity(Part):
    """User login with an identity provider, and the tools that each of its groups may use."""

    name = "identity"
    code: ClassVar[Mapping[str, str]] = {
        "parse_settings": "settings:parse_settings",
        "open": "runtime:IdentityRuntime",
        "routes": "admin:ROUTES",
        "schemas": "admin:SCHEMAS",
        "check_credentials": "doctor_check:check_credentials",
        "create_verifier": "connection:create_provider",
    }
    setting_keys = ("access",)
    gateway_keys = ("login",)
    commands: ClassVar[Mapping[str, Command]] = {
        "users": Command(
            "See who is logged in, and log users out.",
            subcommands={
                "ls": Command("List logged-in users.", f"{_CLI}:users_ls"),
                "logout": Command("Log a user out everywhere.", f"{_CLI}:users_logout"),
            },
            after="keys",
        )
    }
    former_commands: ClassVar[Mapping[str, str]] = {
        "sessions": "users",
        "sessions ls": "users ls",
        "sessions end": "users logout",
    }

    def implied(self, settings: IdentitySettings) -> Implied:
        login = settings.login
        if login is None:
            return Implied()
        url = login.resource_url.rstrip("/").removesuffix("/mcp")
        return Implied(url, "toolway.gateway.login is set", settings.access)
