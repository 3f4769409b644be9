/*
 * Charts as SVG: calls per second, and a histogram of latency. Pure functions of their numbers; each has
 * a text for those who do not see it.
 */

import { h } from "./dom.js";
import { count, duration } from "./format.js";

/** Bars of calls per second; those that failed in another shade at the foot. */
export function bars(rates, { width = 120, height = 24, label = "calls per second" } = {}) {
  const most = Math.max(1, ...rates.map((rate) => rate.calls));
  const step = width / Math.max(1, rates.length);
  const now = rates.at(-1)?.calls ?? 0;
  const bar = (rate, index, kind, of) =>
    of > 0 &&
    h("rect", {
      class: kind,
      x: (index * step).toFixed(2),
      width: Math.max(0.5, step - (step > 3 ? 1 : 0)).toFixed(2),
      y: (height - (of / most) * height).toFixed(2),
      height: ((of / most) * height).toFixed(2),
    });
  return h(
    "svg.chart",
    {
      viewBox: `0 0 ${width} ${height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `${label}: ${count(now)} now, at most ${count(most)}`,
    },
    h("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height }),
    rates.map((rate, index) => [bar(rate, index, "calls", rate.calls), bar(rate, index, "errors", rate.errors)]),
  );
}

const DECADES = [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100, 1000];

/** Latency on a logarithmic axis, with the percentiles as lines. */
export function histogram(series, { from, to }) {
  const { buckets, count: total, p50, p95, p99 } = series;
  const [width, height] = [900, 110];
  const low = Math.log10(from);
  const scale = width / (Math.log10(to) - low);
  const x = (seconds) => Math.min(Math.max((Math.log10(Math.max(seconds, 1e-6)) - low) * scale, 0), width);
  const most = Math.max(1, ...buckets.map(([, number]) => number));
  const bar = Math.max(1.5, Math.log10(1.105) * scale - 0.6); // a bucket is about 10% wide
  const decades = DECADES.filter((at) => at >= from * 0.99 && at <= to * 1.01);
  const marks = [
    ["p50", p50],
    ["p95", p95],
    ["p99", p99],
  ].filter(([, value]) => value !== null);
  const upright = (kind, at) => h("line", { class: kind, x1: x(at).toFixed(1), x2: x(at).toFixed(1), y1: 0, y2: height });
  return h(
    "div",
    null,
    h(
      "svg.chart.histogram",
      {
        viewBox: `0 0 ${width} ${height}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `latency of ${count(total)} calls: p50 ${duration(p50)}, p95 ${duration(p95)}, p99 ${duration(p99)}`,
      },
      decades.map((at) => upright("grid", at)),
      buckets.map(([upper, number]) => {
        const tall = Math.max(2, (number / most) * (height - 6));
        return h("rect", {
          class: "calls",
          x: (x(upper) - bar).toFixed(1),
          width: bar.toFixed(1),
          y: (height - tall).toFixed(1),
          height: tall.toFixed(1),
        });
      }),
      h("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height }),
      marks.map(([name, value]) => upright(`mark ${name}`, value)),
    ),
    h(
      "p.axis-text",
      { "aria-hidden": "true" },
      decades.map((at) => h("span", null, tick(at))),
    ),
  );
}

const tick = (seconds) =>
  seconds < 0.001 ? `${Math.round(seconds * 1e6)} µs` : seconds < 1 ? `${Math.round(seconds * 1e3)} ms` : `${Math.round(seconds)} s`;

/** The axis that holds all series: whole decades. */
export function range(all) {
  const uppers = all.flatMap((series) => series.buckets.map(([upper]) => upper));
  if (!uppers.length) return { from: 1e-3, to: 1 };
  const from = 10 ** Math.floor(Math.log10(Math.min(...uppers) / 1.11));
  const to = 10 ** Math.ceil(Math.log10(Math.max(...uppers)) - 1e-9);
  return { from: Math.max(from, 1e-5), to: Math.max(to, from * 10) };
}
