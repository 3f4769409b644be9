"""The server that the protocol's suite scores: `python server.py PORT`.

It has the tools, prompts and resources that the suite's server scenarios call by name, on the
official SDK's low-level server. `run.py` scores it directly and through a gateway.

Tools that ask the client do it as the client's protocol version allows: a modern request gets the
questions as its result, a legacy one is asked while it runs.
"""

import asyncio
import base64
import json
import logging
import sys
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

NAME = "conformance fixture"
RETRY_MS = 100
"""When a client comes back to a stream that the server closed."""
STEP = 0.05
"""Seconds between two notifications of a tool."""

Context = ServerRequestContext[Any, Any]
Params = types.CallToolRequestParams | types.GetPromptRequestParams
Blocks = list[types.ContentBlock]
ToolResult = types.CallToolResult | types.InputRequiredResult
Tool = Callable[[Context, types.CallToolRequestParams], Awaitable[ToolResult]]

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)
SILENCE = base64.b64encode(
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\0\0\0\0"
).decode()
IMAGE = types.ImageContent(type="image", data=PIXEL, mime_type="image/png")


def text(words: str) -> types.TextContent:
    return types.TextContent(type="text", text=words)


def embedded(uri: str, mime_type: str, words: str) -> types.EmbeddedResource:
    inner = types.TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    return types.EmbeddedResource(type="resource", resource=inner)


def told(words: str) -> types.CallToolResult:
    return types.CallToolResult(content=[text(words)])


# -- questions ----------------------------------------------------------------------------------

Questions = Mapping[str, types.InputRequest]


def form(message: str, properties: Mapping[str, Any], **more: Any) -> types.ElicitRequest:
    schema = {"type": "object", "properties": dict(properties), **more}
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=schema)
    )


def one_field(message: str, name: str, kind: str = "string") -> types.ElicitRequest:
    return form(message, {name: {"type": kind}}, required=[name])


def sampling(prompt: str, max_tokens: int = 100) -> types.CreateMessageRequest:
    said = types.SamplingMessage(role="user", content=text(prompt))
    params = types.CreateMessageRequestParams(messages=[said], max_tokens=max_tokens)
    return types.CreateMessageRequest(params=params)


ANSWERS: Mapping[type[Any], type[Any]] = {
    types.ElicitRequest: types.ElicitResult,
    types.CreateMessageRequest: types.CreateMessageResult,
    types.ListRootsRequest: types.ListRootsResult,
}


async def ask(
    ctx: Context, params: Params, questions: Questions, state: str | None = None
) -> Mapping[str, Any] | types.InputRequiredResult:
    """The answers, or what to answer the request with until they come."""
    given = params.input_responses or {}
    if all(isinstance(given.get(key), ANSWERS[type(one)]) for key, one in questions.items()):
        return given
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return types.InputRequiredResult(input_requests=dict(questions), request_state=state)
    about = ServerMessageMetadata(related_request_id=ctx.request_id)
    return {
        key: await ctx.session.send_request(one, ANSWERS[type(one)], metadata=about)
        for key, one in questions.items()
    }


def asking(questions: Questions, say: Callable[[Mapping[str, Any]], str], state: str | None = None):
    """A tool that asks, and then says something."""

    async def tool(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
        answers = await ask(ctx, params, questions, state)
        if isinstance(answers, types.InputRequiredResult):
            return answers
        if state is not None and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            assert params.request_state == state
        return told(say(answers))

    return tool


def filled_in(answer: types.ElicitResult) -> str:
    return f"action={answer.action}, content={json.dumps(answer.content)}"


# -- tools --------------------------------------------------------------------------------------


def saying(*blocks: Any) -> Tool:
    async def tool(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
        return types.CallToolResult(content=list(blocks))

    return tool


async def fail(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    words = "This tool intentionally returns an error for testing"
    return types.CallToolResult(content=[text(words)], is_error=True)


async def log(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", line, related_request_id=ctx.request_id)
        await asyncio.sleep(STEP)
    return told("three lines were logged")


async def progress(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100, f"{done} of 100")
        await asyncio.sleep(STEP)
    return told("done")


async def reconnect(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    """Closes the response stream, and ends after the client has come back."""
    await ctx.session.send_log_message("info", "closing", related_request_id=ctx.request_id)
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await asyncio.sleep(2 * RETRY_MS / 1000)
    return told("the client was away meanwhile")


async def sample(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    question = {"model": sampling(str((params.arguments or {}).get("prompt")))}
    return await asking(question, lambda to: f"LLM response: {to['model'].content.text}")(
        ctx, params
    )


async def elicit(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    fields = {
        "username": {"type": "string", "description": "The name of the user"},
        "email": {"type": "string", "description": "The user's address"},
    }
    message = str((params.arguments or {}).get("message"))
    question = {"user": form(message, fields, required=["username", "email"])}
    return await asking(question, lambda to: f"User response: {filled_in(to['user'])}")(ctx, params)


async def need_sampling(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    declared = ctx.session.client_capabilities
    if declared is None or declared.sampling is None:
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "this tool needs a client that can sample",
            {"requiredCapabilities": {"sampling": {}}},
        )
    return told("the client can sample")


async def ask_what_it_can(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    """Asks the client for what it has declared."""
    declared = ctx.session.client_capabilities or types.ClientCapabilities()
    possible: dict[str, types.InputRequest | None] = {
        "text": sampling("Say hello") if declared.sampling else None,
        "name": one_field("Your name?", "name") if declared.elicitation else None,
    }
    questions = {key: one for key, one in possible.items() if one is not None}
    return await asking(questions, lambda to: f"{len(to)} answers")(ctx, params)


async def ask_while_streaming(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    """Reports progress on its stream before it asks."""
    await ctx.session.report_progress(1, 2)
    question = {"user_name": one_field("Your name?", "name")}
    return await asking(question, lambda to: filled_in(to["user_name"]))(ctx, params)


async def two_rounds(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    first = {"step1": one_field("Step 1: What is your name?", "name")}
    second = {"step2": one_field("Step 2: What is your favorite color?", "color")}
    given, state = params.input_responses or {}, params.request_state
    if state == "asked for the color" and "step2" in given:
        return told(f"the color: {filled_in(given['step2'])}")  # pyright: ignore[reportArgumentType]
    answers = await ask(ctx, params, first, "asked for the name")
    if isinstance(answers, types.InputRequiredResult):
        return answers
    return await asking(second, lambda to: filled_in(to["step2"]), "asked for the color")(
        ctx, params
    )


bus = InMemorySubscriptionBus()
triggered: dict[str, int] = {"tool": 0, "prompt": 0}


async def change_tools(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    triggered["tool"] += 1
    await bus.publish(ToolsListChanged())
    await ctx.session.send_tool_list_changed()
    return told("the tools have changed")


async def change_prompts(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    triggered["prompt"] += 1
    await bus.publish(PromptsListChanged())
    await ctx.session.send_prompt_list_changed()
    return told("the prompts have changed")


DEFAULTS = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
PLAIN = ["option1", "option2", "option3"]
TITLED = [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]
ENUMS = {
    "untitledSingle": {"type": "string", "enum": PLAIN},
    "titledSingle": {"type": "string", "oneOf": TITLED},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option 1", "Option 2", "Option 3"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": PLAIN}},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}
KEYWORDS = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def strings(*names: str, **more: Any) -> dict[str, Any]:
    properties = {name: {"type": "string", **more} for name in names}
    return {"type": "object", "properties": properties, "required": list(names)}


NOTHING = strings()
CONFIRM = one_field("Please confirm", "ok", "boolean")
IRR = "test_input_required_result"
MIXED_JSON = '{"test": "data", "value": 123}'

TOOLS: dict[str, tuple[dict[str, Any], Tool]] = {
    "test_simple_text": (NOTHING, saying(text("This is a simple text response for testing."))),
    "test_image_content": (NOTHING, saying(IMAGE)),
    "test_audio_content": (
        NOTHING,
        saying(types.AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")),
    ),
    "test_embedded_resource": (
        NOTHING,
        saying(
            embedded(
                "test://embedded-resource", "text/plain", "This is an embedded resource content."
            )
        ),
    ),
    "test_multiple_content_types": (
        NOTHING,
        saying(
            text("Multiple content types test:"),
            IMAGE,
            embedded("test://mixed-content-resource", "application/json", MIXED_JSON),
        ),
    ),
    "test_error_handling": (NOTHING, fail),
    "test_tool_with_logging": (NOTHING, log),
    "test_logging_tool": (NOTHING, log),
    "test_tool_with_progress": (NOTHING, progress),
    "test_reconnection": (NOTHING, reconnect),
    "test_sampling": (strings("prompt"), sample),
    "test_elicitation": (strings("message"), elicit),
    "test_elicitation_sep1034_defaults": (
        NOTHING,
        asking(
            {"user": form("Who are you?", DEFAULTS)},
            lambda to: f"Elicitation completed: {filled_in(to['user'])}",
        ),
    ),
    "test_elicitation_sep1330_enums": (
        NOTHING,
        asking(
            {"user": form("Choose", ENUMS)},
            lambda to: f"Elicitation completed: {filled_in(to['user'])}",
        ),
    ),
    "test_missing_capability": (NOTHING, need_sampling),
    "test_streaming_elicitation": (NOTHING, ask_while_streaming),
    "test_trigger_tool_change": (NOTHING, change_tools),
    "test_trigger_prompt_change": (NOTHING, change_prompts),
    "test_region": (strings("region", **{"x-mcp-header": "Region"}), saying(text("a region"))),
    "json_schema_2020_12_tool": (KEYWORDS, saying(text("fits the schema"))),
    f"{IRR}_elicitation": (
        NOTHING,
        asking(
            {"user_name": one_field("What is your name?", "name")},
            lambda to: f"Hello, {(to['user_name'].content or {}).get('name')}!",
        ),
    ),
    f"{IRR}_sampling": (
        NOTHING,
        asking(
            {"capital_question": sampling("What is the capital of France?")},
            lambda to: f"The model says: {to['capital_question'].content.text}",
        ),
    ),
    f"{IRR}_list_roots": (
        NOTHING,
        asking(
            {"client_roots": types.ListRootsRequest()},
            lambda to: f"roots: {', '.join(str(one.uri) for one in to['client_roots'].roots)}",
        ),
    ),
    f"{IRR}_request_state": (NOTHING, asking({"confirm": CONFIRM}, lambda to: "state-ok", "asked")),
    f"{IRR}_tampered_state": (
        NOTHING,
        asking({"confirm": CONFIRM}, lambda to: "state-ok", "asked"),
    ),
    f"{IRR}_multiple_inputs": (
        NOTHING,
        asking(
            {
                "user_name": one_field("What is your name?", "name"),
                "greeting": sampling("Generate a greeting", 50),
                "client_roots": types.ListRootsRequest(),
            },
            lambda to: f"{len(to)} answers",
            "asked for three",
        ),
    ),
    f"{IRR}_multi_round": (NOTHING, two_rounds),
    f"{IRR}_capabilities": (NOTHING, ask_what_it_can),
}


async def list_tools(ctx: Context, params: Any) -> types.ListToolsResult:
    names = [*TOOLS, *(f"dynamic_{number}" for number in range(triggered["tool"]))]
    return types.ListToolsResult(
        tools=[
            types.Tool(
                name=name,
                description=f"For a scenario of the suite: {name}",
                input_schema=schema_of(name) or NOTHING,
            )
            for name in names
        ]
    )


def schema_of(name: str) -> dict[str, Any] | None:
    return TOOLS[name][0] if name in TOOLS else None


async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
    if params.name not in TOOLS:
        raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name}")
    return await TOOLS[params.name][1](ctx, params)


# -- prompts ------------------------------------------------------------------------------------

PROMPTS: Mapping[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    f"{IRR}_prompt": (),
}


async def list_prompts(ctx: Context, params: Any) -> types.ListPromptsResult:
    more = {f"dynamic_{number}": () for number in range(triggered["prompt"])}
    return types.ListPromptsResult(
        prompts=[
            types.Prompt(
                name=name,
                description=f"For a scenario of the suite: {name}",
                arguments=[types.PromptArgument(name=one, required=True) for one in arguments],
            )
            for name, arguments in {**PROMPTS, **more}.items()
        ]
    )


async def get_prompt(
    ctx: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    given = params.arguments or {}
    match params.name:
        case "test_simple_prompt":
            return said(text("This is a simple prompt for testing."))
        case "test_prompt_with_arguments":
            words = f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"
            return said(text(words))
        case "test_prompt_with_embedded_resource":
            resource = embedded(
                given["resourceUri"], "text/plain", "Embedded resource content for testing."
            )
            return said(resource, text("Please process the embedded resource above."))
        case "test_prompt_with_image":
            return said(IMAGE, text("Please analyze the image above."))
        case "test_input_required_result_prompt":
            question = {"user_context": one_field("What context should the prompt use?", "context")}
            answers = await ask(ctx, params, question)
            if isinstance(answers, types.InputRequiredResult):
                return answers
            return said(text(filled_in(answers["user_context"])))
        case _:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name}")


def said(*blocks: Any) -> types.GetPromptResult:
    return types.GetPromptResult(
        messages=[types.PromptMessage(role="user", content=block) for block in blocks]
    )


# -- resources ----------------------------------------------------------------------------------

STATIC_TEXT, STATIC_BINARY = "test://static-text", "test://static-binary"
WATCHED, TEMPLATE = "test://watched-resource", "test://template/{id}/data"


async def list_resources(ctx: Context, params: Any) -> types.ListResourcesResult:
    uris = {STATIC_TEXT: "text/plain", STATIC_BINARY: "image/png", WATCHED: "text/plain"}
    return types.ListResourcesResult(
        resources=[
            types.Resource(uri=uri, name=uri.partition("//")[2], description=uri, mime_type=kind)
            for uri, kind in uris.items()
        ]
    )


async def list_templates(ctx: Context, params: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(
        uri_template=TEMPLATE, name="data", description="data by id", mime_type="application/json"
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(
    ctx: Context, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    uri = str(params.uri)
    before, _, after = TEMPLATE.partition("{id}")
    one: types.TextResourceContents | types.BlobResourceContents
    if uri == STATIC_BINARY:
        one = types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PIXEL)
    elif uri in (STATIC_TEXT, WATCHED):
        words = "This is the content of the static text resource."
        one = types.TextResourceContents(uri=uri, mime_type="text/plain", text=words)
    elif uri.startswith(before) and uri.endswith(after):
        found = uri.removeprefix(before).removesuffix(after)
        data = {"id": found, "templateTest": True, "data": f"Data for ID: {found}"}
        one = types.TextResourceContents(
            uri=uri, mime_type="application/json", text=json.dumps(data)
        )
    else:
        raise MCPError(types.INVALID_PARAMS, "there is no such resource", {"uri": uri})
    return types.ReadResourceResult(contents=[one])


# -- the server ---------------------------------------------------------------------------------


async def complete(ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    known = ("paris", "park", "party")
    found = [one for one in known if one.startswith(params.argument.value)]
    return types.CompleteResult(
        completion=types.Completion(values=found, total=len(found), has_more=False)
    )


async def accept(ctx: Context, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


class Events(EventStore):
    """The events of all streams, for clients that come back."""

    def __init__(self) -> None:
        self._events: list[tuple[str, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        last = int(last_event_id)
        stream = self._events[last - 1][0]
        for number, (owner, message) in enumerate(self._events[last:], last + 1):
            if owner == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def make_server() -> Server[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)  # of the legacy era's log levels
        server = Server[Any](
            NAME,
            version="1",
            cache_hints={"tools/list": CacheHint(ttl_ms=0, scope="private")},
            get_tool_input_schema=schema_of,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_list_prompts=list_prompts,
            on_get_prompt=get_prompt,
            on_list_resources=list_resources,
            on_list_resource_templates=list_templates,
            on_read_resource=read_resource,
            on_subscribe_resource=accept,
            on_unsubscribe_resource=accept,
            on_subscriptions_listen=ListenHandler(bus),
            on_completion=complete,
            on_set_logging_level=accept,
        )
    # Seals what tools keep in the client's hands between two rounds.
    server.middleware.append(
        RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME)
    )
    return server


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    app = make_server().streamable_http_app(event_store=Events(), retry_interval=RETRY_MS)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
