"""`toolway serve` and `toolway token`: the gateway, and what opens it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from toolway.cli.clustered import no_pipes, of_record
from toolway.cli.exits import Exit, of_error
from toolway.cli.output import Output
from toolway.cli.places import load
from toolway.config.spec import Server
from toolway.errors import ConfigError, ToolwayError
from toolway.gateway.desk import Doctor
from toolway.gateway.serve import Serving, tls_context
from toolway.gateway.state import State
from toolway.model import Json
from toolway.telemetry.log import LogLines, mask_of, write_lines

if TYPE_CHECKING:
    from toolway.gateway.replica.options import ClusterOptions


def serve(
    output: Output,
    config: Path | None,
    host: str | None,
    port: int | None,
    certificate: Path | None,
    key: Path | None,
    *,
    auth: bool,
    stdio: bool,
    drain_delay: float,
    cluster: ClusterOptions | None = None,
) -> int:
    """Run the gateway until a signal; its exit code. With `cluster`, as one of several."""
    no_pipes(cluster, stdio)

    async def main() -> int:
        tls = tls_context(certificate, key) if certificate is not None and not stdio else None
        end = asyncio.Event()
        try:
            loaded = load(output, config)
        except ConfigError as exc:
            if cluster is None:
                raise
            loaded = await of_record(exc, cluster, end, host, port, tls)
            output.say("no file of servers is here: what the cluster has configured is served", "dim")
        if not stdio:
            output.problems(loaded.problems)
        doctor = doctor_of(config, None if loaded.file else lambda: serving.hub.servers)
        serving = Serving(loaded, State.default(os.environ), auth=auth, doctor=doctor, cluster=cluster)
        telemetry = loaded.gateway.telemetry
        write_lines(
            "json" if output.as_json else telemetry.log,
            verbose=output.verbose,
            mask=mask_of(lambda: serving.hub.servers),
        )
        if end.is_set():
            serving.stop()
        serving.hub.listen(LogLines(calls=telemetry.calls))
        if stdio:
            await serving.run_on_pipes()
            return Exit.OK
        chosen = host or loaded.gateway.host
        await serving.run(
            chosen,
            loaded.gateway.port if port is None else port,
            tls,
            _announce(output, auth, serving.node),
            drain_delay,
        )
        return Exit.OK

    try:
        with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
            return runner.run(main())
    except ToolwayError as exc:
        output.error(exc)
        return of_error(exc)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def doctor_of(config: Path | None, known: Callable[[], Mapping[str, Server]] | None = None) -> Doctor:
    """Examines the servers of the file that is served, or one of them, for whoever asks the gateway; those that are
    `known` where there is no file. It is loaded when it is asked."""

    async def examined(name: str | None) -> Json:
        from toolway.cli.doctor import chosen
        from toolway.config.mask import masker
        from toolway.doctor.examine import examine
        from toolway.doctor.own import Scene, scene
        from toolway.doctor.targets import Target

        if known is None:
            there = scene(os.environ, Path.cwd(), config)
        else:
            there = Scene(targets=[Target(each, server, "the record") for each, server in known().items()])
        found = chosen(there, name)
        report = await examine(found.targets, os.environ, files=found.files)
        servers = [target.server for target in found.targets if target.server is not None]
        return report.at_home(os.environ.get("HOME", "")).masked(masker(servers)).facts()

    return examined


def _announce(output: Output, auth: bool, node: str) -> Callable[[str], None]:
    def announce(url: str) -> None:
        if output.as_json:
            output.facts({"url": f"{url}/mcp", "auth": auth, "pid": os.getpid()} | ({"node": node} if node else {}))
            sys.stdout.flush()
        output.say(f"serving at {url}/mcp", "green")
        if node:
            output.say(f"as {node}, one of several: toolway nodes")
        if auth:
            output.say("see what happens: toolway ui")
            output.say("connect a client: toolway connect claude-code, or cursor, vscode, codex, generic")
        output.say("Ctrl-C ends it; running calls are finished first", "dim")

    return announce


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return cast(Callable[[], asyncio.AbstractEventLoop], uvloop.new_event_loop)


def show_token(output: Output) -> int:
    """The token of this machine."""
    state = State.default(os.environ)
    if output.as_json:
        output.json({"token": state.token(), "file": str(state.folder / "token")})
    else:
        sys.stdout.write(state.token() + "\n")
    return Exit.OK
