"""`config`: what is configured, where each value comes from, and what is wrong with it.

No command here opens a server or starts a program, and none shows a secret: a value that refers to
a variable is shown as it is written, `${TOKEN}`, because the variable may hold a secret.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from toolkeep.cli.completion import complete_server
from toolkeep.cli.errors import FAILED, OK, UsageError
from toolkeep.cli.output import Output
from toolkeep.cli.prompt import can_prompt
from toolkeep.cli.source import (
    ConfigOption,
    ask_approvals,
    file_of,
    list_programs,
    load_configuration,
    note_warnings,
)
from toolkeep.errors import ConfigError

if TYPE_CHECKING:
    from toolkeep.config import Configuration, Origin, ServerSpec
    from toolkeep.config.dialects.draft import Draft, InputDefinition, ServerEntry

PREDEFINED = ("workspaceFolder", "workspaceFolderBasename", "cwd", "userHome", "pathSeparator")
"""Variables that every configuration file may refer to."""
KEY_LENGTH = 12
"""Characters of an approval's key that `approve --list` shows."""
REFERENCE = re.compile(
    r"\$\{(?:env:)?(?P<name>input:[^${}]+|[A-Za-z_][A-Za-z0-9_]*)(?P<rest>[^}]*)\}"
)
CONFIDENTIAL = ("headers", "env", "tool_headers", "api_key")
"""Settings whose values are treated as secrets, whatever their names are."""
AUTH_SCHEME = re.compile(r"(?:Bearer|Basic|Token) *", re.IGNORECASE)

# -- config show ---------------------------------------------------------------------------------


def show(
    output: Output,
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="SERVER",
            help="Only this server.",
            autocompletion=complete_server,
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    defaults: Annotated[
        bool, typer.Option("--all", help="Also the settings that have their default.")
    ] = False,
) -> int:
    """Show the settings of every server, and where they come from.

    A value comes from a line of a file, from a variable, or it is the default.
    """
    from toolkeep.config.loader import LoadContext
    from toolkeep.config.resolve import InputAnswers

    found = load_configuration(config, inputs=keep_input)
    around = LoadContext(os.environ, Path.cwd(), InputAnswers(keep_input))
    draft = around.read_draft(config)
    note_warnings(found, output)
    entries, from_file = _entries_by_name(draft), around.env_file_variables
    specs = found.sort_servers((*found.servers, *(one.spec for one in found.needs_approval)))
    servers = [ServerDescription(found, draft, entries, one, defaults, from_file) for one in specs]
    if server is not None:
        servers = [one for one in servers if one.spec.name == server]
        if not servers:
            known = ", ".join(found.order) or "none"
            raise UsageError(f"there is no server {server!r}; known names: {known}")
    env_files = sorted({place.rpartition(":")[0] for place in from_file.values()})
    output.print_json(
        {
            "servers": [one.as_dict() for one in servers],
            "disabled": dict(found.disabled),
            "invalid": [str(error) for error in found.invalid],
            "variables_from": env_files,
        }
    )
    for file in env_files:
        output.print(
            f"{file} is read: {len(from_file)} variables; the environment overrides them\n"
        )
    for one in servers:
        one.print(output)
    for name, why in found.disabled.items() if server is None else ():
        output.print(f"{name}: disabled, {why}\n")
    return OK


@dataclass(frozen=True)
class Value:
    """The value of one setting, without secrets."""

    key: str
    shown: Any
    source: str
    variables: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        shown = self.shown
        return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)

    def as_dict(self) -> dict[str, Any]:
        return {"value": self.shown, "source": self.source, "variables": list(self.variables)}


@dataclass(frozen=True)
class ServerDescription:
    """The settings of one server: its spec, and how its entry is written."""

    found: Configuration
    draft: Draft
    entries: Mapping[str, ServerEntry]
    spec: ServerSpec
    defaults: bool
    from_file: Mapping[str, str]
    """The place in an .env file, by the name of the variable."""

    @property
    def state(self) -> str:
        pending = any(one.name == self.spec.name for one in self.found.needs_approval)
        return "needs approval" if pending else "configured"

    def values(self) -> Iterator[Value]:
        origins = self.found.origins.get(self.spec.name, {})
        written = self._written()
        shown = self.spec.model_dump(mode="json", exclude={"name"}, exclude_unset=not self.defaults)
        set_keys = dict(_flatten(self.spec.model_dump(mode="json", exclude_unset=True)))
        for key, value in _flatten(shown):
            origin = origins.get(key) or origins.get(key.rpartition(".")[0])
            source = _place(origin) if origin else "derived" if key in set_keys else "default"
            text = written.get(key)
            variables = variables_of(text)
            yield Value(key, redact_written(key, text) if variables else value, source, variables)

    def _written(self) -> dict[str, Any]:
        entry = self.entries.get(self.spec.name)
        settings = (*self.draft.defaults, *(entry.settings if entry else ()))
        pairs = (pair for one in settings for pair in _flatten({one.key: one.value}))
        return {key: value for key, value in pairs if key}

    def as_dict(self) -> dict[str, Any]:
        values = {one.key: one.as_dict() for one in self.values()}
        return {"name": self.spec.name, "state": self.state, "values": values}

    def print(self, output: Output) -> None:
        pending = self.state == "needs approval"
        output.print(self.spec.name + (": needs approval (toolkeep config approve)" * pending))
        rows = [("", one.key, one.text, self._source(one)) for one in self.values()]
        output.print_table(("", "", "", ""), rows, cut_last=False)
        output.print()

    def _source(self, value: Value) -> str:
        used = ", ".join(f"{name}{self._set_by(name)}" for name in value.variables)
        return f"{value.source}, from {used}" if used else value.source

    def _set_by(self, name: str) -> str:
        if name in self.from_file:
            return f" ({self.from_file[name]})"
        is_set = name.startswith("input:") or name in PREDEFINED or name in os.environ
        return "" if is_set else " (not set)"


def keep_input(wanted: InputDefinition) -> str | None:
    """Answers an input without asking: with its default, or with the reference itself."""
    if wanted.default is not None or wanted.options:
        return wanted.default if wanted.default is not None else wanted.options[0]
    return f"${{input:{wanted.id}}}"


def _entries_by_name(draft: Draft) -> dict[str, ServerEntry]:
    """The entries of a file, by the names that toolkeep gives their servers."""
    from toolkeep.config.fields import valid_server_names
    from toolkeep.config.spec import default_server_name

    named = [
        one.name or default_server_name({s.key: s.value for s in one.settings})
        for one in draft.entries
    ]
    ours = valid_server_names(named)
    return {ours[name]: one for name, one in zip(named, draft.entries, strict=True)}


def _place(origin: Origin) -> str:
    if origin.location and origin.detail and str(origin) != origin.detail:
        return f"{origin.location} ({origin.detail})"  # as it is written, in another unit
    return str(origin)


def _flatten(value: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values. Lists are values."""
    if isinstance(value, Mapping) and value:
        for key, inner in cast("Mapping[str, Any]", value).items():
            yield from _flatten(inner, f"{before}.{key}" if before else str(key))
    else:
        yield before, value


# -- values as they are written ------------------------------------------------------------------


def variables_of(value: Any) -> tuple[str, ...]:
    """The names that a value refers to, once each."""
    texts = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
    found = (one for text in texts if isinstance(text, str) for one in REFERENCE.finditer(text))
    return tuple(dict.fromkeys(one["name"] for one in found))


def redact_written(key: str, value: Any) -> Any:
    """A value as it is written: with its references, and without secrets."""
    from toolkeep.config.redact import redact_args, redact_url

    def redact_urls(urls: list[str]) -> list[str]:
        return [redact_url(url) for url in urls]

    if isinstance(value, list | tuple):
        texts = [str(one) for one in cast("list[object]", value)]
        redact = {"args": redact_args, "urls": redact_urls}.get(key)
        return texts if redact is None else _redact_around_references(texts, redact)
    if not isinstance(value, str):
        return value
    if key.partition(".")[0] in CONFIDENTIAL:
        return _references_only(value)
    if key in ("url", "proxy"):
        return _redact_around_references([value], redact_urls)[0]
    return value


def _references_only(text: str) -> str:
    """`Bearer ${TOKEN}`: the text beside the references, and their defaults, are hidden."""
    parts: list[str] = []
    end = 0
    for found in REFERENCE.finditer(text):
        parts += [_hide(text[end : found.start()]), f"${{{found['name']}}}"]
        end = found.end()
    return "".join((*parts, _hide(text[end:])))


def _hide(text: str) -> str:
    from toolkeep.config.redact import HIDDEN

    return text if not text or AUTH_SCHEME.fullmatch(text) else HIDDEN


def _redact_around_references(
    texts: list[str], redact: Callable[[list[str]], list[str]]
) -> list[str]:
    """Redact with placeholders for the references, which would be read as part of a URL."""
    references: list[str] = []

    def replace_reference(found: re.Match[str]) -> str:
        references.append(f"${{{found['name']}}}")
        return f"zz{len(references) - 1}zz"

    redacted = redact([REFERENCE.sub(replace_reference, text) for text in texts])
    return [re.sub(r"zz(\d+)zz", lambda one: references[int(one[1])], text) for text in redacted]


# -- config path ---------------------------------------------------------------------------------


def path(output: Output) -> int:
    """List where a configuration is looked for, and which is used."""
    from toolkeep.config.loader import CONFIG_VARIABLE, DEFAULT_PATHS

    named = os.environ.get(CONFIG_VARIABLE, "").strip()
    places = [
        (named or CONFIG_VARIABLE, f"named by {CONFIG_VARIABLE}" if named else "", bool(named))
    ]
    places += [(place, "", os.path.lexists(place)) for place in DEFAULT_PATHS]
    variables = sorted(name for name in os.environ if _names_servers(name))
    places.append(("environment", ", ".join(variables), bool(variables)))
    used = next((place for place, _, is_there in places if is_there), None)
    rows = [
        (place, "used" if place == used else "found, not used" if is_there else "not there", more)
        for place, more, is_there in places
    ]
    keys = ("place", "state", "more")
    output.print_json({"used": used, "places": [dict(zip(keys, row, strict=True)) for row in rows]})
    output.print_table(("place", "state", ""), rows)
    if used is None:
        output.note("Nothing is configured. Write an mcp.json, or run `toolkeep config import`")
    return OK


def _names_servers(variable: str) -> bool:
    is_one_url = variable.startswith("MCP_SERVER_") and variable.endswith("_URL")
    return variable == "MCP_SERVERS" or is_one_url


# -- config validate, config schema --------------------------------------------------------------


def validate(
    output: Output,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="The file. Default: the configuration that is used here.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """List everything that is wrong with a configuration.

    Each problem has its place and its remedy. Exit code 1 if there is one; warnings do not count.
    """
    import warnings

    from toolkeep.config.loader import find_errors
    from toolkeep.config.spec import ConfigWarning

    warnings.simplefilter("ignore", ConfigWarning)
    found = find_errors(file, inputs=keep_input)
    if found:
        listed = [_problem_as_dict(one) for one in found]
        output.print_json({"ok": False, "problems": listed, "warnings": [], "servers": []})
        for one in found:
            output.print_wrapped(str(one))
        output.print(count(len(found), "problem"))
        return FAILED
    valid = load_configuration(file, inputs=keep_input)
    shown = {"warnings": list(valid.warnings), "servers": list(valid.order)}
    output.print_json({"ok": True, "problems": [], **shown})
    for text in valid.warnings:
        output.print_wrapped(f"warning: {text}")
    output.print(_summary(file, valid))
    return OK


def _problem_as_dict(error: ConfigError) -> dict[str, Any]:
    keys = ("file", "server", "key", "problem", "remedy")
    return {key: getattr(error, key) or None for key in keys}


def _summary(file: str | None, valid: Configuration) -> str:
    where = file or (str(valid.files[0].name) if valid.files else "environment")
    parts = [count(len(valid.order), "server")]
    parts += [f"{len(valid.disabled)} disabled"] if valid.disabled else []
    parts += [f"{len(valid.needs_approval)} to be approved"] if valid.needs_approval else []
    return f"{where}: ok, {', '.join(parts)}"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def schema(output: Output) -> int:
    """Print the JSON Schema of toolkeep.toml, for editors."""
    from toolkeep.config.schemas import schema

    sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
    return OK


# -- config new-key ------------------------------------------------------------------------------


def new_key(
    output: Output,
    principal: Annotated[
        str, typer.Argument(metavar="PRINCIPAL", help="Who will call with the key.")
    ],
) -> int:
    """Make an API key for the gateway.

    Give the key to its user: it is shown once, and kept nowhere. Write the lines below it into
    toolkeep.toml.
    """
    from toolkeep.config.gateway import ApiKey, GatewaySettings, hash_key, new_key

    key = new_key()
    hashed = hash_key(key)
    GatewaySettings(keys={principal: ApiKey(hash=(hashed,))})  # checks the name
    output.print_json({"principal": principal, "key": key, "hash": hashed})
    if not output.json:
        output.write(f"{key}\n\n[gateway.keys]\n{json.dumps(principal)} = {json.dumps(hashed)}\n")
    return OK


# -- config approve ------------------------------------------------------------------------------


async def approve(
    output: Output,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SERVER",
            help="The servers to approve. Default: you are asked about each.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Approve all that are waiting.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List what is approved.")] = False,
    revoke: Annotated[
        str | None,
        typer.Option(
            metavar="SERVER",
            help="Revoke an approval: by the name of a server here, or by a key of --list.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Approve the programs that a configuration file wants to start.

    A file that toolkeep finds by itself may come from anyone: its programs start only after you
    have approved them. An approval covers the command with its arguments, its environment and its
    directory; after a change to one of them you are asked again.
    """
    if listed:
        return _list_approvals(output)
    if revoke is not None:
        return _revoke(output, revoke)
    if every and names:
        raise UsageError("--all approves every program: give no names with it")
    return await _approve(output, names or [], every=every)


async def _approve(output: Output, names: Sequence[str], *, every: bool) -> int:
    from toolkeep.config import approve

    found = load_configuration()
    pending = [one for one in found.needs_approval if not names or one.name in names]
    waiting = [one.name for one in found.needs_approval]
    for name in names:
        if name not in found.order:
            listed = ", ".join(waiting) or "none"
            raise UsageError(f"there is no server {name!r}; these need approval: {listed}")
        if name not in waiting:
            output.note(f"{name} needs no approval")
    if every or names:
        if pending:
            output.note(f"{file_of(pending)} may start:\n{list_programs(pending)}")
        for one in pending:
            found = approve(found, one.name)
    elif pending and not can_prompt():
        raise UsageError(
            "there is no terminal to ask at. Read what would be started, then approve it by name "
            f"or with --all:\n{list_programs(pending)}"
        )
    elif pending:
        found = await ask_approvals(found, pending, output)
    waiting = [one.name for one in found.needs_approval]
    approved = [one.name for one in pending if one.name not in waiting]
    output.print_json({"approved": approved, "waiting": waiting})
    parts = [f"approved: {', '.join(approved)}"] if approved else []
    parts += [f"need approval: {', '.join(waiting)}"] if waiting else []
    output.print("; ".join(parts) or "no server needs approval")
    return OK if approved or not pending else FAILED


def _list_approvals(output: Output) -> int:
    from toolkeep.config import FileApprovals

    notes = FileApprovals().notes()
    output.print_json({"approved": [{"key": key, "note": note} for key, note in notes.items()]})
    rows = [(key[:KEY_LENGTH], note) for key, note in notes.items()]
    output.print_table(("key", "program"), rows)
    if not rows:
        output.print("nothing is approved")
    return OK


def _revoke(output: Output, wanted: str) -> int:
    from toolkeep.config import FileApprovals

    approvals = FileApprovals()
    known = approvals.notes().keys()
    digests = _digests_of(wanted) & known or {
        key for key in known if len(wanted) >= KEY_LENGTH and key.startswith(wanted)
    }
    if not digests:
        raise UsageError(f"{wanted!r} is not approved; see `toolkeep config approve --list`")
    for digest in digests:
        approvals.revoke(digest)
    output.print_json({"revoked": sorted(digests)})
    output.print(f"revoked: {wanted}")
    return OK


def _digests_of(name: str) -> set[str]:
    """The keys of this server's program; empty if the configuration has no such server."""
    from toolkeep.config import MemoryApprovals

    try:
        found = load_configuration(approvals=MemoryApprovals())
    except ConfigError:  # the name may still be a key
        return set()
    return {one.digest for one in found.needs_approval if one.name == name}
