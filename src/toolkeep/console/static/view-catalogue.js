/* Catalogue: what all servers offer, with search, tags and hints; and what changed since when, word by word. */

import { loaded } from "./api.js";
import { go, redraw } from "./app.js";
import { difference } from "./diff.js";
import { h } from "./dom.js";
import { ago, bytes, count, moment } from "./format.js";
import { icon } from "./icons.js";
import { json } from "./json.js";
import { Pages } from "./pages.js";
import { awaited, button, choice, facts, pane, problem, search, section, segments, split, tag } from "./parts.js";
import { rows } from "./rows.js";
import { state } from "./state.js";
import { block, line, pieces, plain } from "./text.js";
import { hints } from "./view-try.js";

const KINDS = [
  ["tools", "Tools"],
  ["prompts", "Prompts"],
  ["resources", "Resources"],
  ["templates", "Templates"],
  ["changes", "Changes"],
];
const MARKS = { added: ["plus", "good"], removed: ["down", "bad"], changed: ["reload", "warn"] };
const AROUND = 160; // characters shown around a change

const items = new Pages("items", redraw);
const changes = new Pages("changes", redraw);
const ui = { text: "" };

export const title = "Catalogue";

export function view(route) {
  const kind = route.params.get("kind") ?? "tools";
  const kinds = segments({ label: "What to list", value: kind, options: KINDS, onchange: (next) => go("catalogue", "", { kind: next }) });
  return kind === "changes" ? changesView(route, kinds) : listView(route, kind, kinds);
}

// -- what there is ------------------------------------------------------------------------------

function listView(route, kind, kinds) {
  const server = route.params.get("server") ?? "";
  const label = route.params.get("tag") ?? "";
  const query = { kind, q: ui.text, ...(server && { server }), ...(label && { tag: label }) };
  items.use(`catalogue?${new URLSearchParams(query)}`, state.revision);
  const keep = (more) => Object.fromEntries(Object.entries({ kind, server, tag: label, ...more }).filter(([, value]) => value));
  const tags = items.answer?.tags ?? [];
  return {
    tools: [
      kinds,
      search({ value: ui.text, label: `Search ${kind}`, oninput: (text) => ((ui.text = text), redraw()) }),
      choice({
        label: "Server",
        value: server,
        options: [["", "every server"], ...state.servers.map(({ name }) => [name, plain(name, 60)])],
        onchange: (name) => go("catalogue", "", keep({ server: name })),
      }),
      tags.length > 0 &&
        choice({
          label: "Tag",
          value: label,
          options: [["", "every tag"], ...tags.slice(0, 200).map((each) => [each, plain(each, 60)])],
          onchange: (each) => go("catalogue", "", keep({ tag: each })),
        }),
    ],
    body: split(
      [
        problem(items.error),
        h(
          "div.table.tall",
          null,
          rows({
            label: kind,
            items: items.items,
            keyOf,
            columns: COLUMNS,
            selected: route.arg || null,
            onrange: (first, last) => items.want(first, last),
            onselect: (item) => !item.pending && go("catalogue", keyOf(item), keep({})),
            empty: items.answer ? "Nothing matches." : "Loading …",
          }),
        ),
        h("p.foot", null, `${count(items.items.length)} ${kind}, revision ${state.revision} of the catalogue.`),
      ],
      route.arg && details(kind, route.arg, () => go("catalogue", "", keep({}))),
    ),
  };
}

const keyOf = (item) => (item.pending ? `pending-${item.index}` : item.name);

const COLUMNS = [
  {
    title: "Name",
    width: "minmax(160px, 1fr)",
    class: "two",
    cell: (item) =>
      item.pending
        ? h("span.mute", null, "…")
        : [h("span.name", null, line(item.name, 160)), h("span.mute", null, line(item.uri ?? item.uri_template ?? item.title ?? "", 120))],
  },
  {
    title: "Description",
    width: "minmax(160px, 2fr)",
    drop: 6,
    class: "clamp",
    cell: (item) => h("span.mute", null, line(item.description, 240)),
  },
  { title: "Hints", width: "170px", drop: 9, cell: (item) => !item.pending && hints(item) },
  { title: "Changed", width: "92px", drop: 10, cell: (item) => item.changed_at && ago(item.changed_at) },
];

function details(kind, name, close) {
  const query = new URLSearchParams({ kind, name });
  const whole = ui.whole === name;
  const entry = loaded(`item?${query}${whole ? "&whole=1" : ""}`, state.revision);
  return pane(
    line(name, 200),
    close,
    awaited(entry, (item) => {
      const definition = item.definition ?? {};
      return [
        h("div.about", null, hints(item), h("div.description", null, block(definition.description ?? item.description ?? ""))),
        item.truncated &&
          !whole &&
          h(
            "p.hint",
            null,
            `The description has ${bytes(item.description_chars)}. `,
            button("load all of it", () => ((ui.whole = name), redraw()), { kind: "small" }),
          ),
        h(
          "div.actions",
          null,
          button("Try it", () => go("try", name, { kind }), { name: "try", kind: "small primary" }),
          button("What changed", () => go("catalogue", "", { kind: "changes" }), { name: "reload", kind: "small" }),
        ),
        facts([
          ["title", item.title && line(item.title, 200)],
          ["address", (item.uri ?? item.uri_template) && h("code", null, line(item.uri ?? item.uri_template, 400))],
          ["server", line(item.server, 80)],
          ["name for models", item.model_name && h("code", null, line(item.model_name, 160))],
          ["media type", item.mime_type && line(item.mime_type, 80)],
          ["changed", item.changed_at && moment(item.changed_at)],
        ]),
        item.guide && section("Guide", block(item.guide)),
        definition.inputSchema && section("Arguments", json(definition.inputSchema)),
        definition.outputSchema && section("Result", json(definition.outputSchema)),
        item.arguments?.length > 0 &&
          section(
            "Arguments",
            facts(
              item.arguments.map((each) => [line(each.name, 80), [each.required ? tag("required") : "", " ", line(each.description, 300)]]),
            ),
          ),
        section("Definition, as listed", h("details", null, h("summary", null, "JSON"), json(definition))),
      ];
    }),
  );
}

// -- what changed -------------------------------------------------------------------------------

function changesView(route, kinds) {
  changes.use("changes", state.revision);
  return {
    tools: kinds,
    body: split(
      [
        problem(changes.error),
        h(
          "div.table",
          null,
          rows({
            label: "Changes, newest first",
            items: changes.items,
            keyOf: (item) => (item.pending ? `pending-${item.index}` : String(item.id)),
            columns: CHANGES,
            selected: route.arg || null,
            onrange: (first, last) => changes.want(first, last),
            onselect: (item) => !item.pending && go("catalogue", String(item.id), { kind: "changes" }),
            empty: changes.answer ? "Nothing has changed since the console began to look." : "Loading …",
          }),
        ),
      ],
      route.arg && changed(route.arg),
    ),
  };
}

function mark(change) {
  const [name, tone] = MARKS[change] ?? ["dot", "mute"];
  return h(`span.verdict.${tone}`, null, icon(name), h("span", null, line(change, 20)));
}

const CHANGES = [
  { title: "Change", width: "104px", cell: (item) => (item.pending ? "…" : mark(item.change)) },
  { title: "Name", width: "minmax(140px, 1fr)", cell: (item) => h("span.name", null, line(item.name, 160)) },
  { title: "Kind", width: "86px", drop: 5, cell: (item) => h("span.mute", null, line(item.kind, 20)) },
  { title: "When", width: "86px", cell: (item) => item.at && ago(item.at) },
];

function changed(id) {
  const entry = loaded(`changes/${encodeURIComponent(id)}`);
  return pane(
    "Change",
    () => go("catalogue", "", { kind: "changes" }),
    awaited(entry, (item) => {
      const [before, after] = [item.before ?? {}, item.after ?? {}];
      const parts = [
        ["Description", "description"],
        ["Title", "title"],
        ["Arguments", "inputSchema"],
        ["Result", "outputSchema"],
        ["Annotations", "annotations"],
      ];
      const named = parts.map(([, name]) => name);
      const others = (whole) => Object.fromEntries(Object.entries(whole).filter(([name]) => !named.includes(name)));
      return [
        h(
          "div.hero.mute",
          null,
          mark(item.change),
          h(
            "p.reason",
            null,
            h("b", null, line(item.name, 200)),
            item.since
              ? [" at some time between ", moment(item.since), " and ", moment(item.at), ", while no page was open."]
              : [" ", ago(item.at), `, revision ${item.revision}.`],
          ),
        ),
        parts.map(([word, name]) => changePart(word, before[name], after[name])),
        changePart("The rest", others(before), others(after)),
        button("Show it in the catalogue", () => go("catalogue", item.name, { kind: item.kind }), {
          name: "catalogue",
          kind: "small",
        }),
      ];
    }),
  );
}

/** One part of a definition, word by word; nothing where it is the same. */
function changePart(word, before, after) {
  const [old, fresh] = [textOf(before), textOf(after)];
  return old !== fresh && section(word, h("div.diff", null, differenceOf(old, fresh).map(shownPiece)));
}

const textOf = (value) => (value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(ordered(value), null, 2));

/** Keys in one order: only what is said counts, not where. */
function ordered(value) {
  if (Array.isArray(value)) return value.map(ordered);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.keys(value)
      .sort()
      .map((name) => [name, ordered(value[name])]),
  );
}

const MOST_TEXT = 100_000;
const differences = new Map();

/** Kept, because the page is drawn again with every event. */
function differenceOf(before, after) {
  const known = differences.get(before)?.get(after);
  if (known) return known;
  if (differences.size > 50) differences.clear();
  const found = difference(before.slice(0, MOST_TEXT), after.slice(0, MOST_TEXT));
  if (!differences.has(before)) differences.set(before, new Map());
  differences.get(before).set(after, found);
  return found;
}

function shownPiece([kind, text], index, all) {
  if (kind === "gone") return h("del", null, pieces(text));
  if (kind === "new") return h("ins", null, pieces(text));
  const [head, tail] = [index > 0, index < all.length - 1];
  if (text.length <= AROUND * 3) return h("span", null, pieces(text));
  return h(
    "span",
    null,
    head ? pieces(text.slice(0, AROUND)) : "",
    h("span.skipped", null, ` … ${count(text.length - AROUND * (head + tail))} characters are the same … `),
    tail ? pieces(text.slice(-AROUND)) : "",
  );
}
