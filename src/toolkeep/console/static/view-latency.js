/* Latency: how long calls take, by server and tool; and how many there are each second. */

import { loaded } from "./api.js";
import { go } from "./app.js";
import { bars, histogram, range } from "./chart.js";
import { h } from "./dom.js";
import { count, duration, plural } from "./format.js";
import { button, facts, problem } from "./parts.js";
import { rates, serverNamed, state } from "./state.js";
import { line } from "./text.js";

const EVERY = 3; // seconds between two looks
const WINDOW = 300; // seconds of calls per second
const MOST_CHARTS = 40;

export const title = "Latency";

export function view(route) {
  const server = serverNamed(route.arg);
  const query = server ? `?server=${encodeURIComponent(server.name)}` : "";
  const entry = loaded(`latency${query}`, Math.floor(Date.now() / 1000 / EVERY));
  const all = (entry.value?.series ?? []).filter((series) => series.count);
  const axis = range(all);
  return {
    tools: server ? button("All servers", () => go("latency"), { name: "back" }) : null,
    body: h(
      "div.sheet",
      { tabindex: 0, role: "group", "aria-label": "Charts" },
      flow(server),
      problem(entry.error),
      h("h2", null, server ? ["Latency of ", line(server.name, 80), " and its tools"] : "Latency by server"),
      h("p.hint", null, "Calls that returned a result, on a logarithmic scale. Lines: p50, p95, p99."),
      all.slice(0, MOST_CHARTS).map((series) => chart(series, axis, !server)),
      all.length > MOST_CHARTS && h("p.hint", null, `${all.length - MOST_CHARTS} more are not shown.`),
      !all.length && h("p.empty", null, entry.value ? "No call has returned a result yet." : "Loading …"),
    ),
  };
}

/** Calls per second, over the last five minutes. */
function flow(server) {
  const found = rates(WINDOW, server?.name ?? null);
  const sum = (list, name) => list.reduce((total, rate) => total + rate[name], 0);
  const minute = found.slice(-60);
  return h(
    "section.flow",
    null,
    h(
      "div.figures",
      null,
      figure(count(found.at(-1)?.calls ?? 0), "calls in the last second"),
      figure((sum(minute, "calls") / 60).toFixed(1), "calls a second, last minute"),
      figure(count(sum(minute, "errors")), "errors, last minute"),
      figure(
        count(state.servers.filter((each) => !server || each === server).reduce((total, each) => total + each.in_flight, 0)),
        "in flight",
      ),
    ),
    h("div.wide", null, bars(found, { width: 900, height: 90, label: "calls per second, last five minutes" })),
    h(
      "p.axis-text",
      null,
      h("span", null, "5 min ago"),
      h("span", null, `at most ${count(Math.max(0, ...found.map((rate) => rate.calls)))} calls a second`),
      h("span", null, "now"),
    ),
  );
}

const figure = (value, words) => h("div.figure", null, h("b", null, value), h("span", null, words));

function chart(series, axis, opens) {
  const name = series.tool ?? series.server;
  return h(
    "section.series",
    { key: `${series.server}/${series.tool}` },
    h(
      "header",
      null,
      h(
        "h3",
        null,
        opens
          ? h("button.quiet", { type: "button", title: "its tools", onclick: () => go("latency", series.server) }, line(name, 120))
          : [line(name, 120), series.tool === null && h("span.mute", null, " all tools")],
      ),
      h("span.mute", null, plural(series.count, "call")),
    ),
    h(
      "div.with-facts",
      null,
      histogram(series, axis),
      facts([
        ["p50", duration(series.p50)],
        ["p95", duration(series.p95)],
        ["p99", duration(series.p99)],
        ["max", duration(series.max)],
      ]),
    ),
  );
}
