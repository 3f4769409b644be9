/*
 * A long list of which only the pages that were in sight are here.
 *
 * Owns the pages of one query at a time. While a new query loads, the items of the last one stay. What was
 * not loaded yet stands as `{pending: true}`.
 */

import { get } from "./api.js";

const SIZE = 100;
const MOST_PAGES = 200;

export class Pages {
  #path = null;
  #version = null;
  #asked = new Set();
  #changed;
  items = [];
  answer = null; // the last answer, without what is in `items`
  error = null;

  /** `field`: where an answer has its items; `changed()` is called when there are more. */
  constructor(field, changed) {
    this.field = field;
    this.#changed = changed;
  }

  /** The list behind this path; `version` says when what is known of it is old. */
  use(path, version) {
    if (path === this.#path && version === this.#version) return this;
    this.#path = path;
    this.#version = version;
    this.#asked.clear();
    this.#load(0, true);
    return this;
  }

  /** These rows come into sight. */
  want(first, last) {
    for (let page = Math.floor(first / SIZE); page * SIZE < Math.min(last, this.items.length); page++)
      if (this.items[page * SIZE]?.pending || this.items[Math.min(page * SIZE + SIZE, this.items.length) - 1]?.pending)
        this.#load(page, false);
  }

  async #load(page, fresh) {
    if (this.#asked.has(page) || this.#asked.size > MOST_PAGES) return;
    this.#asked.add(page);
    const path = this.#path;
    const version = this.#version;
    try {
      const answer = await get(`${path}${path.includes("?") ? "&" : "?"}offset=${page * SIZE}&limit=${SIZE}`);
      if (path !== this.#path || version !== this.#version) return; // another query since
      if (fresh || answer.total !== this.items.length)
        this.items = Array.from({ length: answer.total }, (_, index) => (!fresh && this.items[index]) || { pending: true, index });
      answer[this.field].forEach((item, index) => (this.items[page * SIZE + index] = item));
      this.items = [...this.items];
      this.answer = answer;
      this.error = null;
    } catch (error) {
      if (path !== this.#path) return;
      this.error = error;
      this.#asked.delete(page);
      if (fresh) this.items = [];
    }
    this.#changed();
  }
}
