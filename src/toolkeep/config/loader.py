"""`load`: read servers from a file, the environment or a Python value into one `Configuration`.

Without a source, the first of these is used: TOOLKEEP_CONFIG, toolkeep.toml, mcp.json,
.mcp.json, .vscode/mcp.json, environment variables. Only one source describes servers; default
and enable variables of the environment apply to all of them. Programs in a discovered file need
approval (`approval`). A `.env` file next to the configuration supplies variables; the process
environment takes precedence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from toolkeep.config.approval import (
    Approvals,
    FileApprovals,
    command_digest,
    default_approvals_path,
    home_directory,
)
from toolkeep.config.dialects.detect import read_document
from toolkeep.config.dialects.draft import Draft
from toolkeep.config.dialects.environment import (
    SERVERS_VARIABLE,
    describes_servers,
    disabled_by,
    read_defaults,
    read_environment,
)
from toolkeep.config.expand import References, expand
from toolkeep.config.fields import FrozenDict
from toolkeep.config.formats import (
    Document,
    check_depth,
    display_path,
    parse_env,
    parse_json,
    parse_toml,
    path_exists,
    read_text,
)
from toolkeep.config.gateway import read_gateway
from toolkeep.config.redact import redact_args
from toolkeep.config.resolve import InputAnswers, Inputs, ResolvedServers, resolve
from toolkeep.config.spec import (
    Configuration,
    Origin,
    PendingApproval,
    ServerSpec,
    spec_warnings,
    warn,
)
from toolkeep.errors import ConfigError

CONFIG_VARIABLE = "TOOLKEEP_CONFIG"
STATE_VARIABLE, STATE_KEYS_VARIABLE = "TOOLKEEP_STATE", "TOOLKEEP_STATE_KEYS"
DEFAULT_PATHS = ("toolkeep.toml", "mcp.json", ".mcp.json", ".vscode/mcp.json")
ENV_FILE = ".env"
_SUFFIXES = (".json", ".toml", ".env")
_EDITOR_FOLDERS = (".vscode", ".cursor")


def load(
    source: object = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    inputs: Inputs | InputAnswers | None = None,
    approvals: Approvals | None = None,
    strict: bool = False,
) -> Configuration:
    """Load a configuration from a path, a URL, a mapping, a list, a `ServerSpec` or a server in
    this process. None: search the default places.

    A server whose entry is wrong is skipped, with a warning and an error in `invalid`. An error in
    the source as a whole, or errors in all servers, raise `ConfigError`; with `strict`, any error
    does.

    `env` replaces the process environment. `inputs` answers VS Code's `${input:…}`.
    """
    found = read_configuration(
        source, env=env, cwd=cwd, inputs=inputs, approvals=approvals, strict=strict
    )
    for error in found.invalid:
        warn(f"{error} (this server is skipped)")
    if found.gateway_error is not None:
        warn(f"{found.gateway_error} (a gateway cannot start)")
    return found


def read_configuration(
    source: object,
    *,
    env: Mapping[str, str] | None,
    cwd: Path | str | None,
    inputs: Inputs | InputAnswers | None,
    approvals: Approvals | None,
    strict: bool,
) -> Configuration:
    """As `load`, without the warnings about skipped servers."""
    context = _load_context(env, cwd, inputs)
    return _to_configuration(context.read_draft(source), context, approvals, strict=strict)


def find_errors(
    source: object = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    inputs: Inputs | InputAnswers | None = None,
) -> tuple[ConfigError, ...]:
    """All errors of a source, in the order of the file. A strict `load` raises the first."""
    context = _load_context(env, cwd, inputs)
    try:
        draft = context.read_draft(source)
    except ConfigError as error:
        return (error,)
    _resolve(draft, context)
    return tuple(error for _, error in (*draft.errors.sorted, *draft.gateway_errors.sorted))


def _load_context(
    env: Mapping[str, str] | None, cwd: Path | str | None, inputs: Inputs | InputAnswers | None
) -> LoadContext:
    return LoadContext(
        env=os.environ if env is None else env,
        cwd=Path(os.path.abspath(cwd or os.getcwd())),
        answers=inputs if isinstance(inputs, InputAnswers) else InputAnswers(inputs),
    )


@dataclass(slots=True)
class LoadContext:
    """The surroundings of one `load`, and the files it reads. Used once."""

    env: Mapping[str, str] = field(repr=False)
    cwd: Path
    answers: InputAnswers
    files: list[Path] = field(default_factory=list[Path])
    env_file_variables: dict[str, str] = field(default_factory=dict[str, str])
    """Variables of the `.env` file next to the configuration, each with its file and line."""
    process_env: Mapping[str, str] = field(init=False, repr=False)
    """`env` without variables of files: a discovered file must not choose where approvals are."""
    warnings: list[str] = field(default_factory=list[str])
    """Warnings about the `.env` file."""

    def __post_init__(self) -> None:
        self.process_env = self.env

    def read_draft(self, source: object) -> Draft:
        """Read the source; None: search for one."""
        if source is None:
            return self._search()
        if isinstance(source, str) and "://" not in source:
            source = _as_path(source)
        if isinstance(source, Path):
            return self._from_file(source)
        check_depth(source, None)
        return read_document(Document(source, folder=self.cwd))

    def _search(self) -> Draft:
        named = self.env.get(CONFIG_VARIABLE, "").strip()
        if named:
            return self._from_file(_as_path(named))
        for default in DEFAULT_PATHS:
            if path_exists(self.cwd / default):
                return self._from_file(Path(default), discovered=True)
        self._read_env_file(self.cwd)
        # The user did not name the .env file, so its programs need approval.
        discovered = any(describes_servers(name) for name in self.env_file_variables)
        draft = read_environment(
            Document(self.env, "environment", folder=self.cwd, discovered=discovered)
        )
        if not draft.entries and not draft.errors.found:
            looked = ", ".join((CONFIG_VARIABLE, *DEFAULT_PATHS, SERVERS_VARIABLE))
            draft.warn(f"no server is configured; looked for {looked}", Origin())
        return draft

    def _from_file(self, path: Path, *, discovered: bool = False) -> Draft:
        path = self.cwd / os.path.expanduser(path)
        file = display_path(path, self.cwd)
        self.files.append(path)
        format_ = _format_of(path, file)
        text = read_text(path, file)
        in_editor_folder = path.parent.name in _EDITOR_FOLDERS
        folder = path.parent.parent if in_editor_folder else path.parent
        if format_ == ".env":
            values, lines = parse_env(text, file)
            self.env = {**values, **self.env}
            return read_environment(Document(values, file, lines, folder, path, discovered))
        self._read_env_file(folder)
        if format_ == ".toml":
            value, lines = parse_toml(text, file)
        else:
            comments = path.name == "mcp.json" and path.parent.name == ".vscode"
            value, lines = parse_json(text, file, comments=comments)
        document = Document(value, file, lines, folder, path, discovered)
        return read_document(document, toml=format_ == ".toml")

    def _read_env_file(self, folder: Path) -> None:
        """Add the variables of `.env` that the environment does not set.

        The file may belong to another program, so an error in it is only a warning.
        """
        path = folder / ENV_FILE
        if not path_exists(path):
            return
        file = display_path(path, self.cwd)
        self.files.append(path)
        try:
            values, lines = parse_env(read_text(path, file), file)
        except ConfigError as error:
            self.warnings.append(f"{error.file or file} is ignored: {error.problem}")
            return
        self.env = {**values, **self.env}
        self.env_file_variables = {
            name: f"{file}:{lines[(name,)]}" for name in values if self.env[name] == values[name]
        }

    def env_file_reader(self, folder: Path) -> Any:
        """A function that reads the `envFile` of a server."""

        def read(name: str) -> Mapping[str, str]:
            path = folder / os.path.expanduser(name)
            file = display_path(path, self.cwd)
            self.files.append(path)
            return cast("Mapping[str, str]", parse_env(read_text(path, file), file)[0])

        return read


def _as_path(text: str) -> Path:
    if "\0" in text:
        raise ConfigError("the path contains a NUL character", remedy="Correct the path")
    return Path(text)


def _format_of(path: Path, file: str) -> str:
    if path.name == ".env" or path.name.startswith(".env."):
        return ".env"
    if path.suffix in _SUFFIXES:
        return path.suffix
    raise ConfigError(
        "the source is neither a URL nor a configuration file",
        remedy=f"Give http://…, or a file that ends in {', '.join(_SUFFIXES)}",
        file=file,
    )


def _resolve(draft: Draft, context: LoadContext) -> ResolvedServers:
    folder = draft.document.folder
    variables = (
        _editor_variables(folder, home_directory(context.process_env))
        if draft.has_editor_variables
        else {}
    )
    references = References(context.env, variables, context.answers.resolver(draft.inputs))
    draft.disabled_reason = draft.disabled_reason or disabled_by(context.env, draft)
    draft.defaults.extend(read_defaults(context.env))
    _resolve_state(draft, references, context.process_env)
    resolved = resolve(draft, references, context.env_file_reader(folder))
    resolved.gateway = read_gateway(draft, references, resolved.server_origins)
    return resolved


def _resolve_state(draft: Draft, references: References, env: Mapping[str, str]) -> None:
    """Expand `state` and `state_keys`. The variables of the process take precedence."""
    for key, variable in (("state", STATE_VARIABLE), ("state_keys", STATE_KEYS_VARIABLE)):
        named = env.get(variable, "").strip()
        if named:
            draft.state[key] = named.split(",") if key == "state_keys" else named
            continue
        if key not in draft.state:
            continue
        problem = remedy = ""
        try:
            value = draft.state[key] = expand(draft.state[key], references, key=key)
            texts = value if key == "state_keys" else [value]
            if not isinstance(texts, list) or not all(
                isinstance(one, str) for one in cast("list[object]", texts)
            ):
                problem, remedy = "it must be text", 'Write state = "redis://…"'
                if key == "state_keys":
                    problem, remedy = "it must be a list of texts", 'Write ["${STATE_KEY}"]'
        except ConfigError as error:
            problem, remedy = error.problem, error.remedy
        if problem:
            origin = draft.document.origin((key,))
            draft.errors.add(problem, remedy=remedy, origin=origin, key=key)


def _to_configuration(
    draft: Draft, context: LoadContext, approvals: Approvals | None, *, strict: bool
) -> Configuration:
    resolved = _resolve(draft, context)
    errors = draft.errors
    if strict or errors.fatal or not (resolved.specs or draft.disabled_reason):
        errors.raise_first()
    if strict:
        draft.gateway_errors.raise_first()
    invalid = tuple(error for error in errors.by_server() if error.server not in resolved.disabled)
    pending = _pending_approvals(resolved, context, approvals) if draft.document.discovered else ()
    unapproved = {one.name for one in pending}
    for spec in resolved.specs:
        draft.warnings.extend(_password_warnings(spec, context.answers))
    draft.warnings.extend(context.warnings)
    for text in draft.warnings:
        warn(text)
    # ServerSpec has emitted these warnings itself.
    emitted = [text for spec in resolved.specs for text in spec_warnings(spec)]
    return Configuration(
        servers=tuple(spec for spec in resolved.specs if spec.name not in unapproved),
        disabled=FrozenDict(resolved.disabled),
        needs_approval=pending,
        invalid=invalid,
        origins=FrozenDict({name: FrozenDict(of) for name, of in resolved.origins.items()}),
        warnings=(*draft.warnings, *emitted),
        files=tuple(dict.fromkeys(context.files)),
        order=tuple(resolved.server_origins),
        state=draft.state.get("state"),
        state_keys=tuple(draft.state["state_keys"]) if "state_keys" in draft.state else None,
        gateway=resolved.gateway,
        gateway_error=draft.gateway_errors.first,
    )


def _editor_variables(folder: Path, home: str) -> dict[str, str]:
    """The variables of VS Code, also of Cursor, that have a value without an editor."""
    return {
        "workspaceFolder": str(folder),
        "workspaceFolderBasename": folder.name,
        "cwd": str(folder),
        "userHome": home,
        "pathSeparator": os.sep,
        "/": os.sep,
    }


def _pending_approvals(
    resolved: ResolvedServers, context: LoadContext, approvals: Approvals | None
) -> tuple[PendingApproval, ...]:
    programs = [spec for spec in resolved.specs if spec.command]
    approvals = approvals or FileApprovals(default_approvals_path(context.process_env))
    digests = [(spec, command_digest(spec, context.cwd)) for spec in programs]
    return tuple(
        PendingApproval(
            spec, digest, resolved.server_origins[spec.name], resolved.raw_commands[spec.name]
        )
        for spec, digest in digests
        if not approvals.is_approved(digest)
    )


def _password_warnings(spec: ServerSpec, answers: InputAnswers) -> list[str]:
    shown = redact_args(spec.args)
    if not any(secret in arg for secret in answers.passwords for arg in shown):
        return []
    problem = "a password is among the arguments, where every user of this machine can see it"
    return [f"{spec.name}: {problem}; pass it in 'env'"]
