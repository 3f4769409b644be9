/* Calls, as they run; at the end whether each ran, and why that is known. */

import { loaded, post } from "./api.js";
import { go, redraw, report } from "./app.js";
import { logLines, result } from "./content.js";
import { h } from "./dom.js";
import { ago, bytes, clock, count, duration, moment, plural } from "./format.js";
import { icon } from "./icons.js";
import { json } from "./json.js";
import {
  awaited,
  button,
  choice,
  copy,
  errorBox,
  facts,
  pane,
  search,
  section,
  segments,
  split,
  tag,
  toolOf,
  verdict,
  verdictOf,
} from "./parts.js";
import { rows } from "./rows.js";
import { asCommand, asCurl, asPython, safeJson } from "./snippets.js";
import { serverNamed, state } from "./state.js";
import { line, plain } from "./text.js";
import { openResource, tryAgain } from "./view-try.js";

const KINDS = [
  ["", "all"],
  ["running", "running"],
  ["ran", "ran"],
  ["did not run", "did not run"],
  ["unknown", "unknown"],
  ["errors", "errors"],
];
const ui = { text: "", kind: "", paused: null, values: false };

export const title = "Calls";

export function view(route) {
  const server = route.params.get("server") ?? "";
  const all = ui.paused ?? newest();
  const shown = all.filter((call) => call.gap || matches(call, server));
  const chosen = state.calls.get(route.arg);
  return {
    tools: [
      search({ value: ui.text, label: "Tool, principal, reason …", oninput: (text) => ((ui.text = text), redraw()) }),
      choice({
        label: "Server",
        value: server,
        options: [["", "every server"], ...state.servers.map(({ name }) => [name, plain(name, 60)])],
        onchange: (name) => go("calls", route.arg, name ? { server: name } : {}),
      }),
      segments({ label: "Which calls", value: ui.kind, options: KINDS, onchange: (kind) => ((ui.kind = kind), redraw()) }),
      button(ui.paused ? "Resume" : "Pause", togglePause, {
        name: ui.paused ? "play" : "pause",
        kind: ui.paused ? "primary" : "",
        title: "hold the list still (p)",
      }),
    ],
    body: split(
      [
        ui.paused &&
          h(
            "p.banner.warn",
            null,
            icon("pause"),
            `The list is held still. ${count(Math.max(0, state.calls.size - ui.paused.length))} more calls since.`,
          ),
        h(
          "div.table",
          null,
          rows({
            label: "Calls, newest first",
            items: shown,
            keyOf: (call) => call.id ?? call.key,
            columns: COLUMNS,
            selected: route.arg || null,
            onselect: (call) => call.id && go("calls", call.id, Object.fromEntries(route.params)),
            rowClass: (call) => (call.gap ? "gap" : ""),
            empty: all.length ? "No call matches these filters." : "No calls yet. They appear here as the program makes them.",
          }),
        ),
        h("p.foot", null, footer(shown.length, all.length)),
      ],
      route.arg && details(route.arg, chosen, route),
    ),
  };
}

export function togglePause() {
  ui.paused = ui.paused ? null : newest();
  redraw();
}

/** Newest first, with the gaps where they happened. */
function newest() {
  const calls = [...state.calls.values()].reverse();
  for (const gap of state.gaps) {
    const at = calls.findIndex((call) => call.began <= gap.began);
    calls.splice(at < 0 ? calls.length : at, 0, gap);
  }
  return calls;
}

function matches(call, server) {
  if (server && call.server !== server) return false;
  if (ui.kind === "running" && call.state !== "running") return false;
  if (ui.kind === "errors" && (call.state === "running" || call.outcome === "ok")) return false;
  if (["ran", "did not run", "unknown"].includes(ui.kind) && call.verdict !== ui.kind) return false;
  if (!ui.text) return true;
  const text = `${call.server}.${call.tool} ${call.principal ?? ""} ${call.reason ?? ""} ${call.outcome ?? ""} ${call.id}`.toLowerCase();
  return ui.text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

function footer(shown, all) {
  const since = state.recordingSince ? ["Recorded since ", moment(state.recordingSince), ". "] : "";
  return [
    since,
    shown === all ? plural(all, "call") : `${count(shown)} of ${plural(all, "call")}`,
    state.dropped ? `, ${count(state.dropped)} older ones dropped` : "",
    ".",
  ];
}

const gapText = ({ missed, reason }) =>
  `${missed === null || missed === undefined ? "Some calls are" : missed === 1 ? "1 call is" : `${count(missed)} calls are`} not shown: ${
    { slow: "the page could not keep up", restart: "the process was restarted", away: "no page was open, so nothing was recorded" }[
      reason
    ] ?? reason
  }.`;

const only = (show) => (call) => (call.gap ? "" : show(call));

const COLUMNS = [
  {
    title: "Verdict",
    width: "132px",
    class: "verdict-cell",
    cell: (call) => (call.gap ? h("span.verdict.warn", null, icon("gap"), h("span", null, "gap")) : verdict(call)),
  },
  { title: "Tool", width: "minmax(120px, 0.9fr)", cell: (call) => (call.gap ? h("span.gap-text", null, gapText(call)) : toolOf(call)) },
  {
    title: "Why",
    width: "minmax(140px, 2.4fr)",
    drop: 7,
    class: "why",
    cell: only((call) => (call.state === "running" ? progress(call) : h("span.mute", null, line(call.reason, 240)))),
  },
  {
    title: "Principal",
    width: "minmax(70px, 110px)",
    drop: 9,
    cell: only((call) => (call.principal ? line(call.principal, 60) : h("span.mute", null, "–"))),
  },
  {
    title: "Attempts",
    width: "74px",
    drop: 5,
    class: "number",
    cell: only((call) => h("span", { class: call.attempt_count > 1 ? "warn-text" : "mute" }, count(call.attempt_count))),
  },
  {
    title: "Took",
    width: "78px",
    class: "number",
    cell: only((call) => (call.state === "running" ? h("span.mute", null, ago(call.began, "")) : duration(call.duration || null))),
  },
  { title: "Began", width: "104px", drop: 4, class: "number mono", cell: only((call) => clock(call.began)) },
];

export function progress(call) {
  const { fraction, message, progress: done, total } = call.progress ?? {};
  if (!call.progress)
    return call.questions ? h("span.warn-text", null, "waits for an answer") : h("span.mute", null, "waiting for the answer");
  return h(
    "span.progress",
    null,
    fraction === null || fraction === undefined
      ? h("span.mute", null, count(done))
      : h("progress", { max: 1, value: fraction, "aria-label": "progress" }),
    h(
      "span.mute",
      null,
      fraction !== null && fraction !== undefined ? `${Math.round(fraction * 100)}% ` : total ? ` of ${total} ` : " ",
      line(message, 100),
    ),
  );
}

function details(id, call, route) {
  const close = () => go("calls", "", Object.fromEntries(route.params));
  if (!call) return pane("Call", close, h("p.empty", null, "This call is no longer kept: the page keeps the last 1,000."));
  const values = ui.values && state.allowed;
  const whole = loaded(`calls/${encodeURIComponent(id)}${values ? "?values=1" : ""}`, `${call.state}${call.logs}`);
  return pane(
    toolOf(call),
    close,
    hero(call),
    call.state === "running" &&
      call.console &&
      h(
        "div.actions",
        null,
        button("Cancel", () => report(() => post(`calls/${id}/cancel`)), { name: "stop", kind: "small" }),
      ),
    errorBox(call.error),
    section("Attempts", timeline(call)),
    facts([
      ["began", `${moment(call.began)}${clock(call.began).slice(8)}`],
      ["took", call.duration !== null && duration(call.duration)],
      ["principal", call.principal ? line(call.principal, 200) : "none"],
      ["sizes", call.argument_bytes !== null && `${bytes(call.argument_bytes)} sent, ${bytes(call.result_bytes)} received`],
      ["made by", call.console && "this page"],
      ["call id", h("code", null, call.id)],
    ]),
    awaited(whole, (found) => [
      section(["Arguments", masking(found)], found.arguments?.truncated === true ? result(found.arguments) : json(found.arguments ?? {})),
      call.state === "ended" &&
        section(
          "Result",
          found.result === null || found.result === undefined
            ? h("p.hint", null, "There is none.")
            : result(found.result, found.shown ? (uri) => openResource(uri, call.server) : null),
        ),
      found.log_lines?.length > 0 && section("Log", logLines(found.log_lines)),
      section("Copy", copies(call, found)),
    ]),
  );
}

/** The verdict is what a reader came for: it stands first, with its reason. */
function hero(call) {
  const found = verdictOf(call);
  return h(
    "div.hero",
    { class: found.tone, role: "status" },
    h("p.verdict", { class: found.tone }, icon(found.icon, found.tone === "live" ? "turning" : ""), h("span", null, found.long)),
    h("p.reason", null, call.state === "running" ? progress(call) : line(call.reason ?? "The process gives no reason.", 500)),
    call.outcome === "cancelled" && tag("cancelled"),
  );
}

function masking(found) {
  if (found.shown) return button("hide values", () => ((ui.values = false), redraw()), { kind: "small quiet" });
  if (!state.allowed) return h("span.hint", null, "masked: this console may not show values");
  return [h("span.hint", null, "masked"), button("show values", () => ((ui.values = true), redraw()), { kind: "small quiet" })];
}

/** Each attempt as a bar on the time of the whole call, with what went wrong and what was decided. */
function timeline(call) {
  const began = call.began;
  const length = Math.max((call.ended ?? Date.now() / 1000) - began, 0.0005);
  const share = (at) => `${Math.min(100, Math.max(0, ((at - began) / length) * 100)).toFixed(2)}%`;
  if (!call.attempts.length) return h("p.hint", null, "Nothing was sent.");
  return h(
    "ol.timeline",
    null,
    call.attempt_count > call.attempts.length &&
      h("li", { key: "dropped" }, h("p.hint", null, `${call.attempt_count - call.attempts.length} earlier attempts are not kept.`)),
    call.attempts.map((attempt) => {
      const took = attempt.ended ? attempt.ended - attempt.began : null;
      return h(
        "li",
        { key: attempt.number, class: attempt.outcome },
        h("div.lane", { style: { "--from": share(attempt.began), "--to": share(attempt.ended ?? Date.now() / 1000) } }, h("span.bar")),
        h(
          "p.attempt",
          null,
          h("b", null, `#${attempt.number}`),
          " ",
          { answered: "answered", running: "running", failed: "failed" }[attempt.outcome],
          took !== null && h("span.mute", null, ` after ${duration(took)}`),
          attempt.failure && [
            " ",
            tag(attempt.failure.kind, "bad"),
            attempt.failure.status && tag(`HTTP ${attempt.failure.status}`),
            tag(`delivery: ${attempt.failure.delivery}`),
          ],
        ),
        attempt.failure && h("p.message", null, line(attempt.failure.message, 400)),
        attempt.failure?.rule && h("p.hint", null, "rule: ", line(attempt.failure.rule, 300)),
        attempt.decision &&
          h(
            "p.decision",
            null,
            icon("out"),
            line(attempt.decision, 300),
            attempt.delay !== null && attempt.delay !== undefined && h("span.mute", null, ` (after ${duration(attempt.delay)})`),
          ),
      );
    }),
  );
}

function copies(call, found) {
  const server = serverNamed(call.server);
  const about = {
    server: call.server,
    tool: call.tool,
    args: found.arguments ?? {},
    target: server?.target,
    era: server?.era,
    version: server?.protocol_version,
  };
  const curl = asCurl(about);
  return [
    h(
      "div.actions",
      null,
      copy(() => asPython(about), "Python", redraw),
      curl && copy(() => curl, "curl", redraw),
      copy(() => asCommand(about), "CLI", redraw),
      copy(() => safeJson({ ...call, arguments: found.arguments, result: found.result }, 2), "JSON", redraw),
      state.allowed && found.shown && button("Try again …", () => tryAgain(call, found.arguments), { name: "try", kind: "small" }),
    ),
    !found.shown && h("p.hint", null, "The arguments are masked: what you copy holds their types instead of their values."),
  ];
}
