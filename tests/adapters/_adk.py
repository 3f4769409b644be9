"""What the tests of the ADK adapter share: a model that says what it is told, and one conversation.

Nothing here asserts anything; the agent, its runner and its sessions are ADK's own.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import PrivateAttr

from toolkeep import Runtime
from toolkeep.testing import ScriptedServer

BOUND = 15.0
"""Seconds after which a test gives up waiting."""

Calls = Sequence[tuple[str, Mapping[str, Any]]]
Turn = str | Calls
"""What the model says, or the tools that it calls at once."""


USAGE = types.GenerateContentResponseUsageMetadata(prompt_token_count=1, total_token_count=1)
"""ADK complains of a model that does not count."""


class ScriptedModel(BaseLlm):
    """Takes its turns in order, whoever asks; remembers what it was asked."""

    model: str = "scripted"
    _turns: list[Turn] = PrivateAttr(default_factory=list)
    _requests: list[LlmRequest] = PrivateAttr(default_factory=list)

    @classmethod
    def saying(cls, *turns: Turn) -> "ScriptedModel":
        model = cls()
        model._turns = list(turns)
        return model

    def then(self, *turns: Turn) -> None:
        self._turns += turns

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self._requests.append(llm_request)
        said = types.Content(role="model", parts=parts(self._turns.pop(0)))
        yield LlmResponse(content=said, usage_metadata=USAGE)

    @property
    def offered(self) -> list[dict[str, types.FunctionDeclaration]]:
        """The declared tools of every request, by name."""
        return [declared(request) for request in self._requests]

    @property
    def answers(self) -> list[dict[str, Any]]:
        """What tools have answered, as the last request shows it to the model."""
        contents = self._requests[-1].contents
        found = [part.function_response for one in contents for part in one.parts or []]
        return [response.response or {} for response in found if response is not None]

    @property
    def told(self) -> list[str]:
        """The instructions of every request."""
        return [str(request.config.system_instruction or "") for request in self._requests]


def parts(turn: Turn) -> list[types.Part]:
    if isinstance(turn, str):
        return [types.Part(text=turn)]
    return [types.Part.from_function_call(name=name, args=dict(args)) for name, args in turn]


def declared(request: LlmRequest) -> dict[str, types.FunctionDeclaration]:
    found = [
        declaration
        for tool in request.config.tools or []
        if isinstance(tool, types.Tool)
        for declaration in tool.function_declarations or []
    ]
    return {str(declaration.name): declaration for declaration in found}


class Conversation:
    """One agent in its runner; every user has one session."""

    def __init__(self, agent: LlmAgent) -> None:
        self.runner = InMemoryRunner(agent=agent, app_name="tests")
        self._sessions: dict[str, str] = {}

    async def session(self, user: str, state: Mapping[str, Any] | None = None) -> str:
        if user not in self._sessions:
            made = await self.runner.session_service.create_session(
                app_name="tests", user_id=user, state=dict(state or {})
            )
            self._sessions[user] = made.id
        return self._sessions[user]

    async def say(
        self, message: types.Content | str = "Go on.", user: str = "ada", **options: Any
    ) -> list[Event]:
        """All events of one run."""
        async with asyncio.timeout(BOUND):
            return [event async for event in self.events(message, user, **options)]

    async def events(
        self, message: types.Content | str = "Go on.", user: str = "ada", **options: Any
    ) -> AsyncGenerator[Event, None]:
        if isinstance(message, str):
            message = types.Content(role="user", parts=[types.Part(text=message)])
        session = await self.session(user)
        running = self.runner.run_async(
            user_id=user, session_id=session, new_message=message, **options
        )
        async with aclosing(running):
            async for event in running:
                yield event

    async def kept(self, user: str = "ada") -> list[Event]:
        """What the session holds."""
        found = await self.runner.session_service.get_session(
            app_name="tests", user_id=user, session_id=await self.session(user)
        )
        assert found is not None
        return found.events


@asynccontextmanager
async def conversation(
    who: LlmAgent | BaseLlm, tools: Sequence[Any] = ()
) -> AsyncIterator[Conversation]:
    """With an agent, or with one that has this model and these tools."""
    agent = LlmAgent(name="helper", model=who, tools=[*tools]) if isinstance(who, BaseLlm) else who
    talk = Conversation(agent)
    try:
        yield talk
    finally:
        await talk.runner.close()


@asynccontextmanager
async def house(
    server: Mapping[str, Any] | None = None, spec: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[ScriptedServer, Runtime]]:
    """A server named `kit` in this event loop, and an open runtime."""
    settings: dict[str, Any] = {**(server or {})}
    async with (
        ScriptedServer.local(**settings) as kit,
        Runtime({"mcpServers": {"kit": {**kit.spec, **(spec or {})}}}, **options) as runtime,
    ):
        yield kit, runtime


def responses(events: list[Event]) -> list[types.FunctionResponse]:
    """What the tools answered, in the order of the events."""
    return [response for event in events for response in event.get_function_responses()]


def progress(events: list[Event]) -> list[dict[str, Any]]:
    """What ADK's stream showed of the calls."""
    metadata = [event.custom_metadata or {} for event in events]
    return [found["toolkeep"] for found in metadata if "toolkeep" in found]
