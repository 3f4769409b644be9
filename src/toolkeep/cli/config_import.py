"""`config add` and `config import`: servers are written to a file, typed or copied as they are.

A reference such as `${TOKEN}` stays a reference. A secret that is written out is copied, because
the server would not work without it, and a warning says what to write instead. The file they are
added to keeps its other entries.

Where the products keep their servers: modelcontextprotocol.io (Claude Desktop),
code.claude.com/docs/en/mcp (Claude Code), cursor.com/docs/context/mcp (Cursor),
code.visualstudio.com/docs/copilot (VS Code). On Linux, Electron programs use XDG_CONFIG_HOME.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from toolkeep.cli.config import REFERENCE, count, redact_written, variables_of
from toolkeep.cli.errors import FAILED, OK, UsageError
from toolkeep.cli.output import Output
from toolkeep.errors import ConfigError

PRODUCTS = ("claude-desktop", "claude-code", "cursor", "vscode")
MAX_BYTES = 64 * 1024 * 1024
"""Bytes of a product's file. Claude Code keeps much more than servers in its own."""

Status = Literal["new", "same", "replaced", "kept"]
STATUS_TEXTS: Mapping[Status, str] = {
    "new": "added",
    "same": "already there",
    "replaced": "replaced",
    "kept": "not added: another is there",
}


def import_servers(
    output: Output,
    origin: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="claude-desktop, claude-code, cursor, vscode, or a file. Default: all products.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        Path,
        typer.Option("--to", metavar="FILE", help="The file to add them to; created if missing."),
    ] = Path("mcp.json"),
    force: Annotated[
        bool, typer.Option("--force", help="Replace servers of the same name.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be added, and write nothing.")
    ] = False,
) -> int:
    """Copy servers from Claude, Cursor or VS Code.

    Other entries of the file are kept. References such as ${TOKEN} are copied as they are written;
    a warning names each secret that is written out.
    """
    cwd = Path.cwd()
    target = TargetFile(to)
    found = [one for one in _find_entries(origin, cwd, output) if one.path != (cwd / to)]
    servers = _decide(found, target, force=force)
    changed = [one for one in servers if one.status in ("new", "replaced")]
    written = bool(changed) and not dry_run
    if written:
        _write(changed, target)
    listed = [one.as_dict() for one in servers]
    output.print_json({"to": str(to), "written": written, "servers": listed})
    if not servers:
        output.note("error: no server was found in the files of Claude, Cursor and VS Code")
        return FAILED
    output.print_table(("server", "status", "from", "url or command"), [x.row() for x in servers])
    for one in changed:
        one.note_warnings(target, output)
    output.print(_summary(len(changed), to, dry_run=dry_run))
    return OK


def add_server(
    output: Output,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the server.")],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="URL|COMMAND",
            help="Its URL, the program that is started with its arguments, or a script.",
        ),
    ],
    to: Annotated[
        Path,
        typer.Option("--to", metavar="FILE", help="The file to add it to; created if missing."),
    ] = Path("mcp.json"),
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="'NAME: VALUE'",
            help="A header of every request, such as 'Authorization: Bearer ${TOKEN}'.",
            show_default=False,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="NAME=VALUE",
            help="A variable of the program's environment. May be repeated.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a server of this name.")] = False,
) -> int:
    """Add a server to a configuration file. Options stand before NAME.

    \b
    toolkeep config add notes https://notes.example.com/mcp
    toolkeep config add files npx -y @modelcontextprotocol/server-filesystem .
    toolkeep config add mine server.py

    A program that you add is approved, because you typed its command. Quote ${TOKEN}, so that the
    file refers to the variable instead of containing its value.
    """
    from toolkeep.config.fields import SERVER_NAME
    from toolkeep.config.spec import ConfigWarning, ServerSpec

    if not SERVER_NAME.fullmatch(name):
        rule = "1 to 64 letters, digits, '-' and '_', beginning with a letter or a digit"
        raise UsageError(f"{name[:80]!r} is not a valid server name: give it {rule}")
    entry = _typed_entry(words, header or (), env or ())
    # References are kept for later, so their values are not needed to check the entry.
    checked = REFERENCE.sub("x", json.dumps(entry))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)  # `check` reports what is risky
        ServerSpec.parse({"name": name, **json.loads(checked)})
    target = TargetFile(to)
    server = ImportedServer(
        name,
        FoundEntry(name, entry, "typed", Path()),
        target.status_of(name, entry, force=force),
        literal_secrets(entry),
    )
    if server.status == "kept":
        raise UsageError(f"{to} has another server {name!r}: give --force to replace it")
    _write([server], target)
    server.note_warnings(target, output)
    approve_typed(to, name, output)
    output.print_json({"to": str(to), **server.as_dict()})
    output.print(f"{STATUS_TEXTS[server.status]}: {name} in {to}. Next: toolkeep check {name}")
    return OK


def _typed_entry(
    words: Sequence[str], headers: Sequence[str], variables: Sequence[str]
) -> dict[str, Any]:
    """The entry of a server, in the format of mcp.json."""
    from toolkeep.config.spec import parse_command

    given: dict[str, str] = {}
    for text in (*headers, *variables):
        key, found, value = text.partition(":" if text in headers else "=")
        if not found or not key.strip():
            raise UsageError("write --header 'Name: value' and --env NAME=value")
        given[key.strip()] = value.strip()
    if "://" in words[0]:
        if any(word.startswith("-") for word in words[1:]):
            raise UsageError(
                f"options stand before the name: {shlex.join(words[1:])} comes too late"
            )
        if len(words) > 1 or variables:
            raise UsageError("a URL takes no arguments and no --env")
        return {"url": words[0], **({"headers": given} if given else {})}
    if headers:
        raise UsageError("--header is for a server with a URL; a program gets --env NAME=value")
    entry = parse_command(shlex.join(words))
    entry.pop("name", None)
    # Products differ in where programs start, so a script is named by its absolute path.
    script = Path(words[0]).expanduser()
    if entry["command"] != words[0]:
        entry["args"][0] = str(script.resolve())
    return {**entry, **({"env": given} if given else {})}


def approve_typed(file: Path, name: str | None, output: Output) -> None:
    """Approve programs whose commands this person has just written to `file`."""
    from toolkeep.cli.source import load_configuration
    from toolkeep.config import approve

    # TOOLKEEP_CONFIG would name another configuration than the one in the folder.
    env = {key: value for key, value in os.environ.items() if key != "TOOLKEEP_CONFIG"}
    try:
        found = load_configuration(cwd=file.resolve().parent, env=env)
        if file.resolve() not in [one.resolve() for one in found.files]:
            return  # a file that is always named starts its programs without approval
        for pending in found.needs_approval:
            if name in (None, pending.name):
                approve(found, pending.name)
    except ConfigError as error:
        output.note(f"warning: {error}")


def _summary(changed: int, to: Path, *, dry_run: bool) -> str:
    if not changed:
        return f"nothing to add to {to}; --force replaces servers of the same name"
    return f"{'would add' if dry_run else 'added'} {count(changed, 'server')} to {to}"


# -- the products' files -------------------------------------------------------------------------


@dataclass(frozen=True)
class ProductFile:
    """A file in which a product keeps its servers. It need not exist."""

    product: str
    path: Path


def product_files(platform: str, env: Mapping[str, str], cwd: Path) -> list[ProductFile]:
    """The nearest first: a project's files come before the user's."""
    from toolkeep.config.approval import home_directory

    home = Path(home_directory(env))
    programs = {
        "darwin": home / "Library" / "Application Support",
        "win32": Path(env.get("APPDATA") or home / "AppData" / "Roaming"),
    }.get(platform, Path(env.get("XDG_CONFIG_HOME") or home / ".config"))
    return [
        ProductFile("claude-code", cwd / ".mcp.json"),
        ProductFile("cursor", cwd / ".cursor" / "mcp.json"),
        ProductFile("vscode", cwd / ".vscode" / "mcp.json"),
        ProductFile("claude-code", home / ".claude.json"),
        ProductFile("claude-desktop", programs / "Claude" / "claude_desktop_config.json"),
        ProductFile("cursor", home / ".cursor" / "mcp.json"),
        ProductFile("vscode", programs / "Code" / "User" / "mcp.json"),
        ProductFile("vscode", programs / "Code" / "User" / "settings.json"),
    ]


@dataclass(frozen=True)
class FoundEntry:
    """One server, as a product's file has it."""

    name: str
    entry: Mapping[str, Any] = field(repr=False)
    product: str
    path: Path
    inputs: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """The inputs that the file declares (VS Code)."""


def _find_entries(source: str | None, cwd: Path, output: Output) -> list[FoundEntry]:
    """The servers of one file, of one product, or of all. A file that was named must be valid."""
    if source is not None and source not in PRODUCTS:
        if not os.path.lexists(source):
            known = ", ".join(PRODUCTS)
            raise UsageError(f"{source!r} is neither a file nor a known product: {known}")
        return _read_entries(ProductFile("file", cwd / source), cwd)
    found: list[FoundEntry] = []
    for file in product_files(sys.platform, os.environ, cwd):
        if source in (None, file.product) and file.path.is_file():
            try:
                found += _read_entries(file, cwd)
            except ConfigError as error:
                output.note(f"warning: {error}")
    return found


def _read_entries(file: ProductFile, cwd: Path) -> list[FoundEntry]:
    whole = _mapping(_parse(file.path))
    inputs = tuple(_declared_inputs(whole))
    return [
        FoundEntry(str(name), _mapping(entry), file.product, file.path, inputs)
        for name, entry in _servers_in(whole, cwd)
        if _mapping(entry)
    ]


def _servers_in(whole: Mapping[Any, Any], cwd: Path) -> Iterator[tuple[Any, Any]]:
    project = _mapping(_mapping(whole.get("projects")).get(str(cwd)))  # Claude Code's local scope
    settings = _mapping(whole.get("mcp"))  # VS Code's settings.json
    for servers in (
        project.get("mcpServers"),
        whole.get("mcpServers"),
        whole.get("servers"),
        settings.get("servers"),
    ):
        yield from _mapping(servers).items()


def _declared_inputs(whole: Mapping[Any, Any]) -> Iterator[Mapping[str, Any]]:
    for given in (whole.get("inputs"), _mapping(whole.get("mcp")).get("inputs")):
        for one in cast("list[Any]", given) if isinstance(given, list) else ():
            yield _mapping(one)


def _parse(path: Path) -> Any:
    from toolkeep.config.formats import parse_json

    text = _read_text(path)
    try:
        # First without our parser: Claude Code's file may be nested deeper than it accepts.
        return json.loads(text)
    except (ValueError, RecursionError):
        return parse_json(text, str(path), comments=True)[0]


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():
            raise ConfigError("it is not a file", remedy="Name a file", file=str(path))
        with path.open("rb") as opened:
            return opened.read(MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or "no access"
        remedy = "Make it readable, or name another"
        raise ConfigError(f"it cannot be read: {reason}", remedy=remedy, file=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("it is not UTF-8", remedy="Save it as UTF-8", file=str(path)) from None


# -- what becomes of each server -----------------------------------------------------------------


@dataclass(frozen=True)
class ImportedServer:
    """One server, and what becomes of it."""

    name: str
    found: FoundEntry
    status: Status
    secrets: list[str] = field(default_factory=list[str])
    """The keys of its entry that hold a secret, written out."""

    @property
    def inputs(self) -> list[str]:
        """The ids of the inputs that the entry refers to."""
        names = variables_of(_texts_in(self.found.entry))
        return [name.removeprefix("input:") for name in names if name.startswith("input:")]

    @property
    def is_vscode(self) -> bool:
        return bool(self.found.inputs) or self.found.product == "vscode"

    def row(self) -> tuple[str, ...]:
        status = STATUS_TEXTS[self.status]
        return self.name, status, self.found.product, url_or_command(self.found.entry)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status,
            "product": self.found.product,
            "from": str(self.found.path),
            "shown": url_or_command(self.found.entry),
            "secrets": self.secrets,
        }

    def note_warnings(self, target: TargetFile, output: Output) -> None:
        if self.name != self.found.name:
            output.note(f"note: {self.found.name!r} is named {self.name} here")
        for key in self.secrets:
            variable = key.rpartition(".")[2].upper().replace("-", "_")
            output.note(
                f"warning: {self.name}: {key} holds a secret, written out. "
                f"Set a variable, and write ${{{variable}}} instead"
            )
        if self.inputs and target.servers_key == "mcpServers":
            output.note(
                f"warning: {self.name}: it needs the inputs {', '.join(self.inputs)}, which only "
                "a file in VS Code's format can declare. Write ${NAME} instead of ${input:…}"
            )


def _decide(found: list[FoundEntry], target: TargetFile, *, force: bool) -> list[ImportedServer]:
    """Each name once: the nearest file wins."""
    from toolkeep.config.fields import valid_server_names

    servers: dict[str, ImportedServer] = {}
    names = valid_server_names(one.name for one in found)
    for one in found:
        name = names[one.name]
        if name not in servers:
            status = target.status_of(name, one.entry, force=force)
            servers[name] = ImportedServer(name, one, status, literal_secrets(one.entry))
    return list(servers.values())


def _write(changed: list[ImportedServer], target: TargetFile) -> None:
    used = {name for one in changed for name in one.inputs}
    declared = [i for one in changed for i in one.found.inputs if i.get("id") in used]
    if declared and target.servers_key != "mcpServers" and all(one.is_vscode for one in changed):
        target.declare_inputs(declared)
    for one in changed:
        target.add(one.name, one.found.entry)
    target.write(private=any(one.secrets for one in changed))


def url_or_command(entry: Mapping[str, Any]) -> str:
    """A server in one line, without secrets."""
    url = entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    if isinstance(url, str):
        return str(redact_written("url", url))
    return " ".join((str(entry.get("command", "")), *redact_written("args", _list(entry, "args"))))


def literal_secrets(entry: Mapping[str, Any]) -> list[str]:
    """The keys of an entry under which a secret is written out, not referred to."""
    from toolkeep.config.redact import is_secret_name, secrets_of_args

    found = [
        f"{group}.{name}"
        for group in ("env", "headers")
        for name, value in _mapping(entry.get(group)).items()
        if is_secret_name(str(name)) and _is_literal(value)
    ]
    found += [key for key in ("api_key", "apiKey") if _is_literal(entry.get(key))]
    args = [str(one) for one in _list(entry, "args")]
    found += ["args"] if any(map(_is_literal, secrets_of_args(args))) else []
    url = entry.get("url")
    found += ["url"] if isinstance(url, str) and _has_literal_secret(url) else []
    return found


def _has_literal_secret(url: str) -> bool:
    from toolkeep.config import secrets_of_url

    try:
        return any(map(_is_literal, secrets_of_url(url)))
    except ValueError:
        return False


def _is_literal(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not REFERENCE.search(value)


# -- the file they are added to ------------------------------------------------------------------


class TargetFile:
    """Read once, changed in memory, written once and as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix != ".json":
            raise UsageError(f"--to {path}: servers can be added to a .json file only; name one")
        self._whole = _parse_strictly(path) if os.path.lexists(path) else {}
        keys = ("mcpServers", "servers")
        self.servers_key = next((key for key in keys if key in self._whole), "")
        if self._whole and not self.servers_key:
            remedy = 'Put its servers under "mcpServers", or name another file'
            raise ConfigError("there is nowhere to add servers", remedy=remedy, file=str(path))

    def status_of(self, name: str, entry: Mapping[str, Any], *, force: bool) -> Status:
        there = self._servers.get(name)
        if there is None:
            return "new"
        return "same" if there == dict(entry) else "replaced" if force else "kept"

    def add(self, name: str, entry: Mapping[str, Any]) -> None:
        self.servers_key = self.servers_key or "mcpServers"
        self._whole[self.servers_key] = {**self._servers, name: dict(entry)}

    def declare_inputs(self, inputs: Iterable[Mapping[str, Any]]) -> None:
        """Add inputs in VS Code's format to those that are declared."""
        self.servers_key = self.servers_key or "servers"
        there = cast("list[Any]", self._whole.get("inputs") or [])
        known = {_mapping(one).get("id") for one in there}
        self._whole["inputs"] = [*there, *(one for one in inputs if one.get("id") not in known)]

    def write(self, *, private: bool) -> None:
        """`private`: a new file can be read by its owner only."""
        path = self.path.resolve()
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600 if private else 0o644
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".toolkeep-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(self._whole, indent=2, ensure_ascii=False) + "\n")
            os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    @property
    def _servers(self) -> Mapping[str, Any]:
        return _mapping(self._whole.get(self.servers_key))


def _parse_strictly(path: Path) -> dict[str, Any]:
    """JSON without comments, which could not be kept."""
    from toolkeep.config.formats import parse_json

    value = parse_json(_read_text(path), str(path))[0]
    if not isinstance(value, dict):
        raise ConfigError(
            "it is not a JSON object", remedy='Begin with {"mcpServers": {}}', file=str(path)
        )
    return cast("dict[str, Any]", value)


def _mapping(value: object) -> Mapping[Any, Any]:
    return cast("Mapping[Any, Any]", value) if isinstance(value, Mapping) else {}


def _list(entry: Mapping[str, Any], key: str) -> list[object]:
    found = entry.get(key)
    return cast("list[object]", found) if isinstance(found, list) else []


def _texts_in(value: object) -> list[str]:
    """All texts inside of a value."""
    if isinstance(value, Mapping):
        return _texts_in(list(cast("Mapping[str, object]", value).values()))
    if isinstance(value, list | tuple):
        return [text for one in cast("list[object]", value) for text in _texts_in(one)]
    return [value] if isinstance(value, str) else []
