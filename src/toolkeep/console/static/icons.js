/*
 * Icons: one path each, on a grid of 16, drawn in the colour of the text. They stand beside a word and
 * are hidden from screen readers.
 */

import { h } from "./dom.js";

const PATHS = {
  ran: "M8 1.7a6.3 6.3 0 1 0 0 12.6A6.3 6.3 0 0 0 8 1.7M5.2 8.2l2 2 3.7-4.2",
  notrun: "M8 1.7a6.3 6.3 0 1 0 0 12.6A6.3 6.3 0 0 0 8 1.7M3.6 3.6l8.8 8.8",
  unknown: "M8 1.7a6.3 6.3 0 1 0 0 12.6A6.3 6.3 0 0 0 8 1.7M6.2 6.3c0-2.3 3.6-2.3 3.6-.1 0 1.4-1.8 1.6-1.8 3M8 11.3v.2",
  toolerror: "M8 1.7a6.3 6.3 0 1 0 0 12.6A6.3 6.3 0 0 0 8 1.7M8 4.8v3.9M8 11v.2",
  running: "M8 1.7a6.3 6.3 0 1 1-6.3 6.3",
  warn: "M8 2 14.5 13.5h-13zM8 6.4v3.2M8 11.4v.2",
  ok: "M3 8.4l3.4 3.4L13 4.6",
  down: "M4 4l8 8M12 4l-8 8",
  lock: "M4 7.2h8v6H4zM5.6 7.2V5.4a2.4 2.4 0 0 1 4.8 0v1.8",
  dot: "M8 5.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5",
  close: "M4.5 4.5l7 7M11.5 4.5l-7 7",
  plus: "M8 3.5v9M3.5 8h9",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.4 10.4l3.4 3.4",
  copy: "M5.5 5.5h7.7v7.7H5.5zM3 10.4V3h7.4",
  reload: "M13 8a5 5 0 1 1-1.6-3.7M13 2v3.2H9.8",
  back: "M10 3 5 8l5 5",
  play: "M4.5 2.8 12.5 8l-8 5.2z",
  pause: "M5.5 3v10M10.5 3v10",
  stop: "M4 4h8v8H4z",
  theme: "M8 1.7a6.3 6.3 0 1 0 0 12.6zM8 1.7a6.3 6.3 0 0 1 0 12.6",
  out: "M2 8h11M9.5 4.5 13 8l-3.5 3.5",
  in: "M14 8H3M6.5 4.5 3 8l3.5 3.5",
  servers: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.2M5 11h.2",
  calls: "M2 4h3l1.6 8L9 3l2 6h3",
  try: "M4.5 2.8 12.5 8l-8 5.2z",
  wire: "M2 5.5h11M10.5 3 13 5.5 10.5 8M14 11H3M5.5 8.5 3 11l2.5 2.5",
  catalogue: "M2.5 3.5h4.3c.8 0 1.2.5 1.2 1.2v8c0-.7-.4-1.2-1.2-1.2H2.5zM13.5 3.5H9.2C8.4 3.5 8 4 8 4.7v8c0-.7.4-1.2 1.2-1.2h4.3z",
  sessions: "M6 7.5a2.3 2.3 0 1 0 0-4.6 2.3 2.3 0 0 0 0 4.6M2 13.2c0-4.7 8-4.7 8 0M11 3.2a2.2 2.2 0 0 1 0 4.2M12 9.6c1.3.5 2 1.7 2 3.6",
  questions: "M2.5 3h11v8H8l-3 2.5V11H2.5zM6.7 5.8c0-1.5 2.6-1.5 2.6-.1 0 .9-1.3 1-1.3 2M8 9.2v.1",
  latency: "M2.5 13.5v-3M6.2 13.5V4.5M9.8 13.5V7.5M13.5 13.5V10",
  keyboard: "M1.8 4.5h12.4v7H1.8zM4.5 7h.1M7 7h.1M9.5 7h.1M12 7h.1M5 9.3h6",
  down2: "M8 2.5v8M4.8 7.5 8 10.7l3.2-3.2M3 13.5h10",
  gap: "M2 8h3M11 8h3M7 5 6 11M10 5l-1 6",
};

export function icon(name, kind = "") {
  return h(
    "svg.icon",
    { class: kind, viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true", focusable: "false" },
    h("path", { d: PATHS[name] ?? PATHS.dot }),
  );
}
