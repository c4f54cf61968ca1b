"""Global options shared by commands: output, config file, gateway.

They are accepted before and after the command name. A command does not receive them one by one, but as a
`CommandContext`.
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

OUTPUT_OPTIONS: Final = frozenset({"as_json", "quiet", "verbose", "no_color"})
CONFIG_OPTIONS: Final = OUTPUT_OPTIONS | {"config"}
RUN_OPTIONS: Final = OUTPUT_OPTIONS | {"gateway", "token", "ca"}
GATEWAY_OPTIONS: Final = CONFIG_OPTIONS | {"gateway", "token", "ca", "no_gateway"}


@dataclass(frozen=True)
class GlobalOptions:
    """Values of the global command line options. The annotations define the typer options."""

    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Use this config file.", show_default=False),
    ] = None
    gateway: Annotated[
        str | None, typer.Option("--gateway", "-g", metavar="URL", help="Use this gateway.", show_default=False)
    ] = None
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            envvar="TOOLWAY_TOKEN",
            show_envvar=False,
            help="Gateway token. [env: TOOLWAY_TOKEN]",
            show_default=False,
        ),
    ] = None
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca", metavar="FILE", help="Trust this CA certificate (PEM) of the gateway.", show_default=False
        ),
    ] = None
    no_gateway: Annotated[
        bool, typer.Option("--no-gateway", help="Ignore the running gateway and use the config file.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more details.")] = False
    no_color: Annotated[bool, typer.Option("--no-color", help="Turn colors off (also NO_COLOR=1).")] = False

    def to_dict(self) -> dict[str, Any]:
        """Return only the options that the user set, by name."""
        return {name: value for name, value in vars(self).items() if value not in (None, False)}

    def merge(self, later: Mapping[str, Any]) -> GlobalOptions:
        """Return these options, given before the command name, merged with `later`, given after it.

        An option in `later` wins.
        """
        return GlobalOptions(**{**self.to_dict(), **GlobalOptions(**later).to_dict()})


def option_parameters(names: frozenset[str]) -> list[Parameter]:
    """Return the named global options as keyword-only function parameters for typer."""
    hints = get_type_hints(GlobalOptions, include_extras=True)
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(GlobalOptions, name), annotation=hint)
        for name, hint in hints.items()
        if name in names
    ]


@dataclass(frozen=True)
class TargetOptions:
    """Options that select the servers for a command: from a config file, or from a gateway."""

    config: Path | None = None
    gateway: str | None = None
    token: str | None = None
    no_gateway: bool = False
    ca: Path | None = None  # certificate (PEM) of the CA to trust for the gateway


@dataclass(frozen=True)
class CommandContext:
    """First argument of every command function: output settings and target options."""

    output: Output
    target_options: TargetOptions

    def config_file(self) -> Path | None:
        """Return the one config file that the command uses; None for the user, project and local files."""
        from toolway.cli.config_choice import choose_file

        return choose_file(self.output, self.target_options)

    @classmethod
    def from_options(cls, options: GlobalOptions) -> CommandContext:
        """Build the context of a command from the global options."""
        from toolway.cli.output import Output

        output = Output(
            as_json=options.as_json, quiet=options.quiet, verbose=options.verbose, color=not options.no_color
        )
        return cls(
            output, TargetOptions(options.config, options.gateway, options.token, options.no_gateway, options.ca)
        )
