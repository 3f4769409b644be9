/*
 * A call, written as Python, curl and command line.
 *
 * Owns quoting. Names and arguments come from servers and models, so every character that is not visible is
 * written as an escape: what is pasted is what was seen.
 */

const INVISIBLE = /[^\x20-\x7e\u00a1-\u00ac\u00ae-\u0377\u0400-\u05ff\u3040-\ud7ff\u{1f300}-\u{1faff}]/gu;
const hex = (code, width) => code.toString(16).padStart(width, "0");

/** JSON whose unusual characters are escapes. */
export function safeJson(value, indent) {
  return JSON.stringify(value, null, indent).replace(INVISIBLE, (found) =>
    found === "\n" ? found : [...Array(found.length).keys()].map((at) => `\\u${hex(found.charCodeAt(at), 4)}`).join(""),
  );
}

/** A word for POSIX shells; `$'…'` where it has characters that need an escape. */
function shell(word) {
  if (/^[\w@%+=:,./-]+$/.test(word)) return word;
  if (!word.match(INVISIBLE)) return `'${word.replaceAll("'", `'\\''`)}'`;
  const escaped = word
    .replace(/[\\']/g, "\\$&")
    .replace(INVISIBLE, (found) => [...new TextEncoder().encode(found)].map((byte) => `\\x${hex(byte, 2)}`).join(""));
  return `$'${escaped}'`;
}

function python(value) {
  if (JSON.isRawJSON?.(value)) return value.rawJSON;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return JSON.stringify(value).replace(INVISIBLE, (found) => `\\U${hex(found.codePointAt(0), 8)}`);
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, item]) => `${python(name)}: ${python(item)}`)
      .join(", ")}}`;
  return String(value);
}

export function asPython({ server, tool, args, target }) {
  const configuration = isAddress(target) ? `{${python(server)}: ${python(target)}}` : '"mcp.json"';
  return `import asyncio

from toolkeep import Runtime


async def main() -> None:
    async with Runtime.open(${configuration}) as runtime:
        result = await runtime.call(${python(`${server}.${tool}`)}, ${python(args)})
        print(result.text)


asyncio.run(main())
`;
}

export function asCommand({ server, tool, args, target }) {
  const source = isAddress(target) ? `--url ${shell(target)}` : "-c mcp.json";
  return `toolkeep call ${source} -- ${shell(isAddress(target) ? tool : `${server}.${tool}`)} ${shell(safeJson(args))}`;
}

const SESSION = { text: '"mcp-session-id: $SESSION"' }; // the only word that a shell expands
const isAddress = (target) => /^https?:\/\//.test(target ?? "");

/** Null for a server that has no address. */
export function asCurl({ tool, args, target, era, version }) {
  if (!isAddress(target)) return null;
  const common = ["content-type: application/json", "accept: application/json, text/event-stream"];
  const post = (headers, body) =>
    [
      `curl -sS ${shell(target)}`,
      ...[...headers, ...common].map((header) => `  -H ${header.text ?? shell(header)}`),
      `  -d ${shell(safeJson(body))}`,
    ].join(" \\\n");
  const protocol = /^\d{4}-\d\d-\d\d$/.test(version) ? version : "2025-11-25";
  const call = { jsonrpc: "2.0", id: 2, method: "tools/call", params: { name: tool, arguments: args } };
  const client = { name: "curl", version: "1" };
  if (era === "modern") {
    const prefix = "io.modelcontextprotocol/";
    call.params._meta = {
      [`${prefix}protocolVersion`]: protocol,
      [`${prefix}clientInfo`]: client,
      [`${prefix}clientCapabilities`]: {},
    };
    return post([`mcp-protocol-version: ${protocol}`, "mcp-method: tools/call", `mcp-name: ${headerValue(tool)}`], call);
  }
  const initialize = {
    jsonrpc: "2.0",
    id: 1,
    method: "initialize",
    params: { protocolVersion: protocol, capabilities: {}, clientInfo: client },
  };
  const session = [SESSION, `mcp-protocol-version: ${protocol}`];
  return [
    `SESSION=$(${post([], initialize)} -D - -o /dev/null | tr -d '\\r' | awk 'tolower($1) == "mcp-session-id:" {print $2}')`,
    post(session, { jsonrpc: "2.0", method: "notifications/initialized" }),
    post(session, call),
  ].join("\n");
}

/** As the protocol wants it for names that a header cannot hold. */
function headerValue(name) {
  if (/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(name)) return name;
  return `=?base64?${btoa(String.fromCharCode(...new TextEncoder().encode(name)))}?=`;
}
