// A server with sessions on the TypeScript SDK: `node sessions_server.mjs`, the port in PORT.
// GET /seen tells, outside of the protocol, what has arrived.

import { randomUUID } from "node:crypto";
import http from "node:http";

import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { z } from "zod";

const transports = new Map();
const seen = { initialize: 0, delete: 0, requests: [], versions: [], cancelled: 0 };

function newServer() {
  const server = new McpServer({ name: "sessions", version: "1" });
  server.registerTool(
    "slow",
    { inputSchema: { tag: z.string(), seconds: z.number() } },
    async ({ tag, seconds }, { signal }) => {
      signal.addEventListener("abort", () => (seen.cancelled += 1));
      await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
      return { content: [{ type: "text", text: tag }] };
    },
  );
  return server;
}

async function newTransport() {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => void transports.set(id, transport),
    onsessionclosed: (id) => void transports.delete(id),
  });
  await newServer().connect(transport);
  return transport;
}

function note(request, message) {
  if (request.method === "DELETE") seen.delete += 1;
  if (message?.method === "initialize") seen.initialize += 1;
  else if (message?.id !== undefined) {
    seen.requests.push([request.headers["mcp-session-id"] ?? null, message.id]);
    seen.versions.push(request.headers["mcp-protocol-version"] ?? null);
  }
}

async function bodyOf(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const text = Buffer.concat(chunks).toString();
  return text ? JSON.parse(text) : undefined;
}

const notFound = { jsonrpc: "2.0", error: { code: -32001, message: "Session not found" }, id: null };

http
  .createServer(async (request, response) => {
    if (request.url === "/seen") return response.end(JSON.stringify(seen));
    const message = await bodyOf(request);
    note(request, message);
    const id = request.headers["mcp-session-id"];
    const transport = id === undefined ? await newTransport() : transports.get(id);
    if (transport === undefined) {
      return response.writeHead(404, { "content-type": "application/json" }).end(JSON.stringify(notFound));
    }
    await transport.handleRequest(request, response, message);
  })
  .listen(process.env.PORT);
