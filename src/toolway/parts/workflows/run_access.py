"""Access rights of workflow runs in a gateway."""

from __future__ import annotations

from collections.abc import Callable

from toolway.errors import AccessDenied, ToolwayError
from toolway.gateway.principals import KEY_PREFIX, LOCAL_ADMIN, USER_PREFIX, ApiKeyStore, Principal
from toolway.types import Json


class GatewayRunAccess:
    """The access rights of a gateway's workflow runs: a run may call whatever the user who started it may call now.

    `find_user` returns a user's principal from the last login at this gateway. Without such a login, that user's runs
    cannot call anything.
    """

    def __init__(
        self,
        api_keys: ApiKeyStore | None,
        may_call: Callable[[Principal, str, Json | None], bool],
        may_see: Callable[[Principal, str], bool],
        find_user: Callable[[str], Principal | None] = lambda id_: None,
    ) -> None:
        self._api_keys = api_keys
        self._may_call = may_call
        self._may_see = may_see
        self._find_person = find_user

    def caller_id(self, caller: str) -> str:
        return caller if caller.startswith((KEY_PREFIX, USER_PREFIX)) else ""

    def user_of(self, caller: str) -> str:
        return self._api_keys.user_of(caller) if self._api_keys is not None else caller

    def find_problem(self, caller: str, tool: str, arguments: Json | None = None) -> ToolwayError | None:
        principal = self._find_principal(caller)
        if principal is None and caller.startswith(USER_PREFIX):
            return AccessDenied(
                "the user who started the run is not logged in",
                detail=f"{caller}: this gateway has seen no valid token from this user in the last 24 hours",
                hint="ask the user to log in again and call any tool; then resume the run",
                code="E-WORKFLOW-STARTER",
            )
        if principal is None:
            return AccessDenied(
                "the API key that started the run was revoked",
                detail=caller,
                hint="start the workflow again with a valid key",
                code="E-WORKFLOW-STARTER",
            )
        if not tool or self._may_call(principal, tool, arguments):
            return None
        starter = "user who" if principal.is_user else "API key that"
        return AccessDenied(
            f"{tool} is not allowed for the {starter} started the run",
            detail=f"{principal.name}: its access or the gateway's policy does not include the tool",
            hint="allow the tool for the key or user, or start the workflow with another one",
            code="E-WORKFLOW-STARTER",
        )

    def may_see(self, caller: str, tool: str) -> bool:
        """Return True if a run's caller may see a tool. For an agent run, this also decides what its model sees."""
        principal = self._find_principal(caller)
        return principal is not None and self._may_see(principal, tool)

    def roles(self, caller: str) -> tuple[str, ...]:
        """Return the names under which a caller may answer questions from runs."""
        principal = self._find_principal(caller)
        return principal.roles if principal is not None else ()

    def _find_principal(self, caller: str) -> Principal | None:
        if caller.startswith(USER_PREFIX):
            return self._find_person(caller)
        if self._api_keys is None or not caller.startswith(KEY_PREFIX):
            return LOCAL_ADMIN
        return self._api_keys.principal_for(caller.removeprefix(KEY_PREFIX))
