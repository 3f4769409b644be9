"""The client that the protocol's suite drives: `python client.py URL`.

All that it does is done by `toolkeep.Client`: it lists what the scenario's server offers, calls
every tool, gets every prompt and reads every resource. What a host adds stands below each in a
function of its own: sample arguments, a form filled in with its defaults, the checks of a skill, a
browser that logs in.
The suite says in the environment which scenario it is, which version it speaks, and, in some
scenarios, which calls it wants.
"""

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import aiohttp

from toolkeep import (
    AuthNeeded,
    CallRejected,
    Client,
    InvalidArguments,
    ToolkeepError,
)
from toolkeep.auth.configured import ServerAuth
from toolkeep.auth.login import begin_login, complete_login
from toolkeep.auth.oauth import OAuth
from toolkeep.auth.storage import LoginStorage
from toolkeep.config import ServerSpec
from toolkeep.events import InputNeeded
from toolkeep.state import MemoryStore

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
VERSION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
WANTED: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")

SKILLS = "io.modelcontextprotocol/skills"
LOGINS = LoginStorage(MemoryStore())
REDIRECT = "http://localhost:3000/callback"
CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The client ID metadata document that the suite knows."""
MAX_LOGINS = 8
"""Logins of one run: a server that never has enough is left before."""
SAMPLES = {"number": 1.5, "integer": 1, "string": "x", "boolean": True, "array": [], "object": {}}


MODE = "modern" if VERSION == "2026-07-28" else "legacy"


async def main(url: str) -> None:
    if not SCENARIO.startswith("auth/"):
        return await use(Client(url, mode=MODE, **HOST))
    server = ServerAuth(ServerSpec.parse({"url": url, "auth": auth_of_scenario()}), LOGINS)
    for _ in range(MAX_LOGINS):
        try:
            return await use(Client(url, mode=MODE, auth=server.configured, **HOST))
        except AuthNeeded:
            if server.login is None:
                raise
            await log_in(server.login)
    return await use(Client(url, mode=MODE, auth=server.configured, **HOST))


async def use(client: Client) -> None:
    async with client:
        offered = as_offered(client)
        if "tools" in offered:
            await use_tools(client)
        if "prompts" in offered:
            for prompt in await client.list_prompts():
                await client.get_prompt(prompt.name)
        if "resources" in offered and SKILLS not in offered.get("extensions", {}):
            for resource in await client.list_resources():
                await client.read_resource(resource.uri)
        if SKILLS in offered.get("extensions", {}):
            await use_skills(client)


def as_offered(client: Client) -> dict[str, Any]:
    """The server's capabilities."""
    assert client.handshake is not None
    return client.handshake.capabilities.model_dump(by_alias=True, exclude_none=True)


# --- tools ------------------------------------------------------------------------------------


async def use_tools(client: Client) -> None:
    tools = {tool.name: tool.input_schema for tool in await client.list_tools()}
    calls = WANTED.get("toolCalls")
    if calls is None:
        calls = [{"name": name, "arguments": sample(name, tools)} for name in tools]
    for call in calls:
        try:
            await client.call_tool(call["name"], without_nulls(call.get("arguments", {})))
        except (CallRejected, InvalidArguments) as error:  # some servers only list their tools
            print(error, file=sys.stderr)


def sample(name: str, tools: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Something for each argument that the tool must have."""
    if name == "json_schema_echo":
        return {"schema": tools["json_schema_2020_12_tool"]}
    schema = tools[name]
    properties = schema.get("properties", {})
    return {
        key: SAMPLES[properties[key].get("type", "string")] for key in schema.get("required", ())
    }


def without_nulls(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """An argument that the suite gives as null is one that a caller leaves out: the tool's schema
    does not allow null."""
    return {key: value for key, value in arguments.items() if value is not None}


async def fill_in(needed: InputNeeded) -> Any:
    """A form, sent off as it is: with its defaults."""
    fields = needed.params.get("requestedSchema", {}).get("properties", {})
    content = {name: field["default"] for name, field in fields.items() if "default" in field}
    return {"action": "accept", "content": content}


async def say_something(needed: InputNeeded) -> Any:
    words = {"type": "text", "text": "words"}
    return {"role": "assistant", "content": words, "model": "none", "stopReason": "endTurn"}


HOST: dict[str, Any] = {
    "elicitation": fill_in,
    "sampling": say_something,
    "roots": ["file:///project"],
}


# --- logins -----------------------------------------------------------------------------------


def auth_of_scenario() -> dict[str, Any]:
    """What a person would configure, from what the suite says of the client."""
    client = {key: WANTED[key] for key in ("client_id", "client_secret") if key in WANTED}
    if "client-credentials" in SCENARIO:
        client["type"] = "client_credentials"
    if "private_key_pem" in WANTED:
        client["signing_key"] = WANTED["private_key_pem"]
        client["signing_algorithm"] = WANTED.get("signing_algorithm", "ES256")
    return {"client_metadata_url": CLIENT_DOCUMENT, **client}


async def log_in(oauth: OAuth) -> None:
    """Do what the person's browser does: the suite's servers ask nobody, they redirect."""
    login = await begin_login(oauth, redirect_uri=REDIRECT)
    async with (
        aiohttp.ClientSession() as browser,
        browser.get(login.url, allow_redirects=False) as answer,
    ):
        callback = answer.headers["location"]
    await complete_login(oauth, callback)


# --- skills -----------------------------------------------------------------------------------


async def use_skills(client: Client) -> None:
    """List them; load the first, unless the scenario is about those that nobody loads."""
    listed = await client.request("skills/list", {}, repeatable=True)
    if SCENARIO == "sep-2640-client-no-prefetch":
        return
    skill = listed["skills"][0]
    for entry in skill["resources"]:
        text = await read_text(client, entry["uri"])
        verify(entry, text)
        if entry["uri"] == skill["uri"] and frontmatter_of(text) != skill["frontmatter"]:
            raise ValueError("the skill is not the one that was listed")


async def read_text(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    return str(getattr(content, "text", ""))


def verify(entry: Mapping[str, Any], text: str) -> None:
    found = text.encode()
    if len(found) != entry["size"]:
        raise ValueError(f"{entry['uri']}: {len(found)} bytes")
    if "sha256:" + hashlib.sha256(found).hexdigest() != entry["digest"]:
        raise ValueError(f"{entry['uri']}: another digest")


def frontmatter_of(text: str) -> dict[str, str]:
    """Its `key: value` lines, which is all of YAML that skills need here."""
    _, head, _ = text.split("---\n", 2)
    pairs = (line.split(":", 1) for line in head.splitlines())
    return {key.strip(): value.strip() for key, value in pairs}


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1]))
    except (ToolkeepError, ValueError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
