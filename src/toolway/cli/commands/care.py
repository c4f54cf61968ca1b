"""doctor, logs, lint, ps, explain, completion, agent-help."""

from __future__ import annotations

from typing import Annotated

import typer

from toolway.cli import complete
from toolway.cli.commands.words import AnyServer, Wait
from toolway.cli.frame import Work
from toolway.cli.options import Session


def doctor(
    session: Session,
    name: AnyServer = None,
    everything: Annotated[bool, typer.Option("--all", help="The files of all clients too.")] = False,
    client: Annotated[
        str | None,
        typer.Option(
            "--client", metavar="CLIENT", help="The files of this client, as it reads them.", show_default=False
        ),
    ] = None,
    project: Annotated[bool, typer.Option("--project", help="Start what a project's file brings, too.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Do what can be undone or does no harm.")] = False,
) -> Work:
    """Every server is started once and watched: command, variables, start, stdout, protocol, tools, and what model
    providers make of them. The first line names the cause."""
    from toolway.cli import doctor as work

    return work.doctor(session, name, everything=everything, client=client, project=project, fix=fix)


def logs(
    session: Session,
    name: AnyServer = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, help="So many of the last lines.")] = 50,
    wait: Wait = 30.0,
) -> Work:
    """Those of the gateway that runs; without one the servers are started for it."""
    from toolway.cli import logs as work

    return work.logs(session, name, follow=follow, lines=lines, wait=wait)


def lint(
    session: Session,
    name: AnyServer = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings end with 9 too.")] = False,
    refresh: Annotated[bool, typer.Option("--refresh", "-r", help="Start the servers and ask them again.")] = False,
    wait: Wait = 30.0,
) -> Work:
    """Ends with 9 where OpenAI, Anthropic or Gemini would refuse a tool."""
    from toolway.cli import lint as work

    return work.lint(session, name, strict=strict, wait=wait, refresh=refresh)


def ps(
    session: Session,
    orphans: Annotated[bool, typer.Option("--orphans", help="What is left over and nobody needs any more.")] = False,
    kill: Annotated[bool, typer.Option("--kill", help="End what is left over.")] = False,
) -> Work:
    from toolway.cli import ps as work

    return work.ps(session, orphans=orphans, kill=kill)


def explain(
    session: Session,
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="[CODE]",
            help="As E-STDIO-ENOENT; all without it.",
            show_default=False,
            autocompletion=complete.codes,
        ),
    ] = None,
) -> Work:
    """What it means, why it happens, how to fix it."""
    from toolway.cli import explain as work

    return work.explain(session, code)


def completion(
    session: Session,
    shell: Annotated[
        str | None,
        typer.Argument(metavar="[SHELL]", help="bash, zsh, fish or powershell; yours without it.", show_default=False),
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Put it where the shell finds it.")] = False,
) -> Work:
    """Names of servers and tools are completed too."""
    from toolway.cli import completion as work

    return work.completion(session, shell, install=install)


def agent_help(session: Session) -> Work:
    from toolway.cli import agent_help as work

    return work.agent_help(session)
