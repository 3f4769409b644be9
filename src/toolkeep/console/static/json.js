/*
 * <tk-json>: JSON as a tree that opens step by step. Owns which parts are open. Everything in it is
 * foreign data: names and strings go through text.js, and long lists are shown in pages.
 */

import { h, update } from "./dom.js";
import { block, line, pieces } from "./text.js";

const PAGE = 100;
const OPEN_ENTRIES = 30; // containers of at most that many entries are open at first

/** Parse JSON and keep integers that a JavaScript number cannot hold. */
export function parseExactly(text) {
  if (!JSON.rawJSON) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(context.source)
      ? JSON.rawJSON(context.source)
      : value,
  );
}

export function json(value, props) {
  return h("tk-json", { ...props, ".value": value });
}

class Tree extends HTMLElement {
  #value;
  #open = new Map();
  #pages = new Map();

  set value(value) {
    if (value === this.#value && this.firstChild) return;
    this.#value = value;
    this.#render();
  }

  #render() {
    update(this, [h("div.tree", null, this.#node(this.#value, null, "", 0))]);
  }

  #node(value, name, path, depth) {
    const label = name !== null && [typeof name === "number" ? h("span.index", null, name) : h("span.name", null, line(name)), ": "];
    if (!isContainer(value)) return h("div.leaf", null, label, scalar(value));
    const list = Array.isArray(value);
    const keys = list ? value : Object.keys(value);
    const open = this.#open.get(path) ?? (depth < 3 && keys.length <= OPEN_ENTRIES);
    const size = list ? `[${keys.length}]` : `{${keys.length}}`;
    if (!keys.length) return h("div.leaf", null, label, h("span.punct", null, list ? "[]" : "{}"));
    const most = this.#pages.get(path) ?? PAGE;
    const shown = open && (list ? value.slice(0, most).map((_, index) => index) : keys.slice(0, most));
    return h(
      "details",
      { open, ontoggle: (event) => this.#toggle(path, event.target.open, open) },
      h("summary", null, label, h("span.punct", null, size), !open && h("span.preview", null, " ", line(preview(value), 90))),
      open && [
        shown.map((key) => this.#node(value[key], key, `${path}/${key}`, depth + 1)),
        keys.length > most &&
          h(
            "button.quiet",
            { type: "button", onclick: () => this.#more(path, most) },
            `show ${Math.min(PAGE, keys.length - most)} more of ${keys.length}`,
          ),
      ],
    );
  }

  #toggle(path, open, before) {
    if (open === before) return;
    this.#open.set(path, open);
    this.#render();
  }

  #more(path, most) {
    this.#pages.set(path, most + PAGE);
    this.#render();
  }
}

function isContainer(value) {
  return typeof value === "object" && value !== null && !JSON.isRawJSON?.(value);
}

function scalar(value) {
  if (typeof value === "string") {
    if (value.length > 300 || value.includes("\n")) return h("div.string.long", null, block(value));
    return h("bdi.string", null, '"', pieces(value), '"');
  }
  const kind = value === null || typeof value === "boolean" ? "word" : "number";
  return h(`span.${kind}`, null, JSON.stringify(value) ?? "–");
}

/** The beginning of a container in one line, without walking all of it. */
function preview(value) {
  const entries = Array.isArray(value) ? value.slice(0, 4) : Object.entries(value).slice(0, 4);
  const short = (item) => (isContainer(item) ? "…" : String(JSON.stringify(item)).slice(0, 30));
  return entries.map((entry) => (Array.isArray(value) ? short(entry) : `${entry[0].slice(0, 30)}: ${short(entry[1])}`)).join(", ");
}

customElements.define("tk-json", Tree);
