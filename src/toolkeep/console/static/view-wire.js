/* Wire: requests of one server with their answers, without secrets, with their timing. */

import { address, loaded, post } from "./api.js";
import { go, redraw, report } from "./app.js";
import { h } from "./dom.js";
import { bytes, clock, count, duration, plural } from "./format.js";
import { icon } from "./icons.js";
import { json, parseExactly } from "./json.js";
import { awaited, button, choice, facts, pane, search, section, split } from "./parts.js";
import { rows } from "./rows.js";
import { serverNamed, state } from "./state.js";
import { block, line, plain } from "./text.js";

const ui = { text: "" };

const STATES = {
  open: { icon: "running", tone: "live", word: "open" },
  answered: { icon: "ok", tone: "good", word: "answered" },
  failed: { icon: "down", tone: "bad", word: "failed" },
  abandoned: { icon: "notrun", tone: "warn", word: "abandoned" },
  notification: { icon: "dot", tone: "mute", word: "one way" },
};

export const title = "Wire";

export function view(route) {
  const name = route.params.get("server") ?? state.tracing.values().next().value ?? state.servers[0]?.name ?? "";
  const server = serverNamed(name);
  const tracing = state.tracing.has(name);
  const earlier = server && loaded(`wire?server=${encodeURIComponent(name)}`, tracing);
  for (const each of earlier?.value?.exchanges ?? []) if (!state.wire.has(each.id)) state.wire.set(each.id, each);
  const all = [...state.wire.values()].filter((each) => each.server === name).sort((a, b) => b.id - a.id);
  const shown = all.filter((each) =>
    `${each.method ?? ""} ${each.name ?? ""} ${each.status ?? ""} ${each.state}`.toLowerCase().includes(ui.text.toLowerCase()),
  );
  return {
    tools: [
      choice({
        label: "Server",
        value: name,
        options: state.servers.map((each) => [each.name, plain(each.name, 60)]),
        onchange: (next) => go("wire", "", { server: next }),
      }),
      server &&
        button(tracing ? "Stop" : "Record", () => report(() => post(`servers/${encodeURIComponent(name)}/trace`, { on: !tracing })), {
          name: tracing ? "stop" : "dot",
          kind: tracing ? "recording" : "primary",
        }),
      search({ value: ui.text, label: "Method, name, status", oninput: (text) => ((ui.text = text), redraw()) }),
      all.length > 0 &&
        h(
          "a.button",
          { href: address(`servers/${encodeURIComponent(name)}/wire.jsonl`), download: "wire.jsonl" },
          icon("down2"),
          h("span", null, "JSON lines"),
        ),
    ],
    body: split(
      [
        h(
          "div.table",
          null,
          rows({
            label: `Messages of ${name}, newest first`,
            items: shown,
            keyOf: (each) => String(each.id),
            columns: COLUMNS,
            selected: route.arg || null,
            onselect: (each) => go("wire", String(each.id), { server: name }),
            empty: all.length
              ? "No message matches."
              : tracing
                ? "Recording: messages appear here as they pass."
                : "Press Record to see what passes between this process and the server. Nothing is sent for it.",
          }),
        ),
        h("p.foot", null, plural(all.length, "exchange"), tracing ? ", recording." : "."),
      ],
      route.arg && details(route.arg, name),
    ),
  };
}

function stateOf(each) {
  const found = STATES[each.state] ?? STATES.notification;
  return h(`span.verdict.${found.tone}`, null, icon(found.icon, found.tone === "live" ? "turning" : ""), h("span", null, found.word));
}

const answered = (each) => each.answers.reduce((sum, part) => sum + part.bytes, 0);

const COLUMNS = [
  { title: "At", width: "104px", drop: 4, class: "mono", cell: (each) => clock(each.at) },
  {
    title: "From",
    width: "34px",
    drop: 3,
    cell: (each) =>
      h(
        "span",
        { title: `from the ${each.from}`, "aria-label": `from the ${each.from}`, role: "img" },
        icon(each.from === "server" ? "in" : "out", `from-${each.from}`),
      ),
  },
  {
    title: "Method",
    width: "minmax(120px, 1fr)",
    cell: (each) => [
      h("span.name", null, line(each.method ?? each.request?.text ?? "–", 80)),
      each.name && h("span.mute", null, " ", line(each.name, 80)),
    ],
  },
  { title: "State", width: "104px", cell: stateOf },
  { title: "Status", width: "60px", drop: 6, class: "number", cell: (each) => each.status ?? "–" },
  { title: "Took", width: "76px", class: "number", cell: (each) => duration(each.took) },
  { title: "Sent", width: "72px", drop: 5, class: "number", cell: (each) => bytes(each.request?.bytes) },
  { title: "Received", width: "76px", drop: 7, class: "number", cell: (each) => (each.answers.length ? bytes(answered(each)) : "–") },
];

function details(id, name) {
  const known = state.wire.get(Number(id));
  const close = () => go("wire", "", { server: name });
  const entry = loaded(`wire/${encodeURIComponent(id)}`, known ? `${known.state}${known.answers.length}` : "");
  return pane(
    line(known?.method ?? "Exchange", 100),
    close,
    awaited(entry, (each) => [
      h(
        "div.hero",
        { class: (STATES[each.state] ?? STATES.notification).tone },
        stateOf(each),
        h(
          "p.reason",
          null,
          each.error
            ? line(each.error, 400)
            : each.took !== null
              ? `${each.from === "server" ? "The client" : "The server"} answered after ${duration(each.took)}.`
              : each.state === "open"
                ? "There is no answer yet."
                : "It has no answer.",
        ),
      ),
      facts([
        ["at", clock(each.at)],
        ["from", `the ${each.from}`],
        ["request id", each.rpc_id === null ? null : h("code", null, line(JSON.stringify(each.rpc_id), 80))],
        ["name", each.name && line(each.name, 200)],
      ]),
      each.masked && h("p.hint", null, icon("lock"), "Arguments and results are masked: this console may not show values."),
      each.request && section(["Sent", h("span.mute", null, ` ${bytes(each.request.bytes)}`)], message(each.request)),
      each.answers.map((part, index) =>
        section(
          [
            each.answers.length > 1 ? `Received ${index + 1}` : "Received",
            h("span.mute", null, ` ${bytes(part.bytes)}, +${duration(part.at - each.at)}`),
          ],
          message(part),
        ),
      ),
      each.dropped_answers > 0 && h("p.hint", null, `${count(each.dropped_answers)} more parts of this stream were not kept.`),
    ]),
  );
}

function message(part) {
  const headers = Object.entries(part.headers ?? {});
  return h(
    "div.message-part",
    null,
    part.text && h("p.mono.wrap", null, line(part.text, 500)),
    headers.length > 0 &&
      h(
        "details",
        null,
        h("summary", null, plural(headers.length, "header")),
        h(
          "dl.headers",
          null,
          headers.map(([header, value]) => h("div", null, h("dt", null, line(header, 80)), h("dd", null, line(value, 500)))),
        ),
      ),
    body(part.body),
  );
}

/** JSON as a tree; of an event stream, the JSON of its data lines. */
function body(text) {
  if (!text) return null;
  const data =
    text.startsWith("{") || text.startsWith("[")
      ? text
      : text
          .split(/\r?\n/)
          .filter((each) => each.startsWith("data:"))
          .map((each) => each.slice(5))
          .join("\n");
  try {
    return json(parsed(data));
  } catch {
    return h("div.textblock", null, block(text));
  }
}

/** The same text gives the same object, so that the tree stays as it was opened. */
let known = new Map();

function parsed(text) {
  if (known.size > 200) known = new Map();
  if (!known.has(text)) known.set(text, parseExactly(text));
  return known.get(text);
}
