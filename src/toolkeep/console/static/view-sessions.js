/* Sessions by principal, with their age and use. */

import { loaded, post } from "./api.js";
import { redraw, report } from "./app.js";
import { h } from "./dom.js";
import { ago, count, plural } from "./format.js";
import { icon } from "./icons.js";
import { button, choice, problem, search } from "./parts.js";
import { rows } from "./rows.js";
import { state } from "./state.js";
import { line, plain } from "./text.js";

const EVERY = 3; // seconds between two looks
const ui = { text: "", server: "", version: 0 };

export const title = "Sessions";

export function view() {
  const second = Math.floor(Date.now() / 1000 / EVERY);
  const entry = loaded("sessions", `${second}-${ui.version}`);
  const all = entry.value?.sessions ?? [];
  const text = ui.text.toLowerCase();
  const shown = all.filter(
    (each) =>
      (!ui.server || each.server === ui.server) && `${each.label} ${each.principal ?? ""} ${each.server}`.toLowerCase().includes(text),
  );
  return {
    tools: [
      search({ value: ui.text, label: "Principal or server", oninput: (next) => ((ui.text = next), redraw()) }),
      choice({
        label: "Server",
        value: ui.server,
        options: [["", "every server"], ...state.servers.map(({ name }) => [name, plain(name, 60)])],
        onchange: (name) => ((ui.server = name), redraw()),
      }),
    ],
    body: h(
      "div.list",
      null,
      problem(entry.error),
      h(
        "div.table",
        null,
        rows({
          label: "Sessions",
          items: shown,
          keyOf: (each) => each.id,
          columns: COLUMNS,
          selected: null,
          empty: entry.value ? "No session is open." : "Loading …",
        }),
      ),
      h("p.foot", null, `${plural(shown.length, "session")} of ${plural(new Set(shown.map((each) => each.label)).size, "principal")}.`),
    ),
  };
}

const COLUMNS = [
  {
    title: "Principal",
    width: "minmax(110px, 1.2fr)",
    cell: (each) =>
      each.own || !each.principal ? h("span.mute", null, line(each.label, 80)) : h("span.name", null, line(each.principal, 80)),
  },
  { title: "Server", width: "minmax(80px, 1fr)", cell: (each) => line(each.server, 60) },
  { title: "State", width: "96px", drop: 4, cell: stateOf },
  {
    title: "Protocol",
    width: "150px",
    drop: 7,
    cell: (each) => h("span.mute", null, line(each.protocol_version ?? "–", 30), each.era ? ` ${each.era}` : ""),
  },
  { title: "Session id", width: "86px", drop: 9, cell: (each) => h("span.mute", null, each.has_session ? "has one" : "none") },
  { title: "Opened", width: "86px", drop: 5, class: "number", cell: (each) => (each.made ? ago(each.made) : "–") },
  { title: "Calls", width: "64px", class: "number", cell: (each) => count(each.uses) },
  { title: "Now", width: "50px", drop: 5, class: "number", cell: (each) => count(each.users) },
  { title: "", width: "74px", class: "number", cell: ending },
];

function stateOf(each) {
  const [name, tone] = { "in use": ["play", "good"], closing: ["stop", "warn"] }[each.state] ?? ["dot", "mute"];
  return h(`span.verdict.${tone}`, null, icon(name), h("span", null, line(each.state, 20)));
}

function ending(each) {
  if (each.own || !state.allowed) return null;
  const end = () => report(async () => (await post(`sessions/${encodeURIComponent(each.id)}/end`), ui.version++, redraw()));
  return button("End", end, { kind: "small", title: `End the session of ${plain(each.label, 60)}: the next call opens another one` });
}
