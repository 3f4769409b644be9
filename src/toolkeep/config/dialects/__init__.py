"""The configuration formats that are read: `detect` chooses, `mcp_json` and `environment` read."""
