"""The typer application: its commands in the order of `--help`, and the options that they share.

A command is a plain function, with an `Output` and, if it uses servers, a `ServerSource`; the other
parameters are its own options. It returns the exit code.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from toolkeep._version import __version__
from toolkeep.cli import config
from toolkeep.cli.call import call
from toolkeep.cli.check import check
from toolkeep.cli.config_import import add_server, import_servers
from toolkeep.cli.console import console
from toolkeep.cli.errors import run
from toolkeep.cli.list import prompts, resources, servers, tools
from toolkeep.cli.login import auth, login, logout
from toolkeep.cli.new_server import new_server
from toolkeep.cli.read import prompt, read
from toolkeep.cli.run import run_program
from toolkeep.cli.serve import serve
from toolkeep.cli.source import SOURCE_OPTIONS, ServerSource
from toolkeep.cli.watch import watch

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]

app = typer.Typer(
    name="toolkeep",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help reads well in a log, and takes half the time: rich is not imported for it.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
config_app = typer.Typer(
    help="Show, validate, approve, add to and import configurations.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Command(TyperCommand):
    """A command whose `--help` is for people: `SERVER`, not `SERVER <list[str]>`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                name, text = record
                if param.param_type_name == "argument":
                    name = re.sub(r" <[^ ]*>$", "", name)
                text = re.sub(r"\bx>=([\d.]+)", r"at least \1", text)
                rows[param.param_type_name].append((name, text))
        for kind, described in rows.items():
            if described:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(described)


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"toolkeep {__version__}")
        raise typer.Exit


@app.callback()
def toolkeep(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Use MCP servers from the command line: list what they offer, call tools, find faults.

    Exit codes: 0 success, 1 failed, 2 usage error, 3 the call may have run, 130 interrupted.
    """


def add(
    group: typer.Typer,
    function: Callable[..., Any],
    name: str | None = None,
    *,
    json: bool = True,
    words: bool = False,
) -> None:
    """Add a command. Its `source` parameter becomes --config, --url, --command and --header, and
    its `output` becomes --json, where `json` allows it. `words`: its options stand before its
    arguments, which may look like options."""
    parameters = dict(inspect.signature(function, eval_str=True).parameters)
    del parameters["output"]
    uses_servers = parameters.pop("source", None) is not None
    shared = (SOURCE_OPTIONS if uses_servers else {}) | ({"as_json": JsonOption} if json else {})
    for option, annotation in shared.items():
        default = False if option == "as_json" else None
        parameters[option] = Parameter(
            option, Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )

    @functools.wraps(function)
    def command(**given: Any) -> None:
        as_json = given.pop("as_json", False)
        if uses_servers:
            given["source"] = ServerSource(*(given.pop(option) for option in SOURCE_OPTIONS))
        run(lambda output: function(output, **given), json=as_json)

    keywords = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters.values()]
    command.__dict__["__signature__"] = inspect.Signature(keywords)
    settings = {"allow_interspersed_args": False} if words else {}
    group.command(name, cls=Command, context_settings=settings)(command)


add(app, servers)
add(app, tools)
add(app, prompts)
add(app, resources)
add(app, read)
add(app, prompt)
add(app, call)
add(app, run_program, "run")
add(app, check)
add(app, login)
add(app, logout)
add(app, auth)
add(app, watch)
add(app, console)
add(app, serve, json=False)
add(app, new_server, "new-server", json=False)
app.add_typer(config_app, name="config")
add(config_app, config.show)
add(config_app, config.path)
add(config_app, config.validate)
add(config_app, config.schema, json=False)
add(config_app, config.approve)
add(config_app, config.new_key, "new-key")
add(config_app, add_server, "add", words=True)
add(config_app, import_servers, "import")
