"""From the table of commands to commands that run.

`--help` reads the table alone; only the command that is run is loaded. All that can be wrong with a command line, and
every error of a command, ends here: in the four parts, and with its exit code.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from toolway.cli import helping
from toolway.cli.options import PLACE, Session, Shared, parameters
from toolway.cli.plain_values import lighten, lighten_one

if TYPE_CHECKING:
    from toolway.cli.output import Output

Work = int | Coroutine[Any, Any, int]
NAME: Final = "toolway"
COMPLETE: Final = "_TOOLWAY_COMPLETE"  # set by the scripts of `toolway completion`
INTERRUPTED: Final = 130
_HINT: Final = re.compile(r"\s*(?:\(Possible options: |Did you mean )([^)?]+)[)?]+")  # how typer says it
_HELP: Final = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True)
class Entry:
    """A command: what `--help` says of it, and where its function is. `of` are the commands of a group, which may have
    a function for when it stands alone."""

    help: str
    at: str = ""  # "module:function" in `toolway.cli.commands`
    takes: frozenset[str] = PLACE
    hidden: bool = False
    of: Mapping[str, Entry] | None = None


class Commands(TyperGroup):
    """A group whose commands are loaded when they are used."""

    table: Mapping[str, Entry] = {}
    sections: Mapping[str, Sequence[str]] = {}
    meant: Mapping[str, str] = {}  # words of other programs → ours

    def get_help_option(self, ctx: Any) -> Any:
        return lighten_one(super().get_help_option(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = _group(cmd_name, entry) if entry.of is not None else _command(cmd_name, entry)
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.table and not args[0].startswith("-") and not ctx.resilient_parsing:
            from toolway.cli.exits import UsageError
            from toolway.cli.meant import did_you_mean

            visible = [name for name, entry in self.table.items() if not entry.hidden]
            ours = self.meant.get(args[0])
            close = f"did you mean {ctx.command_path} {ours}?" if ours else did_you_mean(args[0], visible)
            raise UsageError(
                f"there is no command {' '.join([*ctx.command_path.split()[1:], args[0]])!r}",
                fix=close or f"see them all: {ctx.command_path} --help",
            )
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        rows = {name: entry.help for name, entry in self.table.items() if not entry.hidden}
        formatter.write(helping.of_group(ctx.command_path, self.help or "", rows, self.sections, self._options(ctx)))

    def _options(self, ctx: Any) -> list[tuple[str, str]]:
        records = (param.get_help_record(ctx) for param in self.get_params(ctx))
        return [record for record in records if record is not None]

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run to the exit code. Raises `SystemExit`."""
        words = list(sys.argv[1:] if args is None else args)
        lighten(self)
        if COMPLETE in os.environ:
            from typer.completion import completion_init  # type: ignore[attr-defined] # else it comes with options

            completion_init()
        told = {**extra, "standalone_mode": False, "prog_name": NAME, "complete_var": COMPLETE}
        sys.exit(ending(lambda: super(Commands, self).main(words, **told), lambda: _talking(words)) or 0)


class _OneCommand(TyperCommand):
    def get_help_option(self, ctx: Any) -> Any:
        return lighten_one(super().get_help_option(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown: list[Any] = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        arguments = [(param.metavar or param.name.upper(), param) for param in shown if _is_argument(param)]
        rows: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
        for param in shown:
            if not _is_argument(param):
                rows[param.name in PLACE or param.name == "help"].append(_option(param, ctx))
        usage = " ".join([ctx.command_path, "[OPTIONS]", *(name for name, _ in arguments)])
        explained = [(name.strip("[]…"), param.help or "") for name, param in arguments]
        formatter.write(helping.of_command(usage, self.help or "", explained, rows[False], rows[True]))


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _option(param: Any, ctx: Any) -> tuple[str, str]:
    name, _ = param.get_help_record(ctx)
    number = isinstance(param.default, int | float) and not isinstance(param.default, bool)
    return name, f"{param.help} [default: {param.default:g}]" if number else param.help or ""


def _group(name: str, entry: Entry) -> Any:
    table = entry.of or {}
    made = typer.Typer(
        name=name,
        cls=type("Group", (Commands,), {"table": table}),
        help=entry.help,
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings=_HELP,
    )
    made.callback()(_with_shared(_function(entry.at), entry.takes) if entry.at else _without_a_command)
    return lighten(typer.main.get_command(made))


def _without_a_command(ctx: typer.Context) -> int:
    """A group alone does nothing: what it has is shown."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        return 2
    return 0


def _command(name: str, entry: Entry) -> Any:
    made = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    function = _function(entry.at)
    more = inspect.getdoc(function)
    text = f"{entry.help}\n\n{more}" if more else entry.help
    made.command(name, cls=_OneCommand, help=text, hidden=entry.hidden, context_settings=_HELP)(
        _with_shared(function, entry.takes)
    )
    return lighten(typer.main.get_command(made))


def _function(at: str) -> Callable[..., Work]:
    module, _, name = at.partition(":")
    found: Callable[..., Work] = getattr(importlib.import_module(f"toolway.cli.commands.{module}"), name)
    return found


def _with_shared(function: Callable[..., Work], names: frozenset[str]) -> Callable[..., int]:
    """The function as a command: its own parameters and the shared ones, instead of the session that it takes."""
    signature = inspect.signature(function, eval_str=True)
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in list(signature.parameters.values())[1:]]
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    def command(*, ctx: typer.Context, **given: Any) -> int:
        later = {name: given.pop(name) for name in names}
        before = ctx.find_root().obj
        earlier = before if isinstance(before, Shared) else Shared()
        _must_be_taken(earlier, names, ctx.command_path)
        shared = earlier.joined(later)
        if ctx.invoked_subcommand is not None:  # of a group that is a command itself
            ctx.find_root().obj = shared
            return 0
        session = Session.of(shared)
        return run(lambda: function(session, **given), session.output)

    asked = [*own, *parameters(names), context]
    command.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined] # what `inspect` reads
    command.__annotations__ = {each.name: each.annotation for each in asked}
    return command


def _must_be_taken(earlier: Shared, names: frozenset[str], path: str) -> None:
    """What stands before the command's name must mean something to it."""
    for name in earlier.given().keys() - names:
        from toolway.cli.exits import UsageError

        raise UsageError(f"{path} takes no --{name.replace('_', '-')}", fix=f"see what it takes: {path} --help")


def run(work: Callable[[], Work], output: Output) -> int:
    """Run a command to its exit code."""

    def to_the_end() -> int:
        result = work()
        if inspect.iscoroutine(result):
            import asyncio

            return int(asyncio.run(result))
        assert isinstance(result, int)
        return int(result)

    return int(ending(to_the_end, lambda: output))


def ending(work: Callable[[], Any], output: Callable[[], Output]) -> Any:
    """What `work` ends with; errors are shown and become their exit code, Ctrl-C ends in order."""
    from toolway.cli.exits import UsageError, of_error
    from toolway.errors import NotFound, ToolwayError

    try:
        return work()
    except ToolwayError as exc:
        if isinstance(exc, NotFound) and exc.server and not exc.fix:
            exc.fix = "see them all: toolway ls"
        output().error(exc)
        return int(of_error(exc))
    except typer.TyperException as exc:
        path = getattr(getattr(exc, "ctx", None), "command_path", "toolway")
        said = exc.format_message()
        hint = _HINT.search(said)
        fix = f"did you mean {hint[1]}?" if hint else f"see how it is used: {path} --help"
        output().error(UsageError(_HINT.sub("", said).strip().rstrip("."), fix=fix))
        return int(exc.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED


def _talking(words: Sequence[str]) -> Output:
    """How to talk where the command line could not be read."""
    from toolway.cli.output import Output

    own = list(words[: words.index("--")]) if "--" in words else list(words)
    return Output(as_json="--json" in own, color="--no-color" not in own)
