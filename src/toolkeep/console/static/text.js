/*
 * Text that others wrote, shown as it is: isolated from the direction of the page, with its control
 * characters visible, and cut when it is long.
 *
 * Owns the custom element <tk-text>. It never shows a control, bidi or invisible character as
 * itself, so a text cannot pretend to be another one.
 */

import { h, update } from "./dom.js";

const FIRST = 1200; // characters shown before "show more"
const STEP = 60_000; // characters that each "show more" adds
const MOST = 400_000; // characters that the page shows of one text

const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
const NAMES = {
  0x1b: "ESC",
  0x0d: "CR",
  0x00: "NUL",
  0x07: "BEL",
  0x08: "BS",
  0xad: "SHY",
  0x200b: "ZWSP",
  0x200e: "LRM",
  0x200f: "RLM",
  0x202a: "LRE",
  0x202b: "RLE",
  0x202c: "PDF",
  0x202d: "LRO",
  0x202e: "RLO",
  0x2066: "LRI",
  0x2067: "RLI",
  0x2068: "FSI",
  0x2069: "PDI",
  0xfeff: "BOM",
};

const numberOf = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
const nameOf = (character) => NAMES[character.codePointAt(0)] ?? numberOf(character);

/** A text in pieces: plain ones as strings, invisible characters as marks with a name. */
export function pieces(text) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(INVISIBLE)) {
    if (match.index > from) found.push(text.slice(from, match.index));
    found.push(h("span.ctl", { title: `${numberOf(match[0])}: a character that is not visible` }, nameOf(match[0])));
    from = match.index + match[0].length;
    if (found.length > 4000) break; // a text of nothing else
  }
  if (from < text.length) found.push(text.slice(from, from + MOST));
  return found;
}

/** For places that hold texts only (options, placeholders, attributes): marks in words. */
export function plain(value, most = 100) {
  const text = String(value ?? "");
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return cut.replace(INVISIBLE, (found) => `⟨${nameOf(found)}⟩`);
}

/** Whether a text holds characters that a reader does not see. */
export function hasInvisible(text) {
  return text.search(INVISIBLE) >= 0;
}

/** One line of foreign text: a name, a message. Line breaks are shown as a space. */
export function line(value, most = 300) {
  const text = String(value ?? "");
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return h("bdi", null, pieces(cut.replace(/[\t\n]+/g, " ")));
}

/** A block of foreign text of any length; it keeps how much of it is shown. */
export function block(value, props) {
  return h("tk-text", { ...props, ".text": String(value ?? "") });
}

class LongText extends HTMLElement {
  #text = null;
  #shown = FIRST;

  set text(value) {
    if (value === this.#text) return;
    this.#text = value;
    this.#shown = FIRST;
    this.#render();
  }

  #render() {
    const text = this.#text;
    // A little more than the limit is shown as a whole: no button for one line.
    const shown = text.length <= this.#shown * 1.2 ? text.length : this.#shown;
    const left = text.length - shown;
    update(this, [
      h("bdi.text", null, pieces(text.slice(0, shown))),
      left > 0 &&
        h(
          "div.more",
          null,
          `… ${left.toLocaleString("en")} more characters `,
          shown < MOST
            ? h("button.quiet", { type: "button", onclick: () => this.#more() }, left > STEP ? "show more" : "show all")
            : "(too long for the page: copy the call to see all)",
        ),
    ]);
  }

  #more() {
    this.#shown = Math.min(this.#shown + STEP, MOST);
    this.#render();
  }
}

customElements.define("tk-text", LongText);
