"""Questions to the person at the terminal: yes or no, inputs of a configuration, and the forms
that a server asks for in the middle of a call (elicitation).

They are written to standard error, so that standard output holds the result alone. Nothing is sent
that the person has not typed or confirmed.
"""

from __future__ import annotations

import asyncio
import getpass
import signal
import sys
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from toolkeep.cli import arguments
from toolkeep.cli.output import Output, first_line

if TYPE_CHECKING:
    from toolkeep.config.dialects.draft import InputDefinition
    from toolkeep.events import InputNeeded

MAX_TRIES = 3
FORM_TYPES = {"string", "integer", "number", "boolean"}
"""JSON types of the fields that a form at the terminal can have."""
DECLINED = {"action": "decline"}


def can_prompt() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


async def read_line(question: str) -> str | None:
    """The line that the person types; None at the end of input (Ctrl-D).

    Reads in the event loop, not in a thread: Ctrl-C could not end a thread that waits for input.
    """
    sys.stderr.write(question)
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not typed.done():
            typed.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin, read)
    try:
        text = await typed
    finally:
        loop.remove_reader(sys.stdin)
    return text.rstrip("\r\n") if text else None


async def confirm(question: str) -> bool:
    """Whether the person types yes. Everything else means no."""
    answer = await read_line(f"{question} [y/N] ")
    return (answer or "").strip().lower() in ("y", "yes")


async def choose(question: str, answers: Collection[str]) -> str:
    """The answer that the person types, in full or by its first letter; else an empty text."""
    typed = ((await read_line(question)) or "").strip().lower()
    return next((one for one in answers if typed in (one, one[0])), "")


# -- inputs of a configuration -------------------------------------------------------------------


def input_prompt() -> Callable[[InputDefinition], str | None] | None:
    """A function that asks for the `${input:…}` of a configuration; None without a terminal."""
    return _ask_input if can_prompt() else None


def _ask_input(wanted: InputDefinition) -> str | None:
    """What the person types; None for an empty line, which means the default."""
    parts = [first_line(wanted.description or wanted.id)]
    parts += [f"({first_line(', '.join(wanted.options))})"] if wanted.options else []
    parts += [f"[{first_line(wanted.default)}]"] if wanted.default and not wanted.password else []
    question = f"{' '.join(parts)}: "
    for _ in range(MAX_TRIES):
        answer = _read_blocking(question, hidden=wanted.password)
        if not answer or not wanted.options or answer in wanted.options:
            return answer or None
        sys.stderr.write("Type one of the options.\n")
    return None


def _read_blocking(question: str, *, hidden: bool) -> str | None:
    try:
        with _interruptible():
            if hidden:
                return getpass.getpass(question, stream=sys.stderr)
            sys.stderr.write(question)
            sys.stderr.flush()
            return sys.stdin.readline().rstrip("\r\n")
    except EOFError:
        return None


@contextmanager
def _interruptible() -> Generator[None]:
    """Ctrl-C raises at once. asyncio's handler would cancel the task only after the read."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# -- forms of a server ---------------------------------------------------------------------------


async def answer_form(needed: InputNeeded, output: Output) -> Any:
    """The answer to an elicitation: a flat form is filled in line by line, others are declined.
    Ctrl-D at any field declines the whole form."""
    given: object = needed.params.get("requestedSchema")
    schema = cast("dict[str, Any]", given) if isinstance(given, dict) else None
    message = first_line(str(needed.params.get("message") or "")) or "(no message)"
    output.note(f"{needed.server} asks: {message}")
    if schema is None or not is_flat(schema):
        output.note("  declined: a terminal can only fill in a flat form")
        return DECLINED
    if not await confirm("Answer it?"):
        return DECLINED
    content: dict[str, Any] = {}
    for name, part in arguments.properties(schema).items():
        if not await _ask_field(content, name, part, schema, output):
            output.note("  declined")
            return DECLINED
    return {"action": "accept", "content": content}


def is_flat(schema: arguments.Schema) -> bool:
    fields = arguments.properties(schema).values()
    return all(arguments.json_types(part, schema) <= FORM_TYPES for part in fields)


async def _ask_field(
    content: dict[str, Any], name: str, part: Any, schema: arguments.Schema, output: Output
) -> bool:
    """Put one field into `content`. False declines the form."""
    default = arguments.resolve(part, schema).get("default")
    required = name in arguments.required(schema)
    expected = arguments.describe_expected(part, schema)
    end = f" [{default}]" if default is not None else "" if required else " (optional)"
    for _ in range(MAX_TRIES):
        text = await read_line(f"  {name}: {expected}{end}: ")
        if text is None:
            return False
        if not text and default is not None:
            content[name] = default
            return True
        if not text and not required:
            return True
        try:
            content[name] = arguments.convert(text, part, schema)
            return True
        except arguments.Mismatch as mismatch:
            output.note(f"  {mismatch}")
    return False
