"""The options that commands share, in one place: how to talk, which file, which gateway.

They may stand before or after the name of the command. A command never sees them one by one: it gets a `Session`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

if TYPE_CHECKING:
    from toolway.cli.output import Output

TALK: Final = frozenset({"as_json", "quiet", "verbose", "no_color"})
FILE: Final = TALK | {"config"}
PLACE: Final = FILE | {"gateway", "token", "no_gateway"}


@dataclass(frozen=True)
class Shared:
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="The file of servers.", show_default=False),
    ] = None
    gateway: Annotated[
        str | None, typer.Option("--gateway", "-g", metavar="URL", help="Ask this gateway.", show_default=False)
    ] = None
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            envvar="TOOLWAY_TOKEN",
            show_envvar=False,
            help="What opens it, or $TOOLWAY_TOKEN.",
            show_default=False,
        ),
    ] = None
    no_gateway: Annotated[bool, typer.Option("--no-gateway", help="Ask no gateway, even if one runs here.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the data and errors.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="More about what happens, on stderr.")] = False
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour, as with NO_COLOR=1.")] = False

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value not in (None, False)}

    def joined(self, later: Mapping[str, Any]) -> Shared:
        """With what stands after the command's name, which counts more."""
        return Shared(**{**self.given(), **Shared(**later).given()})


def parameters(names: frozenset[str]) -> list[Parameter]:
    """The chosen ones, as parameters of a function."""
    hints = get_type_hints(Shared, include_extras=True)
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(Shared, name), annotation=hint)
        for name, hint in hints.items()
        if name in names
    ]


@dataclass(frozen=True)
class Where:
    """Where the servers are that a command is about, as far as the options say."""

    config: Path | None = None
    gateway: str | None = None
    token: str | None = None
    no_gateway: bool = False


@dataclass(frozen=True)
class Session:
    """What a command is given: how to talk, and where to look."""

    output: Output
    where: Where

    @classmethod
    def of(cls, shared: Shared) -> Session:
        from toolway.cli.output import Output

        output = Output(as_json=shared.as_json, quiet=shared.quiet, verbose=shared.verbose, color=not shared.no_color)
        return cls(output, Where(shared.config, shared.gateway, shared.token, shared.no_gateway))
