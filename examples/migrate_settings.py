"""Settings of Cortex-Flow and of Aether, loaded as they are."""

import tempfile
from pathlib import Path

from toolkeep import Configuration, load

CORTEX_FLOW = """\
MCP_ENABLE=true
MCP_SERVER_RESEARCH_TYPE=remote
MCP_SERVER_RESEARCH_TRANSPORT=streamable_http
MCP_SERVER_RESEARCH_URL=http://localhost:8000/mcp
MCP_SERVER_RESEARCH_TIMEOUT=45
MCP_CLIENT_RETRY_ATTEMPTS=2
"""
AETHER = """\
{"tool_service": {"enable_mcp": true, "retry_attempts": 2, "mcp_servers": [
  {"name": "research", "endpoint": "http://localhost:8000/mcp", "timeout": 45,
   "connection_pool_size": 8, "health_check_interval": 30}
]}}
"""


def tell(configuration: Configuration) -> None:
    for spec in configuration.servers:
        print(spec.name, spec.url, spec.timeouts.call, spec.max_replays)
        for key, origin in configuration.origins[spec.name].items():
            print(f"  {key:16} {origin}")


with tempfile.TemporaryDirectory() as folder:
    for name, text in ((".env", CORTEX_FLOW), ("service.json", AETHER)):
        Path(folder, name).write_text(text)
        tell(load(name, cwd=folder, env={}))
