"""What a tool of ADK's is handed in a run."""

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.sessions import InMemorySessionService
from google.adk.tools.tool_context import ToolContext


async def tool_context() -> ToolContext:
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="bench", user_id="ada")
    invocation = InvocationContext(
        session_service=sessions,
        invocation_id="bench",
        agent=LlmAgent(name="bench"),
        session=session,
    )
    return ToolContext(invocation, function_call_id="call")
