// Uses a gateway as its client: `node gateway_client.mjs URL 1 legacy`: the URL, the version of the
// TypeScript SDK and the era. Behind the gateway is fastmcp_server.py. Prints one line of JSON.

import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

const [url, sdk, era] = process.argv.slice(2);
const info = { name: "typescript", version: "1" };
const capabilities = { elicitation: {}, sampling: {}, roots: {} };
const answers = {
  "elicitation/create": async () => ({ action: "accept", content: { name: "Ada" } }),
  "sampling/createMessage": async () => ({
    role: "assistant",
    content: { type: "text", text: "words" },
    model: "none",
    stopReason: "endTurn",
  }),
  "roots/list": async () => ({ roots: [{ uri: "file:///one" }] }),
};
const changes = new EventTarget();
const told = async () => changes.dispatchEvent(new Event("tools"));

async function first() {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const types = await import("@modelcontextprotocol/sdk/types.js");
  const client = new Client(info, { capabilities });
  client.setRequestHandler(types.ElicitRequestSchema, answers["elicitation/create"]);
  client.setRequestHandler(types.CreateMessageRequestSchema, answers["sampling/createMessage"]);
  client.setRequestHandler(types.ListRootsRequestSchema, answers["roots/list"]);
  client.setNotificationHandler(types.ToolListChangedNotificationSchema, told);
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return [client, (params, options) => client.callTool(params, undefined, options)];
}

async function second() {
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const mode = era === "modern" ? { pin: "2026-07-28" } : "legacy";
  const client = new Client(info, { capabilities, versionNegotiation: { mode } });
  for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(method, answer);
  client.setNotificationHandler("notifications/tools/list_changed", told);
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  if (era === "modern") await client.listen({ toolsListChanged: true });
  return [client, (params, options) => client.callTool(params, options)];
}

const [client, call] = await (sdk === "1" ? first() : second());
const text = (result) => result.content[0].text;
const found = {};

found.tools = (await client.listTools()).tools.map((tool) => tool.name);
found.added = (await call({ name: "add", arguments: { a: 2, b: 3 } })).structuredContent;
found.steps = [];
const onprogress = ({ message }) => found.steps.push(message);
await call({ name: "steps", arguments: { count: 3 } }, { onprogress });
for (const what of ["name", "words", "roots"]) {
  found[what] = JSON.parse(text(await call({ name: "ask", arguments: { what } })));
}
const prompt = await client.getPrompt({ name: "greet", arguments: { name: "Ada" } });
found.prompt = prompt.messages[0].content.text;
found.note = (await client.readResource({ uri: "note://one" })).contents[0].text;
found.noteOf = (await client.readResource({ uri: "note://of/Ada" })).contents[0].text;
const ref = { type: "ref/prompt", name: "greet" };
const completed = await client.complete({ ref, argument: { name: "name", value: "A" } });
found.completed = completed.completion.values;

const tag = `${sdk}-${era}`;
const leaving = new AbortController();
const waiting = call({ name: "wait", arguments: { tag } }, { signal: leaving.signal });
waiting.catch(() => undefined);
await sleep(300); // nothing tells a client that its call runs
leaving.abort();
await waiting.catch((error) => (found.cancelled = error.name || String(error)));
for (let tries = 0; tries < 100 && !found.ended?.split(" ").includes(tag); tries += 1) {
  found.ended = text(await call({ name: "ended", arguments: {} }));
  await sleep(50);
}

// Other clients let it grow at the same time: their changes are told here, too.
const own = `grown_${sdk}_${era}`;
let changed = once(changes, "tools", { signal: AbortSignal.timeout(10_000) });
await call({ name: "grow", arguments: { name: own } });
while (!found.grown?.includes(own)) {
  await changed;
  changed = once(changes, "tools", { signal: AbortSignal.timeout(10_000) });
  changed.catch(() => undefined);
  found.grown = (await client.listTools()).tools.map((tool) => tool.name);
}
await client.close();
console.log(JSON.stringify(found));
process.exit(0);
