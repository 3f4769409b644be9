// A server on the second TypeScript SDK: `node typescript_server.mjs stdio`, or `stateless` or
// `reject` (what becomes of clients of the old era) with the port in PORT. It offers by the same
// names what fastmcp_server.py offers, so that one set of tests is for both.

import http from "node:http";

import { toNodeHandler } from "@modelcontextprotocol/node";
import { completable, createMcpHandler, inputRequired, McpServer, ResourceTemplate } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { z } from "zod";

const NAMES = ["Ada", "Alan", "Grace"];
const grown = new Set();
const givenUp = [];
let handler;

const text = (words) => ({ content: [{ type: "text", text: words }] });

const QUESTIONS = {
  name: inputRequired.elicit({
    message: "Who are you?",
    requestedSchema: { type: "object", properties: { name: { type: "string" } } },
  }),
  words: inputRequired.createMessage({
    messages: [{ role: "user", content: { type: "text", text: "?" } }],
    maxTokens: 9,
  }),
  roots: inputRequired.listRoots(),
};

async function steps({ count }, { mcpReq }) {
  const progressToken = mcpReq._meta?.progressToken;
  for (let step = 1; step <= count && progressToken !== undefined; step++) {
    const params = { progressToken, progress: step, total: count, message: `step ${step}` };
    await mcpReq.notify({ method: "notifications/progress", params });
  }
  return text("done");
}

function wait({ tag }, { mcpReq }) {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(text("waited")), 60_000);
    mcpReq.signal.addEventListener("abort", () => {
      clearTimeout(timer);
      givenUp.push(tag);
      resolve(text("given up"));
    });
  });
}

function ask({ what }, { mcpReq }) {
  const answer = mcpReq.inputResponses?.[what];
  return answer ? text(JSON.stringify(answer)) : inputRequired({ inputRequests: { [what]: QUESTIONS[what] } });
}

function newServer() {
  const server = new McpServer({ name: "typescript", version: "1" }, { capabilities: { logging: {} } });
  const add = z.object({ a: z.number(), b: z.number() });
  const sum = z.object({ result: z.number() });
  server.registerTool("add", { inputSchema: add, outputSchema: sum }, ({ a, b }) => ({
    ...text(String(a + b)),
    structuredContent: { result: a + b },
  }));
  server.registerTool("steps", { inputSchema: z.object({ count: z.number() }) }, steps);
  server.registerTool("log", { inputSchema: z.object({ line: z.string() }) }, async ({ line }, { mcpReq }) => {
    await mcpReq.log("warning", line);
    return text("logged");
  });
  server.registerTool("wait", { inputSchema: z.object({ tag: z.string() }) }, wait);
  server.registerTool("ended", {}, () => text(givenUp.join(" ")));
  server.registerTool("ask", { inputSchema: z.object({ what: z.string() }) }, ask);
  server.registerTool("grow", { inputSchema: z.object({ name: z.string() }) }, ({ name }) => {
    grown.add(name);
    if (handler) handler.notify.toolsChanged();
    else server.registerTool(name, {}, () => text(name)); // tells its client by itself
    return text("grown");
  });
  for (const name of grown) server.registerTool(name, {}, () => text(name));
  const name = completable(z.string(), (value) => NAMES.filter((each) => each.startsWith(value)));
  server.registerPrompt("greet", { argsSchema: z.object({ name }) }, (given) => ({
    messages: [{ role: "user", content: { type: "text", text: `Hello, ${given.name}` } }],
  }));
  server.registerResource("note", "note://one", {}, (uri) => ({
    contents: [{ uri: uri.href, text: "the note" }],
  }));
  const template = new ResourceTemplate("note://of/{name}", { list: undefined });
  server.registerResource("notes", template, {}, (uri, given) => ({
    contents: [{ uri: uri.href, text: `the note of ${given.name}` }],
  }));
  return server;
}

if (process.argv[2] === "stdio") serveStdio(newServer);
else {
  handler = createMcpHandler(newServer, { legacy: process.argv[2] });
  http.createServer(toNodeHandler(handler)).listen(process.env.PORT);
}
