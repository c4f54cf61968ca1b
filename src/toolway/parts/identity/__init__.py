"""User login: verifies access tokens and identity assertions of an identity provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from toolway.part_api.part import Command, Implied, Part, PartContext, PartRuntime

if TYPE_CHECKING:
    from toolway.config.loader import LoadedConfig
    from toolway.gateway.admin.routes import Route
    from toolway.gateway.credentials import CredentialVerifier
    from toolway.part_api import SubjectReport
    from toolway.parts.identity.settings import IdentitySettings
    from toolway.types import Json

_CLI = "toolway.parts.identity.cli"


class Identity(Part):
    """User login with an identity provider, and the tools that its groups may use."""

    name = "identity"
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

    def parse_settings(self, block: Mapping[str, Any], variables: Mapping[str, str]) -> Any:
        from toolway.parts.identity.settings import parse_settings

        return parse_settings(block, variables)

    def implied(self, settings: IdentitySettings) -> Implied:
        login = settings.login
        if login is None:
            return Implied()
        url = login.resource_url.rstrip("/").removesuffix("/mcp")
        return Implied(url, "toolway.gateway.login is set", settings.access)

    def open(self, context: PartContext) -> PartRuntime:
        from toolway.parts.identity.runtime import IdentityRuntime

        return IdentityRuntime(context)

    def routes(self) -> Sequence[Route]:
        from toolway.parts.identity.admin import ROUTES

        return ROUTES

    def schemas(self) -> Mapping[str, Json]:
        from toolway.parts.identity.admin import SCHEMAS

        return SCHEMAS

    async def check_credentials(
        self, config: LoadedConfig | None, read: Callable[[], str] | None = None
    ) -> Sequence[SubjectReport]:
        from toolway.parts.identity.doctor_check import check_credentials

        return await check_credentials(config, read)

    def create_verifier(self, config: LoadedConfig) -> CredentialVerifier | None:
        from toolway.parts.identity.connection import create_provider

        return create_provider(config)
