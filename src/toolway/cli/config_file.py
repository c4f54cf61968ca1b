"""Which config file a command uses: one rule for all commands except `toolway serve`.

1. `--config FILE`, else `$TOOLWAY_CONFIG`.
2. The file that the gateway on this machine was started with, unless `--no-gateway` is given.
3. The user, project and local files, merged.
"""

from __future__ import annotations

import os
from pathlib import Path

from toolway.cli.options import TargetOptions
from toolway.cli.output import Output
from toolway.config.locations import CONFIG_FILE_VARIABLE
from toolway.errors import ConfigError
from toolway.gateway.state_dir import StateDir


def choose_file(output: Output, options: TargetOptions) -> Path | None:
    """Return the one config file that a command uses; None for the user, project and local files.

    The file of a running gateway is named on stderr, because the user did not name it.
    """
    if options.config is not None:
        return options.config
    if os.environ.get(CONFIG_FILE_VARIABLE):
        return Path(os.environ[CONFIG_FILE_VARIABLE]).expanduser()
    if options.no_gateway:
        return None
    try:
        running = StateDir.default(os.environ).read_running()
    except ConfigError:  # there is no folder for state, so no gateway is registered
        return None
    file = running.named_file(os.environ, Path.cwd()) if running is not None else None
    if running is not None and file is not None:
        output.info_once(f"using {file}, the file of the gateway at {running.url}; another file: -c FILE", "dim")
    return file
