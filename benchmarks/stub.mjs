// An MCP server that answers at once with what it has ready, so that what is measured is the client.
//
// The path says how: /<era>/<answer>/<size>, as in /legacy/json/100 or /modern/sse/1000000. There is
// one tool, `echo`; it answers with a text of that size, whatever it is asked. A legacy client gets a
// session, and 404 when it names one that is not known. An event stream is written as most servers
// do it: the event, and its end a moment later, in a packet of its own.
//
// One line on stdin is one command, answered by one line of JSON on stdout:
//   counts   what came since the last time: TCP connections, requests, requests by JSON-RPC method
//   forget   forget every session
// The first line on stdout is the port. The end of stdin is the end of the server.

import { createServer } from 'node:http';
import { createInterface } from 'node:readline';

const MODERN = '2026-07-28';
const LEGACY = '2025-11-25';
const JSON_TYPE = { 'content-type': 'application/json' };
const EVENTS_TYPE = { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' };
const INFO = { name: 'stub', version: '1' };
const TOOL = {
  name: 'echo',
  description: 'Says something.',
  inputSchema: { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] },
};

const sessions = new Set();
let made = 0;
let seen = nothing();

function nothing() {
  return { connections: 0, requests: 0, methods: {} };
}

// -- what is answered ------------------------------------------------------------------------------

const ready = new Map(); // the results of a path, each as the text of its JSON

function resultsOf(era, size) {
  const modern = era === 'modern' ? { resultType: 'complete' } : {};
  const text = 'x'.repeat(size);
  const called = { ...modern, content: [{ type: 'text', text }], isError: false };
  const capabilities = { tools: {} };
  const opening = era === 'modern'
    ? { 'server/discover': { ...modern, supportedVersions: [MODERN], capabilities, serverInfo: INFO } }
    : { initialize: { protocolVersion: LEGACY, capabilities, serverInfo: INFO }, ping: {} };
  const listed = { ...modern, tools: [TOOL], ...(era === 'modern' && { ttlMs: 0, cacheScope: 'private' }) };
  const all = { ...opening, 'tools/list': listed, 'tools/call': called };
  return Object.fromEntries(Object.entries(all).map(([method, result]) => [method, JSON.stringify(result)]));
}

function placeOf(url) {
  let place = ready.get(url);
  if (place === undefined) {
    const [, era, answer, size] = url.split('/');
    place = { era, answer, results: resultsOf(era, Number(size)) };
    ready.set(url, place);
  }
  return place;
}

function answered(id, method, place) {
  const result = place.results[method];
  const rest = result === undefined
    ? `"error":{"code":-32601,"message":"Method not found"}}`
    : `"result":${result}}`;
  return `{"jsonrpc":"2.0","id":${JSON.stringify(id)},${rest}`;
}

// -- one request -----------------------------------------------------------------------------------

function take(request, response, body) {
  seen.requests += 1;
  const place = placeOf(request.url);
  const session = request.headers['mcp-session-id'];
  if (request.method === 'DELETE') {
    sessions.delete(session);
    return response.writeHead(200).end();
  }
  if (request.method !== 'POST') return response.writeHead(405).end();
  const message = JSON.parse(body);
  const { id, method } = message;
  seen.methods[method] = (seen.methods[method] ?? 0) + 1;
  const opens = method === 'initialize' && place.era === 'legacy';
  const strange = !opens && method !== 'server/discover' && !sessions.has(session);
  if (place.era === 'legacy' && strange) {
    return response.writeHead(404, JSON_TYPE).end(
      `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}`);
  }
  if (id === undefined) return response.writeHead(202).end();
  return send(response, place, answered(id, method, place), opens ? open() : {});
}

function open() {
  const session = `session-${++made}`;
  sessions.add(session);
  return { 'mcp-session-id': session };
}

function send(response, place, text, headers) {
  if (place.answer === 'json') {
    const length = Buffer.byteLength(text);
    return response.writeHead(200, { ...JSON_TYPE, ...headers, 'content-length': length }).end(text);
  }
  response.writeHead(200, { ...EVENTS_TYPE, ...headers });
  response.write(`event: message\r\ndata: ${text}\r\n\r\n`);
  return setImmediate(() => response.end());
}

const server = createServer({ keepAliveTimeout: 600_000 }, (request, response) => {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => take(request, response, parts.length === 1 ? parts[0] : Buffer.concat(parts)));
});
server.on('connection', (socket) => {
  seen.connections += 1;
  socket.setNoDelay(true);
});

// -- commands --------------------------------------------------------------------------------------

const COMMANDS = {
  counts() {
    const before = seen;
    seen = nothing();
    return before;
  },
  forget() {
    const forgotten = sessions.size;
    sessions.clear();
    return { forgotten };
  },
};

const lines = createInterface({ input: process.stdin });
lines.on('line', (line) => process.stdout.write(`${JSON.stringify(COMMANDS[line]())}\n`));
lines.on('close', () => process.exit(0));
server.listen(0, '127.0.0.1', 1024, () => process.stdout.write(`${server.address().port}\n`));
