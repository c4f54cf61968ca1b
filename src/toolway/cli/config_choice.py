"""The one config file that a command reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from toolway.config.locations import CONFIG_FILE_VARIABLE
from toolway.errors import ConfigError
from toolway.gateway.state_dir import StateDir

if TYPE_CHECKING:
    from toolway.cli.options import TargetOptions
    from toolway.cli.output import Output


def choose_file(output: Output, options: TargetOptions) -> Path | None:
    """Return the one config file that a command uses; None for the user, project and local files, merged.

    It is the file of --config, else of `$TOOLWAY_CONFIG`, else the one that the gateway on this machine was started
    with, unless --no-gateway is given. The last one is named on stderr, because the user did not name it. This is the
    rule of all commands except `toolway serve`, which starts a gateway, and `toolway trust`.
    """
    if options.config is not None:
        return options.config
    if os.environ.get(CONFIG_FILE_VARIABLE):
        return Path(os.environ[CONFIG_FILE_VARIABLE]).expanduser()
    if options.no_gateway:
        return None
    try:
        running = StateDir.default(os.environ).read_running()
    except ConfigError:  # no folder for state, so no gateway is registered
        return None
    file = running.named_file(os.environ, Path.cwd()) if running is not None else None
    if running is not None and file is not None:
        output.info_once(f"using {file}, the file of the gateway at {running.url}; another file: -c FILE", "dim")
    return file
