"""`call`: call one tool, show its progress, and print or save its result."""

from __future__ import annotations

import base64
import binascii
import errno
import json
import mimetypes
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

import typer

from toolkeep.cli import arguments
from toolkeep.cli.completion import complete_argument, complete_tool, save_names
from toolkeep.cli.errors import FAILED, OK, UsageError
from toolkeep.cli.output import Output, escape, first_line
from toolkeep.cli.prompt import answer_form, can_prompt
from toolkeep.cli.source import (
    PrincipalOption,
    ServerSource,
    TimeoutOption,
    context_for,
    note_unavailable,
)
from toolkeep.events import CallEvent, InputNeeded, Log, Progress, Retrying

if TYPE_CHECKING:
    from rich.progress import Progress as ProgressBar

    from toolkeep import CallContext, CallResult, Runtime, Tool

LOG_LEVEL = {"io.modelcontextprotocol/logLevel": "info"}
"""Modern servers send log lines only for requests that ask for them."""
MAX_FILES = 1000
"""Files of one tool and type in the directory of `--output`."""
FILE_SUFFIXES = {"audio/wav": ".wav", "audio/webm": ".weba", "image/webp": ".webp"}
"""Those that `mimetypes` of Python 3.11 lacks."""
BAR_WIDTH = 24
BESIDE_BAR = 20
"""Columns of the percentage, the elapsed time and the gaps beside a progress bar."""


async def call(
    output: Output,
    source: ServerSource,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The tool: server.tool, or the tool alone if only one server has it.",
            autocompletion=complete_tool,
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JSON|KEY=VALUE...|@FILE|-",
            help="The arguments: a JSON object; or key=value, converted as the schema asks, with "
            "a repeated key for a list and a.b=1 for a nested value; or JSON from @file or from "
            "- (standard input).",
            autocompletion=complete_argument,
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show progress and log lines.")
    ] = False,
    directory: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Save images, audio and resources of the result in this directory.",
        ),
    ] = None,
    timeout: TimeoutOption = None,
    principal: PrincipalOption = None,
) -> int:
    """Call a tool. The arguments are checked against its schema before anything is sent.

    \b
    toolkeep call shop.pay order=7 --watch
    toolkeep call shop.pay '{"order": 7, "to": {"city": "Ghent"}}'
    toolkeep call shop.pay order=7 to.city=Ghent tags=new tags=gift
    toolkeep call shop.pay @order.json
    jq .order basket.json | toolkeep call shop.pay - --json

    Exit code 1: the call failed, or the tool reported an error. 3: the call may have run; find out
    before you repeat it. 130: interrupted with Ctrl-C, and the call was cancelled.

    If the server asks for input during the call, a flat form is filled in at the terminal, and
    other requests are declined. Requests for a model (sampling) are not answered.
    """
    typed, context = arguments.parse(words or ()), context_for(principal)
    progress = CallProgress(output, bar=watch)
    async with source.open(output, tool=name, **progress.handlers()) as runtime:
        tool = await _find_tool(runtime, source, output, name, context)
        given = arguments.build(typed, tool)
        # Before the call: a directory that cannot be made would be found out too late.
        folder = make_directory(directory) if directory else None
        options: dict[str, Any] = {"context": context, "timeout": timeout}
        if watch:
            result = await _watch_call(runtime, progress, tool, given, options)
        else:
            result = await runtime.call(tool, given, **options)
    saved, all_saved = save_blocks(output, result, folder) if folder else ({}, True)
    print_result(output, result, saved)
    return OK if all_saved and not result.is_error else FAILED


async def _find_tool(
    runtime: Runtime, source: ServerSource, output: Output, name: str, context: CallContext | None
) -> Tool:
    """Raises the error of the tool's server, if that one is not there."""
    server = name.partition(".")[0]
    for status in runtime.servers:
        is_needed = len(runtime.servers) == 1 or status.name == server
        if status.error is not None and is_needed:
            raise status.error
    note_unavailable(runtime, output)
    catalogue = await runtime.catalogue_for(context)
    save_names(source, catalogue, complete=False)
    return catalogue.tool(name)


async def _watch_call(
    runtime: Runtime,
    progress: CallProgress,
    tool: Tool,
    given: dict[str, Any],
    options: dict[str, Any],
) -> CallResult:
    async with runtime.stream(tool, given, meta=LOG_LEVEL, **options) as running:
        with progress:
            async for event in running:
                progress.show(event)
        return await running.result()


# -- progress ------------------------------------------------------------------------------------


class CallProgress:
    """The progress and the log lines of calls, on standard error.

    On a terminal progress is a bar, which moves only when the server reports progress. Elsewhere
    each event is a line. Also answers what a server asks for during a call.
    """

    def __init__(self, output: Output, *, bar: bool) -> None:
        self._output = output
        self._with_bar = bar and output.can_redraw
        self._bar: ProgressBar | None = None
        self._moved = False

    def handlers(self) -> dict[str, Any]:
        """Options of `Runtime`: questions are answered only if there is a terminal to ask at."""
        return {"elicitation": self.answer} if can_prompt() else {}

    def __enter__(self) -> Self:
        if self._with_bar:
            self._bar = _make_bar(self._output)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.live.transient = not self._moved
            self._bar.stop()
            self._bar = None

    def show(self, event: CallEvent) -> None:
        match event:
            case Progress():
                self._show_progress(event)
            case Log(level=level, data=data):
                self._note(f"{level}: {data if isinstance(data, str) else _compact(data)}")
            case Retrying():
                when = "at once" if event.delay < 0.05 else f"in {event.delay:.1f} s"
                self._note(f"attempt {event.attempt} failed ({event.failure}); retry {when}")
            case _:
                pass

    async def answer(self, needed: InputNeeded) -> Any:
        """What the person at the terminal answers; None declines."""
        if self._bar is None:
            return await answer_form(needed, self._output)
        self._bar.stop()
        try:
            return await answer_form(needed, self._output)
        finally:
            self._bar.start()

    def _show_progress(self, event: Progress) -> None:
        message, share = first_line(event.message or ""), _share(event)
        if self._bar is None:
            self._note(f"{share} {message}".rstrip())
            return
        self._moved = True
        self._bar.update(
            self._bar.task_ids[0],
            total=event.total,
            completed=event.progress,
            description=message or event.tool,
            share=share,
        )

    def _note(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(escape(text))
        else:
            self._output.note(text)


def _share(event: Progress) -> str:
    return f"{event.progress:g}" if event.fraction is None else f"{event.fraction:4.0%}"


def _make_bar(output: Output) -> ProgressBar:
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as ProgressBar
    from rich.table import Column

    # Narrower than the terminal: the ^C that it echoes for Ctrl-C must not begin a new line.
    width = max(output.error_console.width - BAR_WIDTH - BESIDE_BAR, 10)
    message = Column(no_wrap=True, overflow="ellipsis", width=width)
    bar = ProgressBar(
        TextColumn("{task.description}", markup=False, table_column=message),
        BarColumn(bar_width=BAR_WIDTH),
        TextColumn("{task.fields[share]}", markup=False),
        TimeElapsedColumn(),
        console=output.error_console,
    )
    bar.add_task("waiting for progress", total=None, share="")
    return bar


def _compact(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)


# -- the result ----------------------------------------------------------------------------------

Block = Mapping[str, Any]
Saved = Mapping[int, Path]
"""The file of each saved block, by its index in the content."""


def print_result(output: Output, result: CallResult, saved: Saved) -> None:
    """A tool's own error goes to standard error; with `--json` it is part of the document."""
    if output.json:
        output.print_json(_result_as_dict(result, saved))
        return
    lines = [block_text(block, saved.get(at)) for at, block in enumerate(_blocks(result))]
    if not lines and result.data is not None:
        lines = [json.dumps(result.data, indent=2, ensure_ascii=False)]
    text = "\n".join(lines)
    if result.is_error:
        name = f"{result.server}.{result.tool}"
        output.note(f"error: {name} reported an error: {text or '(no text)'}")
    elif text:
        output.print(text)


def _result_as_dict(result: CallResult, saved: Saved) -> dict[str, Any]:
    return {
        "server": result.server,
        "tool": result.tool,
        "is_error": result.is_error,
        "content": _blocks(result),
        "structured_content": result.data,
        "meta": dict(result.meta),
        "attempts": result.attempts,
        "duration": result.duration,
        "saved": [str(path) for path in saved.values()],
    }


def _blocks(result: CallResult) -> list[Block]:
    found = result.raw.get("content")
    blocks = cast("list[object]", found) if isinstance(found, list) else []
    return [cast("Block", one) for one in blocks if isinstance(one, Mapping)]


def block_text(block: Block, path: Path | None = None) -> str:
    """A block of content as text; `path` is where its bytes were saved."""
    if block.get("type") == "text":
        return str(block.get("text", ""))
    where = f" -> {path}" if path else ""
    return f"[{_describe(block)}]{where}"


def _describe(block: Block) -> str:
    inner, data = _content_of(block), _bytes_of(block)
    size = f"{len(data)} bytes" if data is not None else ""
    parts = (block.get("type"), inner.get("mimeType"), inner.get("uri"), inner.get("name"), size)
    return first_line(" ".join(str(part) for part in parts if part))


def make_directory(path: str) -> Path:
    directory = Path(path).expanduser()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the directory --output {path}: {error.strerror}") from None
    return directory


def save_blocks(
    output: Output, result: CallResult, directory: Path
) -> tuple[dict[int, Path], bool]:
    """Save each image, sound and resource as a file. Also returns whether all could be saved."""
    saved: dict[int, Path] = {}
    all_saved = True
    for at, block in enumerate(_blocks(result)):
        data = _bytes_of(block)
        if data is None:
            continue
        try:
            mime_type = _content_of(block).get("mimeType")
            saved[at] = _write_new_file(directory, result.tool, mime_type, data)
        except OSError as error:
            all_saved = False
            output.note(f"error: cannot save {_describe(block)} in {directory}: {error.strerror}")
    return saved, all_saved


def _write_new_file(directory: Path, tool: str, mime_type: object, data: bytes) -> Path:
    """Never overwrites, and never uses a name from the server, which could lead anywhere."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", tool)[:60] or "result"
    kind = str(mime_type or "")
    suffix = FILE_SUFFIXES.get(kind) or mimetypes.guess_extension(kind) or ".bin"
    for number in range(1, MAX_FILES):
        path = directory / f"{stem}-{number}{suffix}"
        try:
            with path.open("xb") as file:
                file.write(data)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(errno.EEXIST, f"there are {MAX_FILES - 1} files of {tool} already")


def _content_of(block: Block) -> Block:
    """The block itself, or the resource that it embeds."""
    if block.get("type") != "resource":
        return block
    found = block.get("resource")
    return cast("Block", found) if isinstance(found, Mapping) else {}


def _bytes_of(block: Block) -> bytes | None:
    """The data of a block; None for text and links."""
    match block.get("type"):
        case "image" | "audio":
            return decode_base64(block.get("data"))
        case "resource":
            inner = _content_of(block)
            text = inner.get("text")
            return text.encode() if isinstance(text, str) else decode_base64(inner.get("blob"))
        case _:
            return None


def decode_base64(data: object) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except (binascii.Error, ValueError):
        return None
