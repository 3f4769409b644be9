/*
 * Numbers and times as a reader wants them. Pure functions of their arguments, and the custom element
 * <tk-ago>, which keeps "12 s ago" true without a change of the page around it.
 */

import { h } from "./dom.js";

/** Seconds: 0.4 ms, 12 ms, 1.24 s, 3 min 5 s. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0.00095) return `${Math.max(0, Math.round(seconds * 1e6))} µs`;
  if (seconds < 0.00995) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1e3)} ms`;
  if (seconds < 9.995) return `${seconds.toFixed(2)} s`;
  if (seconds < 59.5) return `${seconds.toFixed(1)} s`;
  return span(seconds);
}

/** A longer time, in its two largest units: 3 min 5 s, 2 h 10 min, 4 d 3 h. */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const units = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = units.findIndex(([size]) => whole >= size);
  const [size, name] = units[first];
  const [small, smallName] = units[first + 1];
  const rest = Math.floor((whole % size) / small);
  return `${Math.floor(whole / size)} ${name}${rest ? ` ${rest} ${smallName}` : ""}`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  if (count < 1000) return `${count} B`;
  if (count < 999_500) return `${(count / 1e3).toFixed(count < 9_950 ? 1 : 0)} kB`;
  return `${(count / 1e6).toFixed(1)} MB`;
}

export function count(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en");
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  return share && share < 0.01 ? "<1%" : `${Math.round(share * 100)}%`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

const two = (number) => String(number).padStart(2, "0");

/** The time of day, with milliseconds. `at` is in seconds since the epoch. */
export function clock(at, milliseconds = true) {
  const time = new Date(at * 1000);
  const text = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return milliseconds ? `${text}.${String(time.getMilliseconds()).padStart(3, "0")}` : text;
}

export function moment(at) {
  const time = new Date(at * 1000);
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${clock(at, false)}`;
}

/** "12 s ago", which goes on counting; with another word, or none, in place of "ago". */
export function ago(at, word = "ago") {
  return at ? h("tk-ago", { ".word": word, ".at": at, title: moment(at) }) : "–";
}

const living = new Set();

class Ago extends HTMLElement {
  set at(value) {
    this.moment = value;
    this.tick();
  }
  connectedCallback() {
    living.add(this);
  }
  disconnectedCallback() {
    living.delete(this);
  }
  tick() {
    const seconds = Date.now() / 1000 - this.moment;
    const text = seconds < 1.5 && this.word ? "now" : `${span(seconds).split(/(?<=\D) /)[0]} ${this.word}`.trim();
    if (this.textContent !== text) this.textContent = text;
  }
}

customElements.define("tk-ago", Ago);
setInterval(() => living.forEach((element) => element.tick()), 1000);
