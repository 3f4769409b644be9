"""Prompts from the user's own files: Markdown with front matter, JSON or TOML.

Reading blocks; run it in a thread. A bad file is a `ConfigError` with its line. Argument values
are inserted as they are, never expanded again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from toolkeep.config.formats import (
    Document,
    KeyPath,
    display_path,
    parse_json,
    parse_toml,
    read_text,
)
from toolkeep.errors import ConfigError, InvalidArguments

if TYPE_CHECKING:
    import mcp_types

MAX_PROMPTS = 1000
"""Prompts of one file or folder."""
PROMPT_SUFFIXES = (".md", ".json", ".toml")
FRONT_MATTER_KEYS = ("name", "title", "description", "arguments")

_MAX_NAME = 128
_PROMPT_KEYS = (*FRONT_MATTER_KEYS, "text")
_PLACEHOLDER = re.compile(r"\{\{[ \t]*([A-Za-z_][\w.-]*)[ \t]*\}\}")
_KEY_LINE = re.compile(r"([A-Za-z][\w-]*):(?:[ \t]+(.*))?")
_COMMENT = re.compile(r"(?:^|[ \t])#.*")
_BOOLEANS = {"true": True, "false": False}


def split_front_matter(text: str, file: str) -> tuple[dict[str, Any], str, Mapping[KeyPath, int]]:
    """The values of the front matter, the rest of the text, and the line of each key."""
    lines = text.replace("\r\n", "\n").split("\n")
    fence = lines[0].rstrip()
    if fence not in ("---", "+++"):
        return {}, text, {}
    end = next((at for at in range(1, len(lines)) if lines[at].rstrip() == fence), None)
    if end is None:
        remedy = f"Close it with a line {fence}, or begin the file with an empty line"
        raise ConfigError("the front matter has no end", remedy=remedy, file=f"{file}:1")
    body = "\n".join(lines[end + 1 :])
    if fence == "+++":
        values, places = parse_toml("\n".join(["", *lines[1:end]]), file)
    else:
        values, places = _parse_lines(lines[1:end], file)
    return {key: values[key] for key in FRONT_MATTER_KEYS if key in values}, body, places


@dataclass(slots=True)
class _FrontMatterEntry:
    """One key with the lines that belong to it."""

    key: str
    rest: str
    line: int
    more: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


def _parse_lines(lines: list[str], file: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    found: dict[str, _FrontMatterEntry] = {}
    last: _FrontMatterEntry | None = None
    for number, line in enumerate(lines, 2):
        key = _KEY_LINE.fullmatch(line.rstrip())
        if key is not None:
            last = _FrontMatterEntry(key[1], (key[2] or "").strip(), number)
            if found.setdefault(last.key, last) is not last:
                problem = f"given twice, first in line {found[last.key].line}"
                raise _front_matter_error(problem, file, number, "Keep one", last.key)
        elif last is not None and (not line.strip() or line[0] in " \t-"):
            last.more.append((number, line))
        elif line.strip() and not line.startswith("#"):
            raise _front_matter_error("not front matter", file, number, "Write key: value")
    values = {
        key: _parse_value(entry, file) for key, entry in found.items() if key in FRONT_MATTER_KEYS
    }
    return values, {(key,): entry.line for key, entry in found.items()}


def _parse_value(entry: _FrontMatterEntry, file: str) -> Any:
    if entry.key == "arguments":
        return _parse_list(entry, file)
    folded = entry.rest[:1] in ("|", ">")
    below = [line.strip() for _, line in entry.more]
    if folded:
        return ("\n" if entry.rest[0] == "|" else " ").join(below).strip()
    return _parse_scalar(" ".join([entry.rest, *below]).strip(), file, entry.line)


def _parse_list(entry: _FrontMatterEntry, file: str) -> list[Any]:
    inline = _COMMENT.sub("", entry.rest)
    if inline:
        if not (inline.startswith("[") and inline.endswith("]")):
            raise _front_matter_error("not a list", file, entry.line, "Write [one, two]", entry.key)
        parts = [part.strip() for part in inline[1:-1].split(",")]
        return [_parse_scalar(part, file, entry.line) for part in parts if part]
    items: list[Any] = []
    for number, line in entry.more:
        text = line.strip()
        if text and not text.startswith("#"):
            _add_item(items, text, file, number)
    return items


def _add_item(items: list[Any], text: str, file: str, number: int) -> None:
    begins = text.startswith("- ")
    text = text[2:].strip() if begins else text
    pair = _KEY_LINE.fullmatch(text)
    if pair is None and begins:
        items.append(_parse_scalar(text, file, number))
        return
    if begins:
        items.append({})
    if pair is None or not items or not isinstance(items[-1], dict):
        remedy = "Write '- name', or '- name: …' with 'description: …' below it"
        raise _front_matter_error("not an argument", file, number, remedy, "arguments")
    value = _parse_scalar((pair[2] or "").strip(), file, number)
    items[-1][pair[1]] = _BOOLEANS.get(value, value) if pair[1] == "required" else value


def _parse_scalar(text: str, file: str, number: int) -> str:
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            raise _front_matter_error("a quote is not closed", file, number, "Close it") from None
    if text.startswith("'") and text.endswith("'") and len(text) > 1:
        return text[1:-1].replace("''", "'")
    return _COMMENT.sub("", text).strip()


def _front_matter_error(
    problem: str, file: str, line: int, remedy: str, key: str | None = None
) -> ConfigError:
    return ConfigError(problem, remedy=remedy, file=f"{file}:{line}", key=key)


@dataclass(frozen=True, slots=True)
class PromptArgument:
    name: str
    description: str | None = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class LocalPrompt:
    """One prompt of a file. Immutable."""

    name: str
    text: str = field(repr=False)
    arguments: tuple[PromptArgument, ...] = ()
    title: str | None = None
    description: str | None = None
    file: str = ""
    """File and line, for messages."""
    server: str = ""
    """The server that it is configured for."""

    @property
    def definition(self) -> mcp_types.Prompt:
        import mcp_types  # takes 0.3 s, so imported on first use

        arguments = [
            mcp_types.PromptArgument(
                name=one.name, description=one.description, required=one.required
            )
            for one in self.arguments
        ]
        return mcp_types.Prompt(
            name=self.name,
            title=self.title,
            description=self.description,
            arguments=arguments or None,
        )

    def render(self, arguments: Mapping[str, str] | None = None) -> mcp_types.GetPromptResult:
        """The prompt with these arguments filled in, as a server would return it."""
        given = dict(arguments or {})
        self._check(given)
        import mcp_types

        content = mcp_types.TextContent(type="text", text=self._fill(given))
        message = mcp_types.PromptMessage(role="user", content=content)
        return mcp_types.GetPromptResult(description=self.description, messages=[message])

    def _check(self, given: Mapping[Any, Any]) -> None:
        known = {one.name for one in self.arguments}
        problems = [
            *(
                f"{one.name}: missing"
                for one in self.arguments
                if one.required and one.name not in given
            ),
            *(f"{str(name)[:80]}: no such argument" for name in given if name not in known),
            *(f"{name}: not a text" for name in known if not isinstance(given.get(name, ""), str)),
        ]
        if problems:
            raise InvalidArguments(
                f"prompt {self.name!r}: {'; '.join(problems)}",
                server=self.server,
                tool=self.name,
                problems=tuple(problems),
            )

    def _fill(self, given: Mapping[str, str]) -> str:
        known = {one.name for one in self.arguments}

        def value(found: re.Match[str]) -> str:
            return given.get(found[1], "") if found[1] in known else found[0]

        return _PLACEHOLDER.sub(value, self.text)


def load_prompts(path: str | Path, *, server: str = "") -> tuple[LocalPrompt, ...]:
    """All prompts of a file or a folder. `server` is named in errors."""
    whole = Path(os.path.expanduser(path))
    prompts: dict[str, LocalPrompt] = {}
    try:
        for prompt in _read_path(whole, server):
            first = prompts.setdefault(prompt.name, prompt)
            if first is not prompt:
                what = f"the prompt {prompt.name!r} is in {first.file} already"
                raise ConfigError(what, remedy="Rename one of them", file=prompt.file)
            if len(prompts) > MAX_PROMPTS:
                remedy = "Name a file or a folder that has fewer"
                raise ConfigError(
                    f"more than {MAX_PROMPTS} prompts", remedy=remedy, file=prompt.file
                )
    except ConfigError as error:
        raise ConfigError(
            error.problem,
            remedy=error.remedy,
            server=server or None,
            key=error.key or "prompts_file",
            file=error.file,
        ) from None
    return tuple(prompts.values())


def split_shadowed(
    prompts: Sequence[LocalPrompt], taken: Collection[str]
) -> tuple[tuple[LocalPrompt, ...], tuple[str, ...]]:
    """The prompts that a server does not have, and the names of those that it has."""
    return (
        tuple(prompt for prompt in prompts if prompt.name not in taken),
        tuple(prompt.name for prompt in prompts if prompt.name in taken),
    )


def _read_path(path: Path, server: str) -> Iterator[LocalPrompt]:
    if not path.is_dir():
        yield from _read_file(path, server)
        return
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        what, remedy = (
            f"the folder cannot be read: {error.strerror}",
            "Make it readable, or name another",
        )
        raise ConfigError(what, remedy=remedy, file=str(path)) from None
    files = [path / name for name in names if name.endswith(PROMPT_SUFFIXES) and name[0] != "."]
    if not files:
        remedy = f"Put files into it that end in {', '.join(PROMPT_SUFFIXES)}"
        raise ConfigError("the folder has no prompts", remedy=remedy, file=str(path))
    for file in files:
        yield from _read_file(file, server)


def _read_file(path: Path, server: str) -> Iterator[LocalPrompt]:
    file = display_path(path, Path.cwd())
    if path.suffix not in PROMPT_SUFFIXES:
        remedy = f"Name a folder, or a file that ends in {', '.join(PROMPT_SUFFIXES)}"
        raise ConfigError("not a prompts file", remedy=remedy, file=file)
    text = read_text(path, file)
    if path.suffix == ".md":
        values, body, lines = split_front_matter(text, file)
        stem = path.name.removesuffix(".md").removesuffix(".prompt")
        document = Document({"name": stem, **values, "text": body}, file, lines)
        yield _make_prompt(document, (), stem, server)
        return
    value, lines = parse_json(text, file) if path.suffix == ".json" else parse_toml(text, file)
    document = Document(value, file, lines)
    for name in _prompt_names(document):
        yield _make_prompt(document, ("prompts", name), name, server)


def _prompt_names(document: Document) -> Iterator[str]:
    """The names of the prompts in a JSON or TOML file."""
    value: object = document.value
    whole = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    for key in whole:
        if key != "prompts":
            raise _prompt_error(
                document, (key,), "unknown key", "Write all prompts under 'prompts'"
            )
    prompts: object = whole.get("prompts")
    if not isinstance(prompts, dict) or not prompts:
        raise _prompt_error(
            document, ("prompts",), "the file has no prompt", "Write [prompts.name]"
        )
    yield from cast("dict[str, Any]", prompts)


def _make_prompt(document: Document, steps: KeyPath, name: str, server: str) -> LocalPrompt:
    given: Any = document.value
    for step in steps:
        given = given[step]
    values = {"text": given} if isinstance(given, str) else given
    if not isinstance(values, dict):
        raise _prompt_error(document, steps, "neither a text nor a mapping", "Write text = '…'")
    fields = cast("dict[str, Any]", values)
    for key in fields:
        if key not in _PROMPT_KEYS:
            raise _prompt_error(
                document, (*steps, key), "unknown key", f"Known: {', '.join(_PROMPT_KEYS)}"
            )
    for key in _PROMPT_KEYS[:3]:
        if not isinstance(fields.get(key, ""), str):
            raise _prompt_error(document, (*steps, key), "not a text", "Give a text")
    text: object = fields.get("text")
    if not isinstance(text, str) or not text.strip():
        raise _prompt_error(document, (*steps, "text"), "the text is empty", "Write a text")
    return LocalPrompt(
        name=_check_name(document, steps, fields.get("name", name)),
        text=text.strip("\r\n"),
        arguments=_arguments(document, (*steps, "arguments"), fields.get("arguments"), text),
        title=fields.get("title"),
        description=fields.get("description"),
        file=document.origin(steps).location,
        server=server,
    )


def _check_name(document: Document, steps: KeyPath, name: str) -> str:
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable() or name != name.strip():
        remedy = f"Use 1 to {_MAX_NAME} characters of one line"
        raise _prompt_error(
            document, (*steps, "name"), f"{name[:80]!r} is not a valid prompt name", remedy
        )
    return name


def _arguments(
    document: Document, steps: KeyPath, given: object, text: str
) -> tuple[PromptArgument, ...]:
    if given is None:
        return tuple(PromptArgument(name) for name in dict.fromkeys(_PLACEHOLDER.findall(text)))
    listed = cast("list[Any]", given) if isinstance(given, list) else None
    if listed is None:
        raise _prompt_error(document, steps, "not a list", 'Write ["language", …]')
    found: dict[str, PromptArgument] = {}
    for place, one in enumerate(listed):
        argument = _argument(one)
        if argument is None or argument.name in found:
            remedy = 'Write "name", or {name = "…", description = "…", required = false}, once each'
            raise _prompt_error(
                document, (*steps, place), "not an argument, or a repeated one", remedy
            )
        found[argument.name] = argument
    return tuple(found.values())


def _argument(given: Any) -> PromptArgument | None:
    match {"name": given} if isinstance(given, str) else given:
        case {"name": str(name), **rest} if _PLACEHOLDER.fullmatch(f"{{{{{name}}}}}"):
            pass
        case _:
            return None
    description, required = rest.pop("description", None), rest.pop("required", True)
    if rest or not isinstance(description, str | None) or not isinstance(required, bool):
        return None
    return PromptArgument(name, description, required)


def _prompt_error(document: Document, steps: KeyPath, problem: str, remedy: str) -> ConfigError:
    key = ".".join(map(str, steps)) or None
    return ConfigError(problem, remedy=remedy, key=key, file=document.origin(steps).location)
