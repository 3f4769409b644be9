"""Who takes part, in which environment."""

from dataclasses import dataclass
from typing import Literal

from benchmarks.workers import ROOT

Kind = Literal["floor", "ours", "theirs"]
OLDER = ".venv-mcp1"
"""What needs mcp<2: `make bench` makes it from constraints-mcp1.txt."""
PEERS = ".venv-peers"


@dataclass(frozen=True)
class Contestant:
    """`name` is the module's in `contestants`."""

    name: str
    title: str
    kind: Kind
    package: str
    """Whose version says what was measured."""
    environment: str = ""

    @property
    def is_here(self) -> bool:
        """Whether its environment is made."""
        return (ROOT / self.environment / "bin" / "python").exists() if self.environment else True


_ALL = (
    Contestant("bare_socket", "bare socket (asyncio)", "floor", ""),
    Contestant("bare_aiohttp", "bare POST (aiohttp)", "floor", "aiohttp"),
    Contestant("bare_httpx2", "bare POST (httpx2)", "floor", "httpx2"),
    Contestant("bare_pipe", "bare line (stdio)", "floor", ""),
    Contestant("client", "toolkeep.Client", "ours", "toolkeep"),
    Contestant("runtime", "toolkeep.Runtime", "ours", "toolkeep"),
    Contestant("principal", "toolkeep.Runtime, for a user", "ours", "toolkeep"),
    Contestant("our_langchain", "LangChain on toolkeep", "ours", "toolkeep"),
    Contestant("our_adk", "google-adk on toolkeep", "ours", "toolkeep"),
    Contestant("our_openai_agents", "openai-agents on toolkeep", "ours", "toolkeep"),
    Contestant("our_pydantic_ai", "pydantic-ai on toolkeep", "ours", "toolkeep"),
    Contestant("sdk", "SDK Client", "theirs", "mcp"),
    Contestant("fastmcp", "FastMCP Client", "theirs", "fastmcp"),
    Contestant("openai_agents", "openai-agents", "theirs", "openai-agents"),
    Contestant("google_adk", "google-adk", "theirs", "google-adk"),
    Contestant("pydantic_ai", "pydantic-ai", "theirs", "pydantic-ai-slim"),
    Contestant("uipath_langchain", "uipath-langchain", "theirs", "uipath-langchain", PEERS),
    Contestant("mcp_use", "mcp-use", "theirs", "mcp-use", OLDER),
    Contestant(
        "langchain_mcp_session",
        "langchain-mcp-adapters, session kept open",
        "theirs",
        "langchain-mcp-adapters",
        OLDER,
    ),
    Contestant(
        "langchain_mcp_adapters",
        "langchain-mcp-adapters, default",
        "theirs",
        "langchain-mcp-adapters",
        OLDER,
    ),
)
ROSTER = {each.name: each for each in _ALL}
