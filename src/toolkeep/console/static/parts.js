/*
 * Parts that several views use: the verdict of a call, errors, facts, toolbars, the pane of details.
 * They hold no state beside a word of what was copied.
 */

import { h } from "./dom.js";
import { icon } from "./icons.js";
import { block, line } from "./text.js";

/** What a call came to: an icon, a word, a tone and, for the details, a sentence. */
export function verdictOf(call) {
  if (call.state === "running") {
    const retrying = call.attempt_count > 1;
    return { icon: "running", tone: "live", word: retrying ? `attempt ${call.attempt_count}` : "running", long: "Running" };
  }
  if (call.verdict === "ran") {
    if (call.outcome === "tool error")
      return { icon: "toolerror", tone: "bad", word: "ran, error", long: "Ran, and the tool reports an error" };
    if (call.cached) return { icon: "ran", tone: "mute", word: "cached", long: "Answered from the cache" };
    if (call.outcome && call.outcome !== "ok")
      return { icon: "toolerror", tone: "bad", word: `ran, ${call.outcome}`, long: `Ran: ${call.outcome}` };
    return { icon: "ran", tone: "good", word: "ran", long: "Ran" };
  }
  if (call.verdict === "did not run") return { icon: "notrun", tone: "calm", word: "did not run", long: "Did not run" };
  return { icon: "unknown", tone: "warn", word: "unknown", long: "Unknown: it may have run" };
}

export function verdict(call) {
  const found = verdictOf(call);
  return h(`span.verdict.${found.tone}`, null, icon(found.icon, found.tone === "live" ? "turning" : ""), h("span", null, found.word));
}

/** "server.tool", the tool in full colour. */
export function toolOf(call) {
  const tool = call.tool.startsWith(`${call.server}.`) ? call.tool.slice(call.server.length + 1) : call.tool;
  return [call.server && h("span.mute", null, line(call.server, 60), "."), h("span.name", null, line(tool, 160))];
}

const HEALTH = {
  healthy: { icon: "ok", tone: "good" },
  down: { icon: "down", tone: "bad" },
  "needs authorization": { icon: "lock", tone: "warn" },
  unknown: { icon: "dot", tone: "mute" },
};

export function health(word) {
  const found = HEALTH[word] ?? HEALTH.unknown;
  return h(`span.verdict.${found.tone}`, null, icon(found.icon), h("span", null, word));
}

export function tag(text, tone = "") {
  return h("span.tag", { class: tone }, line(text, 60));
}

/** A list of names and values. Pairs without a value are left out. */
export function facts(pairs) {
  const known = pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== undefined && pair[1] !== "" && pair[1] !== false);
  return h(
    "dl.facts",
    null,
    known.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
  );
}

export function section(title, ...children) {
  return h("section.part", null, h("h3", null, title), children);
}

/** An error of the runtime, with its evidence. */
export function errorBox(error, title = null) {
  return (
    error &&
    h(
      "div.error",
      null,
      h(
        "p.error-type",
        null,
        title,
        " ",
        h("code", null, line(error.type)),
        error.status && tag(`HTTP ${error.status}`),
        typeof error.code === "number" && tag(`code ${error.code}`),
      ),
      h("div.message", null, block(error.message)),
      error.rule && h("p.hint", null, "rule: ", line(error.rule, 300)),
    )
  );
}

/** What a request of this page failed with. */
export function problem(error) {
  return (
    error &&
    h(
      "div.error",
      { role: "alert" },
      h("div.message", null, block(error.message)),
      error.remedy && h("p.remedy", null, line(error.remedy, 500)),
    )
  );
}

export function button(text, onclick, { name, kind = "", title, disabled } = {}) {
  return h("button", { type: "button", class: kind, title, disabled, onclick }, name && icon(name), text && h("span", null, text));
}

export function search({ value, label, oninput }) {
  return h(
    "label.search",
    null,
    icon("search"),
    h("input", {
      id: "search",
      type: "search",
      value,
      placeholder: label,
      "aria-label": label,
      spellcheck: "false",
      autocomplete: "off",
      oninput: (event) => oninput(event.target.value),
    }),
  );
}

/** One of several: `[[value, text], …]`. */
export function choice({ label, value, options, onchange }) {
  return h(
    "select",
    { "aria-label": label, value: value ?? "", onchange: (event) => onchange(event.target.value) },
    options.map(([each, text]) => h("option", { value: each }, text)),
  );
}

/** Buttons of which one is pressed. */
export function segments({ label, value, options, onchange }) {
  return h(
    "div.segments",
    { role: "group", "aria-label": label },
    options.map(([each, text]) =>
      h("button", { type: "button", "aria-pressed": String(each === value), onclick: () => onchange(each) }, text),
    ),
  );
}

/** A table beside the details of one of its rows. On a narrow page the details cover the table. */
export function split(list, pane) {
  return h("div.split", { class: pane ? "open" : "" }, h("div.list", { key: "list" }, list), pane && h("div.pane", { key: "pane" }, pane));
}

export function pane(title, close, ...children) {
  return h(
    "article.detail",
    { "aria-label": "Details" },
    h(
      "header",
      null,
      h(
        "button.quiet.back",
        { type: "button", "aria-label": "Close the details", title: "close (Esc)", onclick: close },
        icon("back"),
        icon("close"),
      ),
      h("h2", null, title),
    ),
    h("div.scroll", { tabindex: 0, role: "group", "aria-label": "Details, scrollable" }, children),
  );
}

/** Waiting, failed, or what `show` makes of the value. */
export function awaited(entry, show) {
  if (entry.value !== null) return [entry.error && problem(entry.error), show(entry.value)];
  return entry.error ? problem(entry.error) : h("p.empty", null, "Loading …");
}

let copied = null;

/** A button that copies a text. */
export function copy(text, words, redraw) {
  const done = copied === words;
  return button(
    done ? "copied" : words,
    async () => {
      await navigator.clipboard
        .writeText(typeof text === "function" ? text() : text)
        .catch(() => copyBySelection(typeof text === "function" ? text() : text));
      copied = words;
      redraw();
      setTimeout(() => ((copied = null), redraw()), 1500);
    },
    { name: done ? "ok" : "copy", kind: "small" },
  );
}

/** For pages without the clipboard's permission. */
function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
