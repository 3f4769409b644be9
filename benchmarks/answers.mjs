// What a stub answers, ready to be sent: each result is made once, as bytes of JSON.

export const MODERN = '2026-07-28';
const LEGACY = '2025-11-25';
const INFO = { name: 'stub', version: '1' };
const PAGE = 1000; // tools
const ECHO = {
  name: 'echo',
  description: 'Says something.',
  inputSchema: { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] },
};

// A catalogue of any size, that reads as catalogues do: no two tools alike, words in common.
const VERBS = ['create', 'read', 'update', 'delete', 'list', 'search', 'export', 'import', 'share', 'archive'];
const THINGS = ['invoice', 'customer', 'ticket', 'branch', 'deployment', 'alert', 'document', 'calendar', 'payment', 'report'];
const PLACES = ['billing', 'support', 'platform', 'office', 'sales', 'legal', 'warehouse', 'fleet', 'clinic', 'school'];

function toolOf(number) {
  if (number === 0) return ECHO;
  const [verb, thing, place] = [VERBS, THINGS, PLACES].map((words, place) => words[Math.floor(number / 10 ** place) % 10]);
  const properties = { id: { type: 'string', description: `Which ${thing}.` }, reason: { type: 'string' } };
  return {
    name: `${verb}_${thing}_${place}_${number}`,
    description: `${verb} one ${thing} of the ${place} system, number ${number}, and say what became of it.`,
    inputSchema: { type: 'object', properties, required: ['id'] },
  };
}

// The results of an era, by method; of `tools/list` by cursor, too.
export function resultsOf(era, size, tools = 1) {
  const modern = era === 'modern' ? { resultType: 'complete' } : {};
  const text = 'x'.repeat(size);
  const capabilities = { tools: {} };
  const opening = era === 'modern'
    ? { 'server/discover': { ...modern, supportedVersions: [MODERN], capabilities, serverInfo: INFO } }
    : { initialize: { protocolVersion: LEGACY, capabilities, serverInfo: INFO }, ping: {} };
  const all = {
    ...opening,
    ...pages(modern, tools),
    'tools/call': { ...modern, content: [{ type: 'text', text }], isError: false },
  };
  return new Map(Object.entries(all).map(([method, result]) => [method, Buffer.from(`${JSON.stringify(result)}}`)]));
}

function pages(modern, tools) {
  const all = Array.from({ length: tools }, (_, number) => toolOf(number));
  const found = {};
  for (let start = 0; start < tools; start += PAGE) {
    const rest = start + PAGE < tools ? { nextCursor: String(start + PAGE) } : {};
    const cached = modern.resultType ? { ttlMs: 600_000, cacheScope: 'public' } : {};
    const page = { ...modern, ...cached, ...rest, tools: all.slice(start, start + PAGE) };
    found[start ? `tools/list ${start}` : 'tools/list'] = page;
  }
  return found;
}

const REFUSED = Buffer.from(`{"code":-32601,"message":"Method not found"}}`);

// The beginning of an answer, and the rest of it.
export function answered({ id, method, params }, results) {
  const cursor = method === 'tools/list' ? params?.cursor : undefined;
  const result = results.get(cursor === undefined ? method : `${method} ${cursor}`);
  const kind = result === undefined ? 'error' : 'result';
  return [`{"jsonrpc":"2.0","id":${JSON.stringify(id)},"${kind}":`, result ?? REFUSED];
}
