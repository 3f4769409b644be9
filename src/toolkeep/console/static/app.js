/*
 * The frame of the page: login, navigation, keyboard, theme, and drawing.
 *
 * Owns which view is open (it stands in the address, after "#") and when the page is drawn: at most once
 * for each frame, however many events arrive.
 */

import * as api from "./api.js";
import { h, update } from "./dom.js";
import { ago, moment } from "./format.js";
import { icon } from "./icons.js";
import { addTicks, state, takeBatch, takeGap, takeHello, takeSnapshot } from "./state.js";
import { block, line, plain } from "./text.js";
import * as calls from "./view-calls.js";
import * as catalogue from "./view-catalogue.js";
import * as latency from "./view-latency.js";
import * as questions from "./view-questions.js";
import * as servers from "./view-servers.js";
import * as sessions from "./view-sessions.js";
import * as tryIt from "./view-try.js";
import * as wire from "./view-wire.js";

const VIEWS = { servers, calls, try: tryIt, wire, catalogue, sessions, questions, latency };
const NAMES = Object.keys(VIEWS);
const TOAST_TIME = 8000;
const SHORTCUTS = [
  ["1 – 8", "open a view"],
  ["/", "search or filter"],
  ["↑ ↓ Page Home End", "move in a table"],
  ["Enter", "open the row"],
  ["Esc", "close the details"],
  ["p", "hold the calls still, and go on"],
  ["Ctrl Enter", "call, in a form"],
  ["t", "theme: as the system, light, dark"],
  ["?", "this list"],
];
const THEMES = { "": "as the system", light: "light", dark: "dark" };

const ui = { toasts: [], dialog: null, loginError: "", ready: false };
let frame = 0;
let stream = null;

// -- what views use -----------------------------------------------------------------------------

/** Draw the page soon. */
export function redraw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    draw();
  });
}

export function go(name, arg = "", params = {}) {
  const query = new URLSearchParams(params).toString();
  const next = `#/${name}${arg ? `/${encodeURIComponent(arg)}` : ""}${query ? `?${query}` : ""}`;
  if (next === location.hash) redraw();
  else if (name === route().name) {
    history.replaceState(null, "", next); // the back button leads to other views, not through rows
    redraw();
  } else location.hash = next;
}

/** Run an action, and tell what it failed with. */
export async function report(work) {
  try {
    await work();
  } catch (error) {
    toast(error.message, error.remedy);
  }
}

function toast(message, remedy) {
  const one = { key: `${Date.now()}-${Math.random()}`, message, remedy };
  ui.toasts = [...ui.toasts, one].slice(-3);
  setTimeout(() => ((ui.toasts = ui.toasts.filter((each) => each !== one)), redraw()), TOAST_TIME);
  redraw();
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  let arg = rest.join("/");
  try {
    arg = decodeURIComponent(arg);
  } catch {
    // a broken escape in the address: as it is
  }
  return { name: Object.hasOwn(VIEWS, name) ? name : "servers", arg, params: new URLSearchParams(query ?? "") };
}

// -- drawing ------------------------------------------------------------------------------------

let drawn = "";

function draw() {
  const root = document.getElementById("app");
  if (state.connection === "refused") return update(root, [loginPage()]);
  if (!ui.ready)
    return update(root, [h("p.wait", null, state.connection === "lost" ? "The process does not answer. Trying again …" : "Loading …")]);
  const now = route();
  const { tools, body } = VIEWS[now.name].view(now);
  document.title = `${VIEWS[now.name].title} · ${plain(state.process?.program)} · toolkeep`;
  update(root, [
    h("a.skip", { href: "#main", onclick: (event) => (event.preventDefault(), document.getElementById("main").focus()) }, "To the content"),
    rail(now),
    h(
      "main",
      { id: "main", key: now.name, tabindex: -1, class: `view-${now.name}` },
      notices(),
      h("header.bar", null, h("h1", null, VIEWS[now.name].title), h("div.tools", null, tools)),
      h("div.content", null, body),
    ),
    h(
      "div.toasts",
      { role: "status", "aria-live": "polite" },
      ui.toasts.map((each) =>
        h(
          "div.toast",
          { key: each.key },
          icon("warn"),
          h("div", null, block(each.message), each.remedy && h("p.remedy", null, line(each.remedy, 400))),
        ),
      ),
    ),
    h(
      "dialog.help",
      { key: "help", "aria-label": "Keyboard shortcuts", ref: (node) => (ui.dialog = node) },
      h("h2", null, "Keyboard"),
      h(
        "dl.keys",
        null,
        SHORTCUTS.map(([keys, what]) =>
          h(
            "div",
            null,
            h(
              "dt",
              null,
              keys.split(" ").map((key) => (key === "–" ? " – " : h("kbd", null, key))),
            ),
            h("dd", null, what),
          ),
        ),
      ),
      h("form", { method: "dialog" }, h("button.primary", null, "Close")),
    ),
  ]);
  if (drawn !== now.name) document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  drawn = now.name;
}

function badges() {
  const running = state.servers.reduce((sum, server) => sum + server.in_flight, 0);
  const ill = state.servers.filter((server) => server.health === "down" || server.health === "needs authorization").length;
  const open = state.questions.length;
  return {
    servers: ill && h("span.count.bad", { title: "need attention" }, ill),
    calls: running && h("span.count", { title: "in flight" }, running),
    questions: open && h("span.count.warn", { title: "wait for an answer" }, open),
    wire: state.tracing.size && h("span.count", { title: "recorded" }, state.tracing.size),
  };
}

function rail(now) {
  const marks = badges();
  return h(
    "header.rail",
    { key: "rail" },
    h("div.brand", null, h("b", null, "toolkeep"), connection()),
    h(
      "nav",
      { "aria-label": "Views" },
      NAMES.map((name, index) =>
        h(
          "a",
          {
            key: name,
            href: `#/${name}`,
            "aria-current": name === now.name ? "page" : null,
            title: `${VIEWS[name].title} (${index + 1})`,
          },
          icon(name),
          h("span", null, VIEWS[name].title),
          marks[name] || null,
        ),
      ),
    ),
    process(),
  );
}

const CONNECTION = {
  live: ["dot", "good", "live"],
  connecting: ["running", "mute", "connecting"],
  lost: ["warn", "warn", "reconnecting"],
  ended: ["stop", "mute", "closed"],
};

function connection() {
  const [name, tone, word] = CONNECTION[state.connection] ?? CONNECTION.lost;
  return h("span.connection", { class: tone, role: "status" }, icon(name, word === "connecting" ? "turning" : ""), word);
}

function process() {
  const { program, pid, started, version } = state.process ?? {};
  return h(
    "div.process",
    null,
    h(
      "p",
      { title: "This page shows one process, and no other." },
      h("b", null, line(program ?? "this process", 40)),
      h("span", null, `process ${pid}, up for `, ago(started, "")),
      h("span", null, line(state.summary, 80)),
      h("span", null, `toolkeep ${version ?? ""}`),
    ),
    h(
      "div.buttons",
      null,
      h(
        "button.quiet",
        { type: "button", title: `theme: ${THEMES[theme()]} (t)`, "aria-label": `Theme: ${THEMES[theme()]}`, onclick: nextTheme },
        icon("theme"),
      ),
      h(
        "button.quiet",
        { type: "button", title: "keyboard shortcuts (?)", "aria-label": "Keyboard shortcuts", onclick: help },
        icon("keyboard"),
      ),
    ),
  );
}

function notices() {
  return [
    state.connection === "lost" &&
      h(
        "p.banner.warn",
        { role: "alert" },
        icon("warn"),
        "The process does not answer. What you see is from ",
        ago(state.lostAt),
        "; trying again …",
      ),
    state.connection === "ended" &&
      h("p.banner.warn", { role: "alert" }, icon("stop"), "The runtime was closed. What you see is how it was."),
    state.restartedAt &&
      h(
        "p.banner.calm",
        null,
        icon("reload"),
        `The process was restarted: this is process ${state.process.pid}, since ${moment(state.process.started)}. What the other one did is gone.`,
        h(
          "button.quiet",
          { type: "button", "aria-label": "Hide this note", onclick: () => ((state.restartedAt = null), redraw()) },
          icon("close"),
        ),
      ),
  ];
}

function loginPage() {
  const enter = async (event) => {
    event.preventDefault();
    api.keepToken(document.getElementById("token").value);
    ui.loginError = "That is not the link of this process.";
    await begin();
  };
  return h(
    "main.login",
    { key: "login" },
    h("h1", null, "toolkeep console"),
    h(
      "p",
      null,
      state.process
        ? "The process was restarted, and this page's link no longer opens it."
        : "This page opens with a link that holds a token.",
    ),
    h("p", null, "Open the link that the process printed, or paste it here:"),
    h(
      "form",
      { onsubmit: enter },
      h("input", {
        id: "token",
        "aria-label": "Link or token",
        type: "password",
        autocomplete: "off",
        placeholder: "http://127.0.0.1:…/#token=…",
      }),
      h("button.primary", null, "Open"),
    ),
    ui.loginError && h("p.problem", { role: "alert" }, icon("warn"), ui.loginError),
  );
}

// -- keyboard and theme -------------------------------------------------------------------------

function keydown(event) {
  const { target, key } = event;
  const typing = target.matches?.("input, textarea, select") || target.isContentEditable;
  if (ui.dialog?.open) return;
  if (key === "Escape") {
    if (typing && target.id === "search") target.blur();
    else document.querySelector(".detail .back")?.click();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = {
    "/": () => document.getElementById("search")?.focus(),
    p: () => route().name === "calls" && calls.togglePause(),
    t: nextTheme,
    "?": help,
  }[key];
  if (act) act();
  else if (/^[1-8]$/.test(key)) go(NAMES[key - 1]);
  else return;
  event.preventDefault();
}

function theme() {
  return document.documentElement.dataset.theme ?? "";
}

const help = () => ui.dialog.showModal();

function nextTheme() {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(theme()) + 1) % names.length]);
  redraw();
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("toolkeep-theme", name);
}

// -- the beginning, and after a restart ---------------------------------------------------------

async function begin() {
  try {
    await api.login(); // first: a request without it would only be refused
    takeSnapshot(await api.get("state"));
  } catch (error) {
    state.connection = error.status === 401 ? "refused" : "lost";
    if (error.status !== 401) setTimeout(begin, 2000);
    return draw();
  }
  ui.ready = true;
  ui.loginError = "";
  if (state.connection === "refused") state.connection = "connecting";
  draw();
  if (stream) stream.again();
  else stream = api.follow(EVENTS);
  loadTicks();
}

const loadTicks = () => report(async () => addTicks((await api.get("ticks")).ticks));

const EVENTS = {
  state(word) {
    if (state.connection === "ended" && word === "lost") return;
    if (word !== "live") state.lostAt ??= Date.now() / 1000;
    state.connection = word;
    redraw();
  },
  async hello(data) {
    if (!takeHello(data)) return redraw();
    stream.forget();
    api.forgetLoaded();
    await report(async () => takeSnapshot(await api.get("state")));
    await loadTicks();
    redraw();
  },
  gap(data) {
    takeGap(data);
    redraw();
  },
  batch(data) {
    takeBatch(data);
    redraw();
  },
  end() {
    state.connection = "ended";
    redraw();
  },
};

setTheme(localStorage.getItem("toolkeep-theme") ?? "");
api.takeTokenFromAddress();
api.onLoaded(redraw);
addEventListener("hashchange", () => (/[#&]token=/.test(location.hash) ? (api.takeTokenFromAddress(), begin()) : redraw()));
document.addEventListener("keydown", keydown);
setInterval(redraw, 1000); // what is running goes on, and seconds without events pass
begin();
