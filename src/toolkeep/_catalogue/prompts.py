"""Prompts of the user's own, from files, for servers that offer none, or beside theirs.

A Markdown file is one prompt, whatever headings it has. It is called like the file, unless front
matter says more (`frontmatter`). A JSON or TOML file has several:

    [prompts.review]
    description = "Looks for mistakes"
    arguments = ["language"]
    text = "Review this {{language}} code."

A folder is all such files in it, in the order of their names. `{{name}}` stands for an argument:
for those that are declared, or, where none is, for every name that stands so. What an argument
holds is put in as it is, and never looked at again. Read before anything is opened; a bad file is a
`ConfigError`. Reading blocks: from a loop, do it in a thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from toolkeep._catalogue import frontmatter
from toolkeep.config import reading
from toolkeep.config.draft import Document, Steps
from toolkeep.config.formats import parse_json, parse_toml
from toolkeep.errors import ConfigError, InvalidArguments

if TYPE_CHECKING:
    import mcp_types

__all__ = ["MOST", "LocalPrompt", "PromptArgument", "beside", "load_prompts"]

MOST = 1000
"""Prompts of one file or folder."""
SUFFIXES = (".md", ".json", ".toml")

_LONGEST_NAME = 128
_PLACE = re.compile(r"\{\{[ \t]*([A-Za-z_][\w.-]*)[ \t]*\}\}")
_KEYS = ("name", "title", "description", "arguments", "text")


@dataclass(frozen=True, slots=True)
class PromptArgument:
    name: str
    description: str | None = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class LocalPrompt:
    """One prompt of a file. Immutable; read by anyone."""

    name: str
    text: str = field(repr=False)
    arguments: tuple[PromptArgument, ...] = ()
    title: str | None = None
    description: str | None = None
    file: str = ""
    """Where it stands, for people."""
    server: str = ""
    """For whose prompts it stands in."""

    @property
    def definition(self) -> mcp_types.Prompt:
        import mcp_types  # 0.3 s, and only who lists prompts needs it

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
        """The prompt with these arguments in their places, as a server would answer it."""
        given = dict(arguments or {})
        self._check(given)
        import mcp_types

        content = mcp_types.TextContent(type="text", text=self._filled(given))
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

    def _filled(self, given: Mapping[str, str]) -> str:
        known = {one.name for one in self.arguments}

        def value(found: re.Match[str]) -> str:
            return given.get(found[1], "") if found[1] in known else found[0]

        return _PLACE.sub(value, self.text)


def load_prompts(path: str | Path, *, server: str = "") -> tuple[LocalPrompt, ...]:
    """All prompts of a file or a folder. `server`: whose, for errors."""
    whole = Path(os.path.expanduser(path))
    prompts: dict[str, LocalPrompt] = {}
    try:
        for prompt in _read(whole, server):
            first = prompts.setdefault(prompt.name, prompt)
            if first is not prompt:
                what = f"the prompt {prompt.name!r} is in {first.file} already"
                raise ConfigError(what, remedy="Rename one of them", file=prompt.file)
            if len(prompts) > MOST:
                remedy = "Name a file or a folder that has fewer"
                raise ConfigError(f"more than {MOST} prompts", remedy=remedy, file=prompt.file)
    except ConfigError as error:
        raise ConfigError(
            error.problem,
            remedy=error.remedy,
            server=server or None,
            key=error.key or "prompts_file",
            file=error.file,
        ) from None
    return tuple(prompts.values())


def beside(
    prompts: Sequence[LocalPrompt], taken: Collection[str]
) -> tuple[tuple[LocalPrompt, ...], tuple[str, ...]]:
    """Those that add to a server's own prompts, and the names of those that give way to them."""
    return (
        tuple(prompt for prompt in prompts if prompt.name not in taken),
        tuple(prompt.name for prompt in prompts if prompt.name in taken),
    )


def _read(path: Path, server: str) -> Iterator[LocalPrompt]:
    if not path.is_dir():
        yield from _read_file(path, server)
        return
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        what, remedy = f"it cannot be read: {error.strerror}", "Make it readable, or name another"
        raise ConfigError(what, remedy=remedy, file=str(path)) from None
    files = [path / name for name in names if name.endswith(SUFFIXES) and name[0] != "."]
    if not files:
        remedy = f"Put files into it that end in {', '.join(SUFFIXES)}"
        raise ConfigError("a folder without prompts", remedy=remedy, file=str(path))
    for file in files:
        yield from _read_file(file, server)


def _read_file(path: Path, server: str) -> Iterator[LocalPrompt]:
    file = reading.shown(path, Path.cwd())
    if path.suffix not in SUFFIXES:
        remedy = f"Name a folder, or a file that ends in {', '.join(SUFFIXES)}"
        raise ConfigError("not a file of prompts", remedy=remedy, file=file)
    text = reading.text_of(path, file)
    if path.suffix == ".md":
        said, body, lines = frontmatter.split(text, file)
        stem = path.name.removesuffix(".md").removesuffix(".prompt")
        document = Document({"name": stem, **said, "text": body}, file, lines)
        yield _prompt(document, (), stem, server)
        return
    value, lines = parse_json(text, file) if path.suffix == ".json" else parse_toml(text, file)
    document = Document(value, file, lines)
    for name in _named(document):
        yield _prompt(document, ("prompts", name), name, server)


def _named(document: Document) -> Iterator[str]:
    """The names of a JSON or TOML file's prompts."""
    value: object = document.value
    whole = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    for key in whole:
        if key != "prompts":
            raise _wrong(document, (key,), "unknown key", "Write all prompts under 'prompts'")
    prompts: object = whole.get("prompts")
    if not isinstance(prompts, dict) or not prompts:
        raise _wrong(document, ("prompts",), "there is no prompt", "Write [prompts.name]")
    yield from cast("dict[str, Any]", prompts)


def _prompt(document: Document, steps: Steps, name: str, server: str) -> LocalPrompt:
    given: Any = document.value
    for step in steps:
        given = given[step]
    said = {"text": given} if isinstance(given, str) else given
    if not isinstance(said, dict):
        raise _wrong(document, steps, "neither a text nor a mapping", "Write text = '…'")
    fields = cast("dict[str, Any]", said)
    for key in fields:
        if key not in _KEYS:
            raise _wrong(document, (*steps, key), "unknown key", f"Known: {', '.join(_KEYS)}")
    for key in _KEYS[:3]:
        if not isinstance(fields.get(key, ""), str):
            raise _wrong(document, (*steps, key), "not a text", "Give a text")
    text: object = fields.get("text")
    if not isinstance(text, str) or not text.strip():
        raise _wrong(document, (*steps, "text"), "it says nothing", "Write a text")
    return LocalPrompt(
        name=_checked_name(document, steps, fields.get("name", name)),
        text=text.strip("\r\n"),
        arguments=_arguments(document, (*steps, "arguments"), fields.get("arguments"), text),
        title=fields.get("title"),
        description=fields.get("description"),
        file=document.origin(steps).place,
        server=server,
    )


def _checked_name(document: Document, steps: Steps, name: str) -> str:
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or name != name.strip():
        remedy = f"Use 1 to {_LONGEST_NAME} characters of one line"
        raise _wrong(document, (*steps, "name"), f"{name[:80]!r} is not a prompt's name", remedy)
    return name


def _arguments(
    document: Document, steps: Steps, given: object, text: str
) -> tuple[PromptArgument, ...]:
    if given is None:
        return tuple(PromptArgument(name) for name in dict.fromkeys(_PLACE.findall(text)))
    listed = cast("list[Any]", given) if isinstance(given, list) else None
    if listed is None:
        raise _wrong(document, steps, "not a list", 'Write ["language", …]')
    found: dict[str, PromptArgument] = {}
    for place, one in enumerate(listed):
        argument = _argument(one)
        if argument is None or argument.name in found:
            remedy = 'Write "name", or {name = "…", description = "…", required = false}, once each'
            raise _wrong(
                document, (*steps, place), "not an argument, or one for the second time", remedy
            )
        found[argument.name] = argument
    return tuple(found.values())


def _argument(given: Any) -> PromptArgument | None:
    match {"name": given} if isinstance(given, str) else given:
        case {"name": str(name), **rest} if _PLACE.fullmatch(f"{{{{{name}}}}}"):
            pass
        case _:
            return None
    description, required = rest.pop("description", None), rest.pop("required", True)
    if rest or not isinstance(description, str | None) or not isinstance(required, bool):
        return None
    return PromptArgument(name, description, required)


def _wrong(document: Document, steps: Steps, problem: str, remedy: str) -> ConfigError:
    key = ".".join(map(str, steps)) or None
    return ConfigError(problem, remedy=remedy, key=key, file=document.origin(steps).place)
