"""Every log line is one line, whatever others put into it."""

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import toolkeep
from tests.engine.helpers_tasks import closing
from toolkeep import Client, Runtime
from toolkeep._logs import LOGGERS, escape
from toolkeep.testing import Behaviour, Rule, ScriptedServer

FORGED = "echo\n2026-01-01 00:00:00 CRITICAL root: all data was lost\x1b[2J\u202e"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a program that logs to a stream would write."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("LINE %(name)s %(message)s"))
    root = logging.getLogger("toolkeep")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield written
    root.removeHandler(handler)
    root.setLevel(level)


def untouched(written: io.StringIO) -> None:
    said = written.getvalue()
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert [line for line in said.splitlines() if not line.startswith(("LINE", "  "))] == []


@pytest.mark.requirement("H6")
async def test_a_tools_name_forges_no_log_line(lines: io.StringIO):
    bad = {"name": FORGED, "inputSchema": {"type": 12}}
    good = {"name": FORGED, "inputSchema": {"type": "object", "pattern": "("}}
    refused = Rule(tool=FORGED, do=Behaviour(error={"code": -32000, "message": FORGED}))
    async with ScriptedServer.local() as server:
        listed = Behaviour(result={"tools": [bad, good, good]})
        await server.script(Rule(method="tools/list", do=listed), refused)
        async with closing(Client({"name": "kit", "url": server.url})) as client:
            await client.list_tools()
            with pytest.raises(toolkeep.ToolkeepError):
                await client.call_tool(FORGED, {})
        async with Runtime.open({"kit": {"url": server.url}}, filter=_failing) as runtime:
            assert not (await runtime.catalogue_for()).tools
    untouched(lines)
    assert "CRITICAL" in lines.getvalue(), "it was logged, in its line"


def _failing(tool: Any, context: object) -> bool:
    raise RuntimeError(tool.name)


@pytest.mark.parametrize("name", LOGGERS)
def test_arguments_and_exceptions_are_escaped(name: str, lines: io.StringIO):
    logger = logging.getLogger(f"toolkeep.{name}")
    logger.warning("%s and %r and %d", FORGED, ValueError(FORGED), 3)
    logger.warning("%(tool)s", {"tool": FORGED})
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("it failed for %s", FORGED)
    untouched(lines)


@pytest.mark.parametrize("text", ["", "add", "größer", "日本 語", "a\\n"])
def test_what_is_printable_is_logged_as_it_is(text: str):
    assert escape(text) == text


def test_arguments_keep_their_types_where_nothing_is_escaped(caplog: pytest.LogCaptureFixture):
    error = ValueError("plain")
    logging.getLogger("toolkeep.transport").warning("%s %d", error, 3)
    assert caplog.records[0].args == (error, 3)
