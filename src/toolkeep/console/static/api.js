/*
 * The way to the process: login, requests, the stream of events, and values that are loaded once.
 *
 * Owns the token (in memory and in sessionStorage, never in the address bar) and all addresses, which are
 * relative to the page. It decides nothing about what is shown.
 */

import { parseExactly } from "./json.js";

const BASE = new URL("../", import.meta.url);
const KEPT = "toolkeep-token";
const RETRY_MOST = 10_000; // milliseconds between two attempts to reach the process
const REQUEST_TIMEOUT = 60_000;
const LOADED_MOST = 60; // values kept by `loaded`

class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `HTTP ${status}`);
    Object.assign(this, { status, type: error?.type ?? "", remedy: error?.remedy ?? null, problems: error?.problems ?? [] });
  }
}

export const address = (path) => new URL(`api/${path}`, BASE).href;

/** Take the token out of a link, or of the address bar. */
export function keepToken(text) {
  const token = /token=([^&\s]+)/.exec(text)?.[1] ?? text.trim();
  if (token) sessionStorage.setItem(KEPT, token);
}

export function takeTokenFromAddress() {
  if (!/[#&]token=/.test(location.hash)) return;
  keepToken(location.hash);
  history.replaceState(null, "", `${location.pathname}${location.search}#/servers`);
}

export async function login() {
  const token = sessionStorage.getItem(KEPT);
  if (!token) return false;
  try {
    await send("POST", "login", { token });
    return true;
  } catch (error) {
    if (error.status !== 401) throw error;
    sessionStorage.removeItem(KEPT);
    return false;
  }
}

export const get = (path) => withLogin("GET", path);
export const post = (path, body = {}) => withLogin("POST", path, body);
/** POST a body that is JSON text already, so that numbers stay as they were typed. */
export const postText = (path, text) => withLogin("POST", path, text);

async function withLogin(method, path, body) {
  try {
    return await send(method, path, body);
  } catch (error) {
    if (error.status !== 401 || !(await login())) throw error;
    return send(method, path, body);
  }
}

async function send(method, path, body) {
  let response;
  try {
    response = await fetch(address(path), {
      method,
      credentials: "same-origin",
      signal: AbortSignal.timeout(REQUEST_TIMEOUT),
      ...(body !== undefined && {
        headers: { "content-type": "application/json" },
        body: typeof body === "string" ? body : JSON.stringify(body),
      }),
    });
  } catch (error) {
    throw new ApiError(0, {
      type: "Unreachable",
      message: error.name === "TimeoutError" ? "The process did not answer in time." : "The process does not answer.",
    });
  }
  const text = await response.text();
  if (!response.ok) throw new ApiError(response.status, errorIn(text));
  return text ? parseExactly(text) : null;
}

function errorIn(text) {
  try {
    return JSON.parse(text).error;
  } catch {
    return null;
  }
}

/**
 * Follow the events for ever. `on.state(word)` is told "live", "lost" or "refused" (a login is needed);
 * every other function of `on` gets the data of the event of its name. A stream that ends is normal: the
 * process ends each after a while, and the next one goes on where it was.
 */
export function follow(on) {
  let last = null;
  let wait = 500;
  let timer = 0;
  let source = null;
  let greeted = false;

  function open() {
    clearTimeout(timer);
    source?.close();
    greeted = false;
    source = new EventSource(address(last ? `events?after=${encodeURIComponent(last)}` : "events"));
    for (const name of ["hello", "gap", "batch", "end"])
      source.addEventListener(name, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        if (name === "hello") {
          greeted = true;
          wait = 500;
          on.state("live");
        }
        on[name](JSON.parse(event.data));
      });
    // The browser's own retry would not say why it is refused.
    source.onerror = () => (source.close(), greeted ? open() : lost());
  }

  async function lost() {
    on.state("lost");
    try {
      await get("state");
    } catch (error) {
      if (error.status === 401) return on.state("refused");
    }
    timer = setTimeout(open, wait);
    wait = Math.min(wait * 2, RETRY_MOST);
  }

  open();
  return { again: () => ((wait = 500), open()), forget: () => (last = null) };
}

// -- values that a view needs, loaded once ------------------------------------------------------

const values = new Map();
let whenLoaded = () => {};

export function onLoaded(redraw) {
  whenLoaded = redraw;
}

/** `{value, error, busy}` of a path; loads it when it is not there. `version`: load again when it differs, and show the old one meanwhile. */
export function loaded(path, version = "") {
  let entry = values.get(path);
  if (!entry) {
    values.set(path, (entry = { value: null, error: null, busy: false, version: undefined }));
    if (values.size > LOADED_MOST) values.delete(values.keys().next().value);
  }
  if (entry.version !== version && !entry.busy) {
    entry.busy = true;
    entry.version = version;
    get(path)
      .then((value) => Object.assign(entry, { value, error: null }))
      .catch((error) => Object.assign(entry, { error }))
      .finally(() => ((entry.busy = false), whenLoaded()));
  }
  return entry;
}

export function forgetLoaded() {
  values.clear();
}
