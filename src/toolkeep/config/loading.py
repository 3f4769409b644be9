"""`load`: from whatever describes servers to one `Configuration`, before anything is opened.

Where nothing is given, the first of these that exists: TOOLKEEP_CONFIG, toolkeep.toml, mcp.json,
.mcp.json, .vscode/mcp.json, and then the environment. Only one source describes the servers; the
environment's global defaults and switches count for all of them. A file that was found and not
named starts no program unasked (`approval`).

The `.env` beside a configuration's file gives its variables; what the environment says wins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from toolkeep.config import dialects, reading
from toolkeep.config.approval import Approvals, FileApprovals, default_path, digest_of, home_of
from toolkeep.config.configuration import Configuration, Origin, Pending
from toolkeep.config.dialects import environment
from toolkeep.config.doubts import doubts_about, warn
from toolkeep.config.draft import Document, Draft
from toolkeep.config.expand import Meanings
from toolkeep.config.formats import check_depth, parse_env, parse_json, parse_toml
from toolkeep.config.frozen import FrozenDict
from toolkeep.config.inputs import Answers, Inputs
from toolkeep.config.redact import redact_args
from toolkeep.config.settle import Settled, settle
from toolkeep.config.spec import ServerSpec
from toolkeep.errors import ConfigError

NAMED_BY = "TOOLKEEP_CONFIG"
USUAL_PLACES = ("toolkeep.toml", "mcp.json", ".mcp.json", ".vscode/mcp.json")
BESIDE = ".env"
_SUFFIXES = (".json", ".toml", ".env")
_EDITORS_FOLDERS = (".vscode", ".cursor")


def load(
    source: object = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    inputs: Inputs | Answers | None = None,
    approvals: Approvals | None = None,
    strict: bool = False,
) -> Configuration:
    """What `source` describes: a path, a URL, a mapping, a list, a `ServerSpec`, a server in this
    process; None looks in the usual places.

    A server whose entry is wrong is set aside and named (`set_aside`, and a warning), and the
    others are used. What is wrong with the source as a whole, or leaves no server at all, is a
    `ConfigError`; with `strict` anything is.

    `env` stands for this process's environment, `inputs` answers VS Code's `${input:…}`.
    """
    found = read(source, env=env, cwd=cwd, inputs=inputs, approvals=approvals, strict=strict)
    for error in found.set_aside:
        warn(f"{error} (it is set aside)")
    return found


def read(
    source: object,
    *,
    env: Mapping[str, str] | None,
    cwd: Path | str | None,
    inputs: Inputs | Answers | None,
    approvals: Approvals | None,
    strict: bool,
) -> Configuration:
    """As `load`, for who tells of servers that are set aside in another way than by warnings."""
    around = _surroundings(env, cwd, inputs)
    return _settled(around.draft(source), around, approvals, strict=strict)


def problems(
    source: object = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    inputs: Inputs | Answers | None = None,
) -> tuple[ConfigError, ...]:
    """All that is wrong with it, in the order of the file. A strict `load` raises the first."""
    around = _surroundings(env, cwd, inputs)
    try:
        draft = around.draft(source)
    except ConfigError as error:
        return (error,)
    _settle(draft, around)
    return tuple(error for _, error in draft.mistakes.in_order)


def _surroundings(
    env: Mapping[str, str] | None, cwd: Path | str | None, inputs: Inputs | Answers | None
) -> Surroundings:
    return Surroundings(
        env=os.environ if env is None else env,
        cwd=Path(os.path.abspath(cwd or os.getcwd())),
        answers=inputs if isinstance(inputs, Answers) else Answers(inputs),
    )


@dataclass(slots=True)
class Surroundings:
    """What one loading reads. Its own: `files` grows."""

    env: Mapping[str, str] = field(repr=False)
    cwd: Path
    answers: Answers
    files: list[Path] = field(default_factory=list[Path])
    beside: dict[str, str] = field(default_factory=dict[str, str])
    """The variables of the `.env` beside the configuration, and the place of each."""
    process_env: Mapping[str, str] = field(init=False, repr=False)
    """Without what files add to it: a file that was found must not say where approvals are kept."""
    notes: list[str] = field(default_factory=list[str])
    """Warnings about that file."""

    def __post_init__(self) -> None:
        self.process_env = self.env

    def draft(self, source: object) -> Draft:
        if source is None:
            return self._searched()
        if isinstance(source, str) and "://" not in source:
            source = _as_path(source)
        if isinstance(source, Path):
            return self._from_file(source)
        check_depth(source, None)
        return dialects.read(Document(source, folder=self.cwd))

    def _searched(self) -> Draft:
        named = self.env.get(NAMED_BY, "").strip()
        if named:
            return self._from_file(_as_path(named))
        for place in USUAL_PLACES:
            if reading.exists(self.cwd / place):
                return self._from_file(Path(place), found=True)
        self._read_beside(self.cwd)
        # Nobody has named that file, so what it wants to start is asked about.
        found = any(environment.describes_servers(name) for name in self.beside)
        draft = environment.read(Document(self.env, "environment", folder=self.cwd, found=found))
        if not draft.entries and not draft.mistakes.found:
            looked = ", ".join((NAMED_BY, *USUAL_PLACES, environment.LISTED))
            draft.warn(f"no server is configured; looked for {looked}", Origin())
        return draft

    def _from_file(self, path: Path, *, found: bool = False) -> Draft:
        path = self.cwd / os.path.expanduser(path)
        file = reading.shown(path, self.cwd)
        self.files.append(path)
        format_ = _format_of(path, file)
        text = reading.text_of(path, file)
        editors = path.parent.name in _EDITORS_FOLDERS
        folder = path.parent.parent if editors else path.parent
        if format_ == ".env":
            values, lines = parse_env(text, file)
            self.env = {**values, **self.env}
            return environment.read(Document(values, file, lines, folder, path, found))
        self._read_beside(folder)
        if format_ == ".toml":
            value, lines = parse_toml(text, file)
        else:
            comments = path.name == "mcp.json" and path.parent.name == ".vscode"
            value, lines = parse_json(text, file, comments=comments)
        document = Document(value, file, lines, folder, path, found)
        return dialects.read(document, toml=format_ == ".toml")

    def _read_beside(self, folder: Path) -> None:
        """The variables of `.env`, under those of the environment. It may be another program's:
        what cannot be read is a warning."""
        path = folder / BESIDE
        if not reading.exists(path):
            return
        file = reading.shown(path, self.cwd)
        self.files.append(path)
        try:
            values, lines = parse_env(reading.text_of(path, file), file)
        except ConfigError as error:
            self.notes.append(f"{error.file or file}: it is not read: {error.problem}")
            return
        self.env = {**values, **self.env}
        self.beside = {
            name: f"{file}:{lines[(name,)]}" for name in values if self.env[name] == values[name]
        }

    def env_file(self, folder: Path) -> Any:
        """Reads what a server's `envFile` names."""

        def read(name: str) -> Mapping[str, str]:
            path = folder / os.path.expanduser(name)
            file = reading.shown(path, self.cwd)
            self.files.append(path)
            return cast("Mapping[str, str]", parse_env(reading.text_of(path, file), file)[0])

        return read


def _as_path(text: str) -> Path:
    if "\0" in text:
        raise ConfigError("a path holds no NUL character", remedy="Correct the path")
    return Path(text)


def _format_of(path: Path, file: str) -> str:
    if path.name == ".env" or path.name.startswith(".env."):
        return ".env"
    if path.suffix in _SUFFIXES:
        return path.suffix
    raise ConfigError(
        "neither a URL nor a configuration's file",
        remedy=f"Give http://…, or a file that ends in {', '.join(_SUFFIXES)}",
        file=file,
    )


def _settle(draft: Draft, around: Surroundings) -> Settled:
    folder = draft.document.folder
    known = _editors_words(folder, home_of(around.process_env)) if draft.of_an_editor else {}
    meanings = Meanings(around.env, known, around.answers.to(draft.inputs))
    draft.off = draft.off or environment.switched_off(around.env, draft)
    draft.defaults.extend(environment.defaults(around.env))
    return settle(draft, meanings, around.env_file(folder))


def _settled(
    draft: Draft, around: Surroundings, approvals: Approvals | None, *, strict: bool
) -> Configuration:
    settled = _settle(draft, around)
    mistakes = draft.mistakes
    if strict or mistakes.whole or not (settled.specs or draft.off):
        mistakes.check()
    set_aside = tuple(
        error for error in mistakes.by_server() if error.server not in settled.disabled
    )
    pending = _unapproved(settled, around, approvals) if draft.document.found else ()
    waiting = {one.name for one in pending}
    for spec in settled.specs:
        draft.warnings.extend(_passwords(spec, around.answers))
    draft.warnings.extend(around.notes)
    for text in draft.warnings:
        warn(text)
    doubts = [text for spec in settled.specs for text in doubts_about(spec)]
    return Configuration(
        servers=tuple(spec for spec in settled.specs if spec.name not in waiting),
        disabled=FrozenDict(settled.disabled),
        needs_approval=pending,
        set_aside=set_aside,
        origins=FrozenDict({name: FrozenDict(of) for name, of in settled.origins.items()}),
        warnings=(*draft.warnings, *doubts),
        files=tuple(dict.fromkeys(around.files)),
        order=tuple(settled.places),
    )


def _editors_words(folder: Path, home: str) -> dict[str, str]:
    """Those of VS Code's variables that make sense without an editor; Cursor has the same."""
    return {
        "workspaceFolder": str(folder),
        "workspaceFolderBasename": folder.name,
        "cwd": str(folder),
        "userHome": home,
        "pathSeparator": os.sep,
        "/": os.sep,
    }


def _unapproved(
    settled: Settled, around: Surroundings, approvals: Approvals | None
) -> tuple[Pending, ...]:
    programs = [spec for spec in settled.specs if spec.command]
    kept = approvals or FileApprovals(default_path(around.process_env))
    asked = [(spec, digest_of(spec, around.cwd)) for spec in programs]
    return tuple(
        Pending(spec, digest, settled.places[spec.name], settled.written[spec.name])
        for spec, digest in asked
        if not kept.is_approved(digest)
    )


def _passwords(spec: ServerSpec, answers: Answers) -> list[str]:
    shown = redact_args(spec.args)
    if not any(secret in arg for secret in answers.passwords for arg in shown):
        return []
    told = "a password is among the arguments, for every user of this machine to see"
    return [f"{spec.name}: {told}; hand it over in 'env'"]
