/* Servers: how each is, what is wrong with it and what helps. */

import { post } from "./api.js";
import { go, redraw, report } from "./app.js";
import { bars } from "./chart.js";
import { h } from "./dom.js";
import { ago, clock, count, duration, percent, plural } from "./format.js";
import { icon } from "./icons.js";
import { button, errorBox, facts, health, pane, search, section, split, tag } from "./parts.js";
import { rows } from "./rows.js";
import { rates, serverNamed, state } from "./state.js";
import { line, plain } from "./text.js";

const MOST_PROBLEMS = 6;
const SPARK = 60; // seconds
let filter = "";
const busy = new Set();

export const title = "Servers";

export function view(route) {
  const chosen = serverNamed(route.arg);
  const shown = state.servers.filter((server) => server.name.toLowerCase().includes(filter.toLowerCase()));
  return {
    tools: search({ value: filter, label: "Filter servers", oninput: (text) => ((filter = text), redraw()) }),
    body: split([problems(), table(shown, chosen)], chosen && details(chosen)),
  };
}

const failing = (server) => server.health === "down" || server.health === "needs authorization";
const errorRate = (server) => (server.calls ? (server.failed + server.tool_errors) / server.calls : null);

/** What is wrong now and what helps, before everything else. */
function problems() {
  const found = state.servers.filter((server) => failing(server));
  if (!found.length) return null;
  return h(
    "ul.problems",
    { "aria-label": "Servers that need attention" },
    found
      .slice(0, MOST_PROBLEMS)
      .map((server) =>
        h(
          "li",
          { key: server.name },
          h(
            "div.problem-head",
            null,
            health(server.health),
            h("b.name", null, line(server.name, 60)),
            server.since && h("span.mute", null, "for ", ago(server.since, "")),
          ),
          (server.error ?? server.last_error) && h("p.message", null, line((server.error ?? server.last_error).message, 260)),
          server.remedy && h("p.remedy", null, icon("out"), line(server.remedy, 300)),
          h("div.actions", null, actions(server)),
        ),
      ),
    found.length > MOST_PROBLEMS && h("li", { key: "more" }, `and ${found.length - MOST_PROBLEMS} more servers`),
  );
}

function actions(server) {
  if (!state.allowed) return null;
  const act = (word, work) => async () => {
    busy.add(server.name + word);
    redraw();
    await report(work);
    busy.delete(server.name + word);
    redraw();
  };
  const path = `servers/${encodeURIComponent(server.name)}`;
  return [
    button(
      busy.has(`${server.name}reconnect`) ? "reconnecting …" : "Reconnect",
      act("reconnect", () => reconnect(path)),
      { name: "reload", kind: "small", disabled: busy.has(`${server.name}reconnect`) },
    ),
    server.can_log_in &&
      server.health === "needs authorization" &&
      button(
        "Log in",
        act("login", () => logIn(path)),
        { name: "lock", kind: "small primary" },
      ),
  ];
}

async function reconnect(path) {
  const { server } = await post(`${path}/reconnect`);
  state.servers = state.servers.map((each) => (each.name === server.name ? server : each));
  if (server.error) throw Object.assign(new Error(server.error.message), { remedy: server.remedy });
}

async function logIn(path) {
  const tab = window.open("about:blank"); // while it is still the user's click
  try {
    const { url } = await post(`${path}/login`);
    if (!/^https?:\/\//.test(url)) throw new Error("The login has no web address.");
    if (tab) {
      tab.opener = null;
      tab.location.replace(url);
    } else location.assign(url);
  } catch (error) {
    tab?.close();
    throw error;
  }
}

const COLUMNS = [
  {
    title: "Server",
    width: "minmax(110px, 1.6fr)",
    class: "two",
    cell: (server) => [h("b.name", null, line(server.name, 80)), h("span.mute.mono", null, line(server.target, 120))],
  },
  {
    title: "Health",
    width: "minmax(122px, 1fr)",
    class: "two",
    cell: (server) => [
      health(server.health),
      tripped(server) ? breaker(server) : h("span.mute", null, server.since ? ["for ", ago(server.since, "")] : server.state),
    ],
  },
  {
    title: "Transport",
    width: "92px",
    drop: 5,
    class: "two",
    cell: (server) => [h("span", null, server.transport), h("span.mute", null, server.era ?? "–")],
  },
  {
    title: "Last minute",
    width: "minmax(90px, 150px)",
    drop: 8,
    cell: (server) => bars(rates(SPARK, server.name), { label: `calls per second of ${plain(server.name)}` }),
  },
  {
    title: "Calls",
    width: "62px",
    drop: 4,
    class: "number two",
    cell: (server) => [h("span", null, count(server.calls)), h("span.mute", null, server.in_flight ? `${server.in_flight} now` : "")],
  },
  {
    title: "Errors",
    width: "54px",
    drop: 4,
    class: "number",
    cell: (server) => h("span", { class: errorRate(server) > 0 ? "bad-text" : "mute" }, percent(errorRate(server))),
  },
  { title: "p50", width: "76px", drop: 6, class: "number", cell: (server) => duration(server.p50) },
  { title: "p95", width: "76px", drop: 6, class: "number", cell: (server) => duration(server.p95) },
  { title: "Sessions", width: "74px", drop: 7, class: "number", cell: (server) => count(server.sessions) },
];

const tripped = (server) => server.breaker && server.breaker !== "closed";

function breaker(server) {
  if (!tripped(server)) return server.breaker;
  return h(
    "span.verdict.warn",
    { title: "After many failures the breaker refuses calls for a while." },
    icon("warn"),
    h("span", null, `breaker ${server.breaker}`),
  );
}

function table(shown, chosen) {
  return h(
    "div.table.tall",
    null,
    rows({
      label: "Servers",
      items: shown,
      keyOf: (server) => server.name,
      columns: COLUMNS,
      selected: chosen?.name ?? null,
      onselect: (server) => go("servers", server.name),
      empty: filter ? "No server has this in its name." : "This runtime has no servers.",
    }),
  );
}

function details(server) {
  const notes = state.notes
    .filter((note) => note.server === server.name)
    .slice(-40)
    .reverse();
  return pane(
    [line(server.name, 120)],
    () => go("servers"),
    h(
      "div.hero",
      { class: failing(server) ? "bad" : server.health === "healthy" ? "good" : "mute" },
      health(server.health),
      h("p.reason", null, heroText(server)),
    ),
    server.remedy && failing(server) && h("p.remedy", null, icon("out"), line(server.remedy, 600)),
    h(
      "div.actions",
      null,
      actions(server),
      button("Calls", () => go("calls", "", { server: server.name }), { name: "calls", kind: "small" }),
      button("Wire", () => go("wire", "", { server: server.name }), { name: "wire", kind: "small" }),
    ),
    server.error && section("Error", errorBox(server.error)),
    facts([
      ["target", h("code", null, line(server.target, 300))],
      ["transport", server.transport],
      ["protocol", server.protocol_version && `${server.protocol_version} (${server.era})`],
      ["server", server.server_version && line(server.server_version, 200)],
      [
        "offers",
        `${plural(server.tools, "tool")}, ${plural(server.prompts, "prompt")}, ${plural(server.resources, "resource")}${server.stale ? " (stale)" : ""}`,
      ],
      ["breaker", breaker(server)],
      ["check took", server.latency !== null && duration(server.latency)],
      ["calls", `${count(server.calls)}, ${server.in_flight} in flight, ${count(server.cached)} from the cache`],
      [
        "failed",
        `${count(server.failed)} without a result, ${count(server.tool_errors)} tool errors, ${count(server.cancelled)} cancelled`,
      ],
      ["retries", count(server.retries)],
      [
        "latency",
        server.p50 !== null &&
          `p50 ${duration(server.p50)}, p95 ${duration(server.p95)}, p99 ${duration(server.p99)}, max ${duration(server.max)}`,
      ],
      ["sessions", count(server.sessions)],
      ["last call", server.last_call_at && ago(server.last_call_at)],
    ]),
    Object.keys(server.errors ?? {}).length > 0 &&
      section("Errors by kind", facts(Object.entries(server.errors).map(([kind, number]) => [line(kind, 80), count(number)]))),
    server.endpoints?.length > 1 &&
      section(
        "Endpoints",
        h(
          "ul.plain",
          null,
          server.endpoints.map((endpoint) =>
            h(
              "li",
              { key: endpoint.url },
              h("code", null, line(endpoint.url, 200)),
              " ",
              endpoint.cooling_down ? tag("cooling down", "warn") : "",
              h(
                "span.mute",
                null,
                ` ${plural(endpoint.attempts, "attempt")}, ${plural(endpoint.faults, "fault")}, ${endpoint.in_flight} in flight`,
              ),
            ),
          ),
        ),
      ),
    !server.error && server.last_error && section("Last error", errorBox(server.last_error)),
    section(
      "What happened",
      notes.length
        ? h(
            "ol.notes",
            null,
            notes.map((note) => h("li", { key: note.id }, h("time", null, clock(note.at, false)), h("span", null, line(note.text, 300)))),
          )
        : h("p.hint", null, "Nothing since this page was opened."),
    ),
  );
}

function heroText(server) {
  if (server.health === "healthy") return ["It answers", server.since ? [", healthy for ", ago(server.since, "")] : "", "."];
  const error = server.error ?? server.last_error;
  return error ? line(error.message, 400) : "It was not checked yet.";
}
