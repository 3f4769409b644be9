"""The tool service of Aether Frame, loaded as it is, and where each value came from."""

import tempfile
from pathlib import Path

from toolkeep import load

SETTINGS = """\
{"tool_service": {"enable_mcp": true, "retry_attempts": 2, "mcp_servers": [
  {"name": "research", "endpoint": "http://localhost:8000/mcp", "timeout": 45,
   "connection_pool_size": 8, "health_check_interval": 30}
]}}
"""

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "service.json").write_text(SETTINGS)
    configuration = load("service.json", cwd=folder, env={})

for spec in configuration.servers:
    print(spec.name, spec.url, spec.timeouts.call, spec.max_retries)
    for key, origin in configuration.origins[spec.name].items():
        print(f"  {key:16} {origin}")
