// An MCP server that answers at once with what it has ready, so that what is measured is the client.
//
// The path says how: /<era>/<form>/<size>[/<tools>[/<anything>]], as in /legacy/json/100 or
// /modern/events/1000000. The tool `echo` answers with a text of that size, whatever it is asked. A legacy
// client gets a session, and 404 when it names one that is not known. An event stream is written as
// most servers do it: the event, and its end a moment later, in a packet of its own.
//
// One line on stdin is one command, answered by one line of JSON on stdout:
//   counts   what came since the last time: TCP connections, requests, requests by JSON-RPC method;
//            and the milliseconds of processor time that it took
//   forget   forget every session
// The first line on stdout is the port. The end of stdin is the end of the server.

import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { answered, resultsOf } from './answers.mjs';

const JSON_TYPE = { 'content-type': 'application/json' };
const EVENTS_TYPE = { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' };

const sessions = new Set();
const places = new Map(); // by path: how it answers, with what
let made = 0;
let seen = nothing();

function nothing() {
  return { connections: 0, requests: 0, methods: {}, since: process.cpuUsage() };
}

function placeOf(url) {
  let place = places.get(url);
  if (place === undefined) {
    const [, era, form, size, tools] = url.split('/');
    place = { era, form, results: resultsOf(era, Number(size), Number(tools ?? 1)) };
    places.set(url, place);
  }
  return place;
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
  return send(response, place, answered(message, place.results), opens ? open() : {});
}

function open() {
  const session = `session-${++made}`;
  sessions.add(session);
  return { 'mcp-session-id': session };
}

function send(response, place, [head, rest], headers) {
  response.cork();
  if (place.form === 'json') {
    const length = Buffer.byteLength(head) + rest.length;
    response.writeHead(200, { ...JSON_TYPE, ...headers, 'content-length': length });
    response.write(head);
    return response.end(rest);
  }
  response.writeHead(200, { ...EVENTS_TYPE, ...headers });
  response.write(Buffer.concat([Buffer.from(`event: message\r\ndata: ${head}`), rest, Buffer.from('\r\n\r\n')]));
  response.uncork();
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
    const { since, ...before } = seen;
    const { user, system } = process.cpuUsage(since);
    seen = nothing();
    return { ...before, busy_ms: (user + system) / 1000 };
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
