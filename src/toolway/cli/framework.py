"""Builder of typer commands from the command table; errors become exit codes.

`--help` reads only the table; a command's module is loaded when the command runs. Every usage error and every error of
a command is printed here with its parts and becomes an exit code.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from toolway.cli.help.text import command_help, group_help
from toolway.cli.options import (
    CONFIG_OPTIONS,
    GATEWAY_OPTIONS,
    OUTPUT_OPTIONS,
    CommandContext,
    GlobalOptions,
    option_parameters,
)

if TYPE_CHECKING:
    from toolway.cli.output import Output
    from toolway.part_api.part import Command

CommandResult = int | Coroutine[Any, Any, int]
PROGRAM_NAME: Final = "toolway"
COMPLETE_VARIABLE: Final = "_TOOLWAY_COMPLETE"  # environment variable set by the scripts of `toolway completion`
INTERRUPTED_EXIT_CODE: Final = 130
_TYPER_SUGGESTION: Final = re.compile(
    r"\s*(?:\(Possible options: |Did you mean )([^)?]+)[)?]+"
)  # typer's wording of a suggestion
_BRACKETS: Final = re.compile(r"[\[\]…]")
_CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True)
class CommandSpec:
    """Table row of a command or command group: its help line and the path of its function.

    A group has `subcommands`. Its function, if any, runs when no subcommand is given. With `takes_words` that function
    has its own arguments: the first word is a subcommand only if it is the name of one.
    """

    help: str
    function_path: str = ""  # "module:function" in `package`
    options: frozenset[str] = GATEWAY_OPTIONS
    subcommands: Mapping[str, CommandSpec] | None = None
    takes_words: bool = False
    package: str = "toolway.cli.commands."  # "" for a command of a part

    def all_options(self) -> frozenset[str]:
        """Return the global options that the command or one of its subcommands accepts."""
        more = (each.all_options() for each in (self.subcommands or {}).values())
        return self.options.union(*more)

    @staticmethod
    def of_part(command: Command) -> CommandSpec:
        """Return the row of a command that a part declares."""
        below = command.subcommands
        table = {name: CommandSpec.of_part(each) for name, each in below.items()} if below is not None else None
        options = CONFIG_OPTIONS if command.is_offline else GATEWAY_OPTIONS
        if command.options is not None:
            options = OUTPUT_OPTIONS.union(command.options)
        return CommandSpec(command.help, command.function, options, table, package="")


class LazyGroup(TyperGroup):
    """A typer group that imports the module of a command only when the command is used."""

    table: Mapping[str, CommandSpec] = {}
    is_root: bool = False  # its commands may be of parts of other distributions

    def get_help_option(self, ctx: Any) -> Any:
        return _plain_help_option(super().get_help_option(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.table.get(cmd_name) or self._find_foreign(cmd_name)
        if entry is None:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = (
                _build_group(cmd_name, entry) if entry.subcommands is not None else _build_command(cmd_name, entry)
            )
        return self.commands[cmd_name]

    def _find_foreign(self, name: str) -> CommandSpec | None:
        """Return the command of a part of another distribution. `--help` does not list it."""
        if not self.is_root or name.startswith("-"):
            return None
        from toolway.part_api import registry

        part = registry.by_command(name)
        return CommandSpec.of_part(part.commands[name]) if part is not None else None

    def own_command(self, name: str) -> Any:
        """Return the command of a group that takes words, which runs if the first word is not a subcommand."""
        key = f"{name} -"  # cannot be typed
        if key not in self.commands:
            self.commands[key] = _build_command(name, self.table[name])
        return self.commands[key]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        is_known = not args or args[0] in self.table or args[0].startswith("-") or ctx.resilient_parsing
        if not is_known and self._find_foreign(args[0]) is None:
            from toolway.cli.help.other_names import unknown_command

            raise unknown_command(ctx.command_path, args, self.table)
        entry = self.table.get(args[0]) if args else None
        if entry is not None and entry.takes_words and _first_word(args[1:]) not in (entry.subcommands or {}):
            return args[0], self.own_command(args[0]), args[1:]
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, entry.help) for name, entry in self.table.items()]
        formatter.write(group_help(ctx.command_path, self.help or "", rows, self.option_rows(ctx)))

    def option_rows(self, ctx: Any) -> list[tuple[str, str]]:
        """Return the options of the group, each with its help."""
        records = (param.get_help_record(ctx) for param in self.get_params(ctx))
        return [record for record in records if record is not None]

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run the command line `args` and end the process with its exit code, by `SystemExit`."""
        arguments = list(sys.argv[1:] if args is None else args)
        use_plain_values(self)
        if COMPLETE_VARIABLE in os.environ:
            from typer.completion import completion_init  # type: ignore[attr-defined] # off with add_completion=False

            completion_init()
        settings = {**extra, "standalone_mode": False, "prog_name": PROGRAM_NAME, "complete_var": COMPLETE_VARIABLE}
        sys.exit(
            handle_errors(
                lambda: super(LazyGroup, self).main(arguments, **settings), lambda: _output_from_args(arguments)
            )
            or 0
        )


class _Command(TyperCommand):
    subcommands: Mapping[str, CommandSpec] = {}  # of a group that takes words

    def get_help_option(self, ctx: Any) -> Any:
        return _plain_help_option(super().get_help_option(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        visible: list[Any] = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        arguments = [(param.metavar or param.name.upper(), param) for param in visible if _is_argument(param)]
        rows: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
        for param in visible:
            if not _is_argument(param):
                rows[param.name in GATEWAY_OPTIONS or param.name == "help"].append(_option_row(param, ctx))
        usage = " ".join([ctx.command_path, "[OPTIONS]", *(name for name, _ in arguments)])
        argument_rows = [(_BRACKETS.sub("", name), param.help or "") for name, param in arguments]
        commands = [(name, entry.help) for name, entry in self.subcommands.items()]
        formatter.write(command_help(usage, self.help or "", argument_rows, commands, rows[False], rows[True]))


def _plain_help_option(option: Any) -> Any:
    if option is not None:
        option.help = "Show this help."
    return use_plain_value(option)


def _first_word(args: Sequence[str]) -> str:
    """Return the first word after global options; "" if another option is before it, or none follows."""
    words: Iterator[str] = iter(args)
    for word in words:
        if not word.startswith("-"):
            return word
        if word in _VALUE_OPTIONS:
            next(words, "")
        elif word not in _FLAGS and not word.startswith(_VALUE_PREFIXES):
            return ""
    return ""


_VALUE_OPTIONS: Final = ("--config", "-c", "--gateway", "-g", "--token", "--ca")
_VALUE_PREFIXES: Final = ("--config=", "--gateway=", "--token=", "--ca=")
_FLAGS: Final = ("--no-gateway", "--json", "--quiet", "-q", "--verbose", "-v", "--no-color")


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _option_row(param: Any, ctx: Any) -> tuple[str, str]:
    name, _ = param.get_help_record(ctx)
    is_number = isinstance(param.default, int | float) and not isinstance(param.default, bool)
    return name, f"{param.help} [default: {param.default:g}]" if is_number else param.help or ""


def _build_group(name: str, entry: CommandSpec) -> Any:
    table = entry.subcommands or {}
    typer_app = typer.Typer(
        name=name,
        cls=type("Group", (LazyGroup,), {"table": table}),
        help=entry.help,
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings=_CONTEXT_SETTINGS,
    )
    function = _only_a_subcommand if entry.takes_words else _load_function(entry) if entry.function_path else None
    typer_app.callback()(
        _with_global_options(function, entry.all_options()) if function is not None else _show_group_help
    )
    return use_plain_values(typer.main.get_command(typer_app))


def _only_a_subcommand(context: CommandContext) -> CommandResult:
    """Placeholder function for a group that takes words, when a subcommand follows."""
    raise AssertionError("`LazyGroup.resolve_command` calls the own command instead")


def _show_group_help(ctx: typer.Context) -> int:
    """Print the help of a command group that was called without a subcommand."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        return 2
    return 0


def _build_command(name: str, entry: CommandSpec) -> Any:
    typer_app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    function = _load_function(entry)
    details = inspect.getdoc(function)
    text = f"{entry.help}\n\n{details}" if details else entry.help
    kind = type("Command", (_Command,), {"subcommands": entry.subcommands or {}})
    typer_app.command(name, cls=kind, help=text, context_settings=_CONTEXT_SETTINGS)(
        _with_global_options(function, entry.options)
    )
    return use_plain_values(typer.main.get_command(typer_app))


def _load_function(entry: CommandSpec) -> Callable[..., CommandResult]:
    module, _, name = entry.function_path.partition(":")
    found: Callable[..., CommandResult] = getattr(importlib.import_module(f"{entry.package}{module}"), name)
    return found


def _with_global_options(function: Callable[..., CommandResult], option_names: frozenset[str]) -> Callable[..., int]:
    """Return `function` as a typer command that accepts the global options in `option_names`.

    They replace its first parameter: the command builds a `CommandContext` from them.
    """
    signature = inspect.signature(function, eval_str=True)
    own_parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in list(signature.parameters.values())[1:]]
    ctx_parameter = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    def command(*, ctx: typer.Context, **values: Any) -> int:
        later_options = {name: values.pop(name) for name in option_names}
        root_object = ctx.find_root().obj
        earlier_options = root_object if isinstance(root_object, GlobalOptions) else GlobalOptions()
        _reject_unsupported_options(earlier_options, option_names, ctx.command_path)
        options = earlier_options.merge(later_options)
        if ctx.invoked_subcommand is not None:  # a group with its own function, and a subcommand follows
            ctx.find_root().obj = options
            return 0
        command_context = CommandContext.from_options(options)
        return run_command(lambda: function(command_context, **values), command_context.output)

    all_parameters = [*own_parameters, *option_parameters(option_names), ctx_parameter]
    command.__signature__ = inspect.Signature(all_parameters)  # type: ignore[attr-defined] # `inspect.signature` reads it
    command.__annotations__ = {each.name: each.annotation for each in all_parameters}
    return command


def _reject_unsupported_options(options: GlobalOptions, supported: frozenset[str], command_path: str) -> None:
    """Raise `UsageError` if a global option was given before the command name, and the command does not accept it."""
    for name in options.to_dict().keys() - supported:
        from toolway.cli.exit_codes import UsageError

        raise UsageError(
            f"{command_path} does not accept --{name.replace('_', '-')}",
            hint=f"show its options: {command_path} --help",
        )


# -- run of a command --------------------------------------------------------------------------------------------------


def run_command(work: Callable[[], CommandResult], output: Output) -> int:
    """Run a command function, plain or coroutine, and return its exit code. Errors are printed."""

    def run_to_completion() -> int:
        result = work()
        if inspect.iscoroutine(result):
            import asyncio

            return int(asyncio.run(result))
        assert isinstance(result, int)
        return int(result)

    return int(handle_errors(run_to_completion, lambda: output))


def handle_errors(work: Callable[[], Any], output: Callable[[], Output]) -> Any:
    """Call `work` and return its result; print its errors and return their exit code.

    Returns 130 on Ctrl-C.
    """
    from toolway.cli.exit_codes import UsageError, exit_code_for
    from toolway.errors import NotFound, ToolwayError

    try:
        return work()
    except ToolwayError as exc:
        if isinstance(exc, NotFound) and exc.server and not exc.hint:
            exc.hint = "list all servers: toolway ls"
        output().print_error(exc)
        return int(exit_code_for(exc))
    except typer.TyperException as exc:
        from toolway.cli.help.other_names import find_moved_option

        path = getattr(getattr(exc, "ctx", None), "command_path", "toolway")
        message = exc.format_message()
        suggestion = _TYPER_SUGGESTION.search(message)
        fix = f"did you mean {suggestion[1]}?" if suggestion else f"show the usage: {path} --help"
        text = _TYPER_SUGGESTION.sub("", message).strip().rstrip(".")
        moved = find_moved_option(path, str(getattr(exc, "option_name", None) or ""))
        output().print_error(UsageError(moved or text, hint=f"show the usage: {path} --help" if moved else fix))
        return int(exc.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED_EXIT_CODE


def _output_from_args(arguments: Sequence[str]) -> Output:
    """Return the output settings (--json, --no-color) for an error about a command line that typer could not parse."""
    from toolway.cli.output import Output

    own_arguments = list(arguments[: arguments.index("--")]) if "--" in arguments else list(arguments)
    return Output(as_json="--json" in own_arguments, color="--no-color" not in own_arguments)


# -- fast conversion of plain option values ----------------------------------------------------------------------------


class _PlainParam:
    """Replaces typer's conversion for arguments with plain values (strings, paths, numbers).

    Typer's own conversion loads a type library, which takes as long as loading typer. It converts all other values,
    and those that are wrong, for its messages.
    """

    def __init__(self, descriptor: Any) -> None:
        self._annotation = descriptor.annotation
        self._info = descriptor.parameter_info

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if several and self._annotation == list[str]:
            return list(value)
        if self._annotation is str or (self._annotation is bool and isinstance(value, bool)):
            return value
        if self._annotation is Path:
            return Path(value)
        if self._annotation in (int, float):
            number = self._plain_number(value) if isinstance(value, str) else value
            if number is not None:
                return number
        param._runtime_param = None  # typer then creates its own
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)

    def _plain_number(self, text: str) -> float | None:
        """Parse a number in plain digits that is within the limits of the parameter. None for any other text."""
        if _PLAIN_NUMBER.fullmatch(text) is None or (self._annotation is int and "." in text):
            return None
        number: float = self._annotation(text)
        least, most = self._info.min, self._info.max
        return number if (least is None or number >= least) and (most is None or number <= most) else None


_PLAIN_NUMBER: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


def use_plain_values(command: Any) -> Any:
    """Convert a command's parameters without typer's slow type library.

    Returns the command.
    """
    for param in command.params:
        use_plain_value(param)
    return command


def use_plain_value(param: Any) -> Any:
    """Convert one parameter without typer's slow type library.

    Does nothing if typer's internals differ from those known here. Returns the parameter.
    """
    described = getattr(param, "type_descriptor", None)
    if described is not None and getattr(param, "_runtime_param", _PlainParam) is None:
        param._runtime_param = _PlainParam(described)
    return param
