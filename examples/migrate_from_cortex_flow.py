"""The variables of Cortex-Flow, loaded as they are, and where each value came from."""

import tempfile
from pathlib import Path

from toolkeep import load

VARIABLES = """\
MCP_ENABLE=true
MCP_SERVER_RESEARCH_TYPE=remote
MCP_SERVER_RESEARCH_TRANSPORT=streamable_http
MCP_SERVER_RESEARCH_URL=http://localhost:8000/mcp
MCP_SERVER_RESEARCH_TIMEOUT=45
MCP_CLIENT_RETRY_ATTEMPTS=2
"""

with tempfile.TemporaryDirectory() as folder:
    Path(folder, ".env").write_text(VARIABLES)
    configuration = load(".env", cwd=folder, env={})

for spec in configuration.servers:
    print(spec.name, spec.url, spec.timeouts.call, spec.max_retries)
    for key, origin in configuration.origins[spec.name].items():
        print(f"  {key:16} {origin}")
