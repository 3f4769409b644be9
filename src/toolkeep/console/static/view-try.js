/* Try a tool, a prompt or a resource: a form made from its schema, and what came back. */

import { loaded, post, postText } from "./api.js";
import { go, redraw, report } from "./app.js";
import { result } from "./content.js";
import { h } from "./dom.js";
import { ago, duration } from "./format.js";
import { icon } from "./icons.js";
import { parseExactly } from "./json.js";
import { Pages } from "./pages.js";
import { awaited, button, errorBox, pane, problem, search, section, segments, split, tag, verdict, verdictOf } from "./parts.js";
import { rows } from "./rows.js";
import { problemOf, SchemaForm } from "./schema.js";
import { safeJson } from "./snippets.js";
import { state } from "./state.js";
import { block, line } from "./text.js";
import { card } from "./view-questions.js";

const KINDS = [
  ["tools", "Tools"],
  ["prompts", "Prompts"],
  ["resources", "Resources"],
  ["templates", "Templates"],
];
const CHECK_AFTER = 200; // milliseconds after the last key
const MOST_RUNS = 20;

const list = new Pages("items", redraw);
const ui = { text: "", principal: "", timeout: "", raw: null, checking: 0, given: null };
let open = null; // what is tried: {kind, name, item, form, uri, problems, error, run}
const runs = []; // newest first: {key, at, kind, name, args, id | answer | error, busy}

export const title = "Try";

export function view(route) {
  const kind = route.params.get("kind") ?? "tools";
  const query = new URLSearchParams({ kind, q: ui.text });
  list.use(`catalogue?${query}`, state.revision);
  return {
    tools: [
      segments({ label: "What to try", value: kind, options: KINDS, onchange: (next) => go("try", "", { kind: next }) }),
      search({ value: ui.text, label: `Search ${kind}`, oninput: (text) => ((ui.text = text), redraw()) }),
    ],
    body: split(
      [
        !state.allowed &&
          h("p.banner.warn", null, icon("lock"), "This console may only look. Start it with --allow-calls to call from here."),
        problem(list.error),
        h(
          "div.table.tall",
          null,
          rows({
            label: `${kind} to try`,
            items: list.items,
            keyOf: keyOfItem,
            selected: route.arg || null,
            onrange: (first, last) => list.want(first, last),
            columns: [{ title: kind, width: "1fr", class: "two", cell: nameCell }],
            onselect: (item) => !item.pending && go("try", keyOfItem(item), { kind }),
            empty: list.answer ? "Nothing matches." : "Loading …",
          }),
        ),
      ],
      route.arg && desk(kind, route.arg),
    ),
  };
}

const keyOfItem = (item) => (item.pending ? `pending-${item.index}` : item.name);

function nameCell(item) {
  if (item.pending) return h("span.mute", null, "…");
  return [
    h("span.name", null, line(item.name, 140)),
    h("span.mute", null, line(item.description || item.uri || item.uri_template || item.title || "", 160)),
  ];
}

/** Open the reading of a resource, from a link in a result. */
export function openResource(uri, server) {
  ui.given = { uri, server };
  go("try", uri, { kind: "resources" });
}

/** Open a call's tool with its arguments. */
export function tryAgain(call, args) {
  ui.given = { args };
  go("try", `${call.server}.${call.tool}`, { kind: "tools" });
}

// -- the form -----------------------------------------------------------------------------------

function desk(kind, name) {
  const close = () => go("try", "", { kind });
  if (open?.kind !== kind || open.name !== name) {
    open = { kind, name, form: null, problems: [], error: null, run: null };
    ui.raw = null;
  }
  if (ui.given?.uri) return reading({ uri: ui.given.uri, server: ui.given.server }, close);
  const entry = loaded(`item?${new URLSearchParams({ kind, name })}`, state.revision);
  return pane(
    line(name, 160),
    close,
    awaited(entry, (item) => (kind === "resources" || kind === "templates" ? resource(item) : callable(item))),
  );
}

function callable(item) {
  const definition = item.definition ?? {};
  const schema = open.kind === "tools" ? (definition.inputSchema ?? {}) : promptSchema(item);
  const version = JSON.stringify(schema);
  if (!open.form || open.version !== version) {
    open.form = new SchemaForm(schema, ui.given?.args ?? open.form?.value, changed);
    open.version = version;
    ui.given = null;
    check();
  }
  open.form.problems = open.problems;
  return [
    h(
      "div.about",
      null,
      hints(item),
      (definition.description ?? item.description) && h("div.description", null, block(definition.description ?? item.description)),
    ),
    open.kind === "tools" &&
      h(
        "div.mode",
        null,
        segments({
          label: "How to enter the arguments",
          value: ui.raw === null ? "form" : "json",
          options: [
            ["form", "Form"],
            ["json", "JSON"],
          ],
          onchange: setMode,
        }),
      ),
    h(
      "form",
      {
        onsubmit: (event) => (event.preventDefault(), start()),
        onkeydown: (event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && start(),
      },
      ui.raw === null ? open.form.view() : rawField(),
      general(),
      submit(open.kind === "tools" ? "Call" : "Get the prompt"),
    ),
    outcome(),
  ];
}

export function hints(item) {
  return h(
    "p.hints",
    null,
    item.read_only && tag("read only", "good"),
    item.idempotent && tag("idempotent", "good"),
    !item.read_only && item.destructive && tag("may destroy", "warn"),
    item.open_world && tag("open world"),
    item.stale && tag("stale", "warn"),
    (item.tags ?? []).map((each) => tag(each)),
  );
}

function promptSchema(item) {
  const given = item.arguments ?? [];
  const properties = Object.fromEntries(
    given.map(({ name, description }) => [name, { type: "string", ...(description && { description }) }]),
  );
  return {
    type: "object",
    properties,
    required: given.filter((each) => each.required).map((each) => each.name),
    additionalProperties: false,
  };
}

function rawField() {
  const wrong = problemOf(ui.raw);
  return h(
    "div.field",
    null,
    h("textarea.json.whole", {
      "aria-label": "Arguments as JSON",
      value: ui.raw,
      rows: Math.min(24, 4 + ui.raw.split("\n").length),
      spellcheck: "false",
      oninput: (event) => ((ui.raw = event.target.value), changed()),
    }),
    wrong && h("p.problem", null, icon("warn"), line(wrong)),
  );
}

function setMode(mode) {
  if (mode === "json") ui.raw = safeJson(open.form.value ?? {}, 2);
  else if (!problemOf(ui.raw)) {
    open.form = new SchemaForm(open.form.root, parseExactly(ui.raw), changed);
    ui.raw = null;
  }
  redraw();
}

function general() {
  return h(
    "div.general",
    null,
    h(
      "label",
      null,
      h("span", null, "as principal"),
      h("input", {
        value: ui.principal,
        placeholder: "none",
        autocomplete: "off",
        oninput: (event) => ((ui.principal = event.target.value), redraw()),
      }),
    ),
    open.kind === "tools" &&
      h(
        "label",
        null,
        h("span", null, "timeout, seconds"),
        h("input", {
          value: ui.timeout,
          inputmode: "decimal",
          placeholder: "as configured",
          oninput: (event) => ((ui.timeout = event.target.value), redraw()),
        }),
      ),
  );
}

function submit(word) {
  const other = ui.raw === null ? (open.form?.unplaced() ?? []) : problemOf(ui.raw) ? [] : open.problems;
  return [
    other.length > 0 &&
      h(
        "ul.problem-list",
        null,
        other.slice(0, 5).map((each, index) => h("li.problem", { key: index }, icon("warn"), line(each, 300))),
      ),
    h(
      "div.actions.submit",
      null,
      h(
        "button.primary",
        { type: "submit", disabled: !state.allowed || Boolean(open.run?.busy) || (ui.raw !== null && Boolean(problemOf(ui.raw))) },
        icon("play"),
        h("span", null, open.run?.busy ? "running …" : word),
      ),
      open.problems.length
        ? h(
            "span.warn-text",
            { role: "status" },
            `${open.problems.length === 1 ? "1 problem" : `${open.problems.length} problems`}: the engine would not send this.`,
          )
        : h("span.mute", null, "Ctrl+Enter"),
    ),
    problem(open.error),
  ];
}

function changed() {
  clearTimeout(ui.checking);
  ui.checking = setTimeout(check, CHECK_AFTER);
  redraw();
}

/** The engine's own check: the one that a call runs through. */
async function check() {
  const asked = open;
  if (asked.kind !== "tools" || (ui.raw !== null && problemOf(ui.raw))) return;
  try {
    const { problems } = await postText("check", body(asked.name));
    if (asked !== open) return;
    open.problems = problems;
  } catch (error) {
    if (asked !== open) return;
    open.problems = [error.message];
  }
  redraw();
}

/** The request as text, so that numbers are sent as they were typed. */
function body(name, more = {}) {
  const args = ui.raw ?? JSON.stringify(open.form.value ?? {});
  return `${JSON.stringify({ name, ...more }).slice(0, -1)},"arguments":${args}}`;
}

// -- running ------------------------------------------------------------------------------------

async function start() {
  const mine = open;
  if (!state.allowed || mine.run?.busy) return;
  const options = { ...(ui.principal && { principal: ui.principal }), ...(Number(ui.timeout) > 0 && { timeout: Number(ui.timeout) }) };
  const args = mine.form ? (ui.raw === null ? structuredCopy(mine.form.value) : parseExactly(ui.raw)) : mine.uri;
  const run = { key: `${Date.now()}-${runs.length}`, at: Date.now() / 1000, kind: mine.kind, name: mine.name, args, busy: true };
  mine.run = run;
  if (mine.form) mine.form.strict = true;
  mine.error = null;
  runs.unshift(run);
  runs.length = Math.min(runs.length, MOST_RUNS);
  redraw();
  try {
    if (mine.kind === "tools") run.id = (await postText("call", body(mine.name, options))).id;
    else if (mine.kind === "prompts")
      run.answer = (await post("prompt", { name: mine.name, arguments: mine.form.value, ...options })).result;
    else run.answer = (await post("resource", { uri: mine.uri, ...(mine.server && { server: mine.server }), ...options })).result;
  } catch (error) {
    run.error = error;
  }
  if (!run.id) run.busy = false;
  run.took = Date.now() / 1000 - run.at;
  redraw();
}

const structuredCopy = (value) => parseExactly(JSON.stringify(value ?? {}));

function outcome() {
  const { run } = open;
  const earlier = runs.filter((each) => each !== run && each.kind === open.kind && each.name === open.name);
  return [
    run && h("div.outcome", { key: run.key }, outcomeOf(run)),
    earlier.length > 0 &&
      section(
        "Earlier here",
        h(
          "ul.plain",
          null,
          earlier.slice(0, 8).map((each) =>
            h(
              "li",
              { key: each.key },
              button("repeat", () => repeat(each), { name: "reload", kind: "small", disabled: Boolean(run?.busy) }),
              " ",
              stateOf(each),
              " ",
              h("span.mute", null, ago(each.at)),
              " ",
              h("code", null, line(JSON.stringify(each.args), 80)),
            ),
          ),
        ),
      ),
  ];
}

function repeat(run) {
  if (open.form) open.form = new SchemaForm(open.form.root, run.args, changed);
  else open.uri = run.args;
  ui.raw = null;
  start();
}

function stateOf(run) {
  const call = state.calls.get(run.id);
  if (call) return verdict(call);
  return run.error ? tag("failed", "bad") : run.busy ? tag("running") : tag("answered", "good");
}

function outcomeOf(run) {
  if (run.error) return problem(run.error);
  if (!run.id)
    return run.busy
      ? h("p.empty", null, "Waiting for the server …")
      : section(
          [`Answer`, h("span.mute", null, ` after ${duration(run.took)}`)],
          result(run.answer, (uri) => openResource(uri, null)),
        );
  const call = state.calls.get(run.id);
  if (!call) return h("p.empty", null, run.busy ? "Sending …" : "This call is no longer kept.");
  if (call.state === "ended") run.busy = false;
  const found = verdictOf(call);
  const questions = state.questions.filter((question) => question.call === run.id);
  return [
    h(
      "div.hero",
      { class: found.tone, role: "status" },
      h(
        "p.verdict",
        { class: found.tone },
        icon(found.icon, found.tone === "live" ? "turning" : ""),
        h("span", null, found.long),
        call.duration !== null && h("span.mute", null, ` in ${duration(call.duration)}`),
      ),
      call.state === "running" ? progressOf(call) : h("p.reason", null, line(call.reason, 500)),
    ),
    questions.map((question) => card(question)),
    h(
      "div.actions",
      null,
      call.state === "running" && button("Cancel", () => report(() => post(`calls/${run.id}/cancel`)), { name: "stop", kind: "small" }),
      button("All about this call", () => go("calls", run.id), { name: "calls", kind: "small" }),
    ),
    errorBox(call.error),
    call.state === "ended" &&
      awaited(
        loaded(`calls/${run.id}?values=1`, "ended"),
        (whole) =>
          whole.result !== null &&
          whole.result !== undefined &&
          section(
            "Result",
            result(whole.result, (uri) => openResource(uri, call.server)),
          ),
      ),
  ];
}

function progressOf(call) {
  const { fraction, message, progress } = call.progress ?? {};
  if (!call.progress) return h("p.reason", null, "Waiting for the result …");
  return h(
    "p.reason",
    null,
    h(
      "progress",
      fraction === null || fraction === undefined ? { "aria-label": "progress" } : { max: 1, value: fraction, "aria-label": "progress" },
    ),
    " ",
    line(message ?? progress, 200),
  );
}

// -- resources ----------------------------------------------------------------------------------

function resource(item) {
  return [
    h("div.about", null, item.mime_type && tag(item.mime_type), item.description && h("div.description", null, block(item.description))),
    readForm(item.uri ?? item.uri_template, item.server, Boolean(item.uri_template)),
  ];
}

/** A resource that a result named: it may be in no list. */
function reading(given, close) {
  return pane(line(given.uri, 200), () => ((ui.given = null), close()), readForm(given.uri, given.server, false));
}

function readForm(address, server, template) {
  open.uri ??= address;
  open.server = server;
  return [
    h(
      "form",
      { onsubmit: (event) => (event.preventDefault(), start()) },
      h(
        "div.field",
        null,
        h("div.label", null, h("label.name", { for: "uri" }, "URI"), template && h("span.type", null, "fill in what stands in braces")),
        h("input.mono", {
          id: "uri",
          value: open.uri,
          spellcheck: "false",
          autocomplete: "off",
          oninput: (event) => ((open.uri = event.target.value), redraw()),
        }),
      ),
      general(),
      submit("Read"),
    ),
    outcome(),
  ];
}
