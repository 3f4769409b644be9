"""What is measured: each cell is one sort of call, made by some contestants who take turns."""

from dataclasses import dataclass

FLOORS = ("bare_socket", "bare_aiohttp", "bare_httpx2")
CORE = (*FLOORS, "client", "runtime", "principal", "sdk", "fastmcp")
SIZED = ("bare_aiohttp", "bare_httpx2", "client", "sdk", "fastmcp")
FRAMEWORKS = (
    *("our_langchain", "langchain_mcp_session", "langchain_mcp_adapters"),
    *("our_adk", "google_adk", "our_openai_agents", "openai_agents"),
    *("our_pydantic_ai", "pydantic_ai", "uipath_langchain", "mcp_use"),
)


@dataclass(frozen=True)
class Cell:
    answer: str
    era: str
    size: int
    in_flight: int
    who: tuple[str, ...]

    @property
    def place(self) -> tuple[str, str, int]:
        """What has to be opened for it."""
        return self.era, self.answer, self.size

    @property
    def about(self) -> dict[str, str | int]:
        return {
            "answer": self.answer,
            "era": self.era,
            "size": self.size,
            "in_flight": self.in_flight,
        }


CELLS = (
    Cell("json", "legacy", 100, 1, (*CORE, *FRAMEWORKS)),
    Cell("json", "legacy", 100, 32, (*CORE, *FRAMEWORKS)),
    Cell("json", "legacy", 100, 256, ("bare_aiohttp", "client", "runtime", "sdk")),
    Cell("json", "modern", 100, 1, CORE),
    Cell("json", "modern", 100, 32, CORE),
    Cell("sse", "legacy", 100, 1, (*CORE, *FRAMEWORKS)),
    Cell("sse", "legacy", 100, 32, CORE),
    Cell("sse", "modern", 100, 1, CORE),
    Cell("sse", "modern", 100, 32, CORE),
    Cell("json", "legacy", 10_000, 1, SIZED),
    Cell("json", "legacy", 10_000, 32, SIZED),
    Cell("sse", "legacy", 10_000, 1, SIZED),
    Cell("json", "legacy", 1_000_000, 1, SIZED),
    Cell("sse", "legacy", 1_000_000, 1, SIZED),
    Cell("stdio", "legacy", 100, 1, ("bare_pipe", "client", "sdk")),
    Cell("stdio", "legacy", 100, 32, ("client", "sdk")),
)
