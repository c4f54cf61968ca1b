"""Matters for people, as a gateway has them: its folder, its webhook, and the hub that it listens to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from toolway.addresses.policy import Addresses
from toolway.config.audit import Escalating
from toolway.hub import Hub
from toolway.telemetry.escalations import Escalations

if TYPE_CHECKING:
    from toolway.telemetry.webhook import Webhook


class Escalator:
    def __init__(
        self, settings: Escalating, state: Path, hub: Hub, mask: Callable[[str], str], addresses: Addresses
    ) -> None:
        self._webhook: Webhook | None = None
        if settings.webhook:
            from toolway.telemetry.webhook import Webhook  # with its library, which most never need

            self._webhook = Webhook(settings.webhook, settings.headers, addresses)

        def fix_of(server: str) -> str:
            status = hub.status().get(server)
            return status.fix if status is not None else ""

        tell = self._webhook.tell if self._webhook is not None else lambda matter: None
        folder = Path(settings.folder) if settings.folder else state / "escalations"
        self._escalations = Escalations(folder, mask=mask, fix_of=fix_of, tell=tell)
        hub.listen(self._escalations)  # before it is opened: what a crash left open is told then

    def start(self) -> None:
        self._escalations.start()
        if self._webhook is not None:
            self._webhook.start()

    async def close(self) -> None:
        await self._escalations.close()
        if self._webhook is not None:
            await self._webhook.close()
