/*
 * <tk-rows>: a table of any length, of which only the rows in sight are in the page.
 *
 * Owns scrolling, the columns that fit the width, and keyboard use: arrows, Page Up and Down, Home, End and
 * Enter. Rows that arrive above what is being read do not move it. Columns:
 * `{title, width, cell(item), drop, class}`; where they do not all fit, those with the highest `drop` are left out.
 */

import { h, update } from "./dom.js";

const SPARE = 8; // rows above and below the visible ones
let tables = 0;

class Rows extends HTMLElement {
  #model = { items: [], columns: [], keyOf: (item) => item.key };
  #active = null;
  #id = `rows-${++tables}`;
  #frame = 0;
  #sizes = new ResizeObserver(() => this.#later());

  connectedCallback() {
    this.addEventListener("scroll", () => this.#later(), { passive: true });
    this.addEventListener("keydown", (event) => this.#keydown(event));
    this.#sizes.observe(this);
  }

  disconnectedCallback() {
    this.#sizes.disconnect();
    cancelAnimationFrame(this.#frame);
  }

  /** `{label, items, keyOf, columns, selected, onselect(item), rowClass(item), empty, onrange(first, last)}` */
  set model(model) {
    const anchor = this.#anchor();
    this.#model = model;
    if (anchor) this.#keepInPlace(anchor);
    this.#render();
  }

  get #height() {
    return parseFloat(getComputedStyle(this).getPropertyValue("--row-height")) || 32;
  }

  #later() {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#render());
  }

  /** The first row in sight, if the reader has scrolled away from the top. */
  #anchor() {
    if (this.scrollTop < this.#height) return null;
    const index = Math.floor(this.scrollTop / this.#height);
    const item = this.#model.items[index];
    return item && { key: this.#model.keyOf(item), index };
  }

  #keepInPlace({ key, index }) {
    const { items, keyOf } = this.#model;
    if (items[index] && keyOf(items[index]) === key) return;
    const now = items.findIndex((item) => keyOf(item) === key);
    if (now < 0) return;
    this.#render(); // first, so that there is room to scroll
    this.scrollTop += (now - index) * this.#height;
  }

  #render() {
    const { label, items, keyOf, columns, selected, rowClass, empty } = this.#model;
    const fitting = fit(columns, this.clientWidth || 1000);
    const height = this.#height;
    const first = Math.max(0, Math.floor(this.scrollTop / height) - SPARE);
    const last = Math.min(items.length, Math.ceil((this.scrollTop + (this.clientHeight || 600)) / height) + SPARE);
    const active = this.#activeKey();
    this.style.setProperty("--columns", fitting.map((column) => column.width).join(" "));
    this.#model.onrange?.(first, last);
    const rows = items.slice(first, last).map((item, offset) => {
      const key = keyOf(item);
      return h(
        "div.row",
        {
          key,
          role: "row",
          id: this.#rowId(key),
          "aria-rowindex": first + offset + 2,
          "aria-selected": String(key === selected),
          class: [key === active && "active", rowClass?.(item)].filter(Boolean).join(" "),
          onclick: () => this.#choose(item),
        },
        fitting.map((column) => h("div", { role: "gridcell", class: column.class }, column.cell(item))),
      );
    });
    const at = items.findIndex((item) => keyOf(item) === active);
    update(this, [
      h(
        "div.grid",
        {
          role: "grid",
          tabindex: 0,
          "aria-label": label,
          "aria-rowcount": items.length + 1,
          "aria-activedescendant": at >= first && at < last ? this.#rowId(active) : null,
        },
        h(
          "div.head",
          { role: "rowgroup" },
          h(
            "div.row",
            { role: "row", "aria-rowindex": 1 },
            fitting.map((column) => h("div", { role: "columnheader", class: column.class }, column.title)),
          ),
        ),
        items.length > 0 &&
          h("div.body", { role: "rowgroup", style: { height: `${items.length * height}px`, "--above": `${first * height}px` } }, rows),
      ),
      items.length === 0 && h("div.empty", null, empty ?? "Nothing here yet."),
    ]);
  }

  #rowId(key) {
    return `${this.#id}-${encodeURIComponent(key)}`;
  }

  #activeKey() {
    return this.#active ?? this.#model.selected ?? null;
  }

  #choose(item) {
    this.#active = this.#model.keyOf(item);
    this.#model.onselect?.(item);
    this.#render();
  }

  #keydown(event) {
    const { items, keyOf, selected, onselect } = this.#model;
    if (!items.length || event.target.getAttribute("role") !== "grid") return;
    const page = Math.max(1, Math.floor(this.clientHeight / this.#height) - 2);
    const at = items.findIndex((item) => keyOf(item) === this.#activeKey());
    const to = {
      ArrowDown: at + 1,
      ArrowUp: at < 0 ? 0 : at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: items.length - 1,
    }[event.key];
    if (event.key === "Enter" && at >= 0) this.#choose(items[at]);
    else if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    else {
      const index = Math.min(Math.max(to, 0), items.length - 1);
      this.#active = keyOf(items[index]);
      this.#intoView(index);
      // While a row's details are open beside the table, they follow.
      if (selected !== undefined && selected !== null && matchMedia("(min-width: 1000px)").matches) onselect?.(items[index]);
      this.#render();
    }
    event.preventDefault();
  }

  #intoView(index) {
    const height = this.#height;
    const top = index * height;
    const room = this.clientHeight - height; // without the head
    if (top < this.scrollTop) this.scrollTop = top;
    else if (top + height > this.scrollTop + room) this.scrollTop = top + height - room;
  }
}

const GAP = 14; // as in console.css

/** The columns that the width has room for, each with its least width. */
function fit(columns, width) {
  let left = columns;
  const needed = () => left.reduce((sum, column) => sum + parseFloat(/\d+/.exec(column.width)?.[0] ?? 80) + GAP, GAP);
  for (const column of columns.filter((each) => each.drop).sort((a, b) => b.drop - a.drop)) {
    if (needed() <= width) break;
    left = left.filter((each) => each !== column);
  }
  return left;
}

customElements.define("tk-rows", Rows);

/** A table; the model as in `Rows.model`. */
export function rows(model) {
  return h("tk-rows", { ".model": model });
}
