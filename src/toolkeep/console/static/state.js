/*
 * What the page knows of the runtime: the last snapshot, and the events since.
 *
 * Owns the lists that the views show, each bounded. Changes them only by what the process said; says so when
 * something is missing (gaps) or when the process is another one (restart).
 */

const MOST_CALLS = 1000;
const MOST_NOTES = 400;
const MOST_EXCHANGES = 1000;
const MOST_TICKS = 300;
const MOST_GAPS = 20;

export const state = {
  connection: "connecting", // connecting, live, lost, refused, ended
  lostAt: null,
  restartedAt: null,
  process: null,
  allowed: false,
  summary: "",
  revision: 0,
  recordingSince: null,
  servers: [],
  questions: [],
  calls: new Map(), // by id, oldest first
  gaps: [],
  notes: [],
  ticks: [],
  wire: new Map(), // by id, oldest first
  tracing: new Set(),
  dropped: 0, // calls that this page no longer keeps
};

export function serverNamed(name) {
  return state.servers.find((server) => server.name === name);
}

/** A snapshot: `GET api/state`. */
export function takeSnapshot(snapshot) {
  const { process, allowed, summary, revision, servers, questions } = snapshot;
  Object.assign(state, { process, allowed, summary, revision, servers, questions, recordingSince: snapshot.recording_since });
  state.tracing = new Set(servers.filter((server) => server.traced).map((server) => server.name));
}

/** The first event of a connection. True if the process is another one: what is held is of no use. */
export function takeHello({ process }) {
  const restarted = state.process !== null && state.process.instance !== process.instance;
  if (restarted) {
    state.restartedAt = Date.now() / 1000;
    for (const list of [state.calls, state.wire]) list.clear();
    Object.assign(state, { gaps: [], notes: [], ticks: [], questions: [], dropped: 0, tracing: new Set() });
  }
  state.process = process;
  state.recordingSince ??= process.now;
  state.lostAt = null;
  return restarted;
}

export function takeGap({ missed, reason }) {
  state.gaps.push({ key: `gap-${state.gaps.length}-${Date.now()}`, gap: true, began: Date.now() / 1000, missed, reason });
  if (state.gaps.length > MOST_GAPS) state.gaps.shift();
}

export function takeBatch(batch) {
  for (const call of batch.calls ?? []) state.calls.set(call.id, call);
  state.dropped += trim(state.calls, MOST_CALLS);
  for (const exchange of batch.wire ?? []) state.wire.set(exchange.id, exchange);
  trim(state.wire, MOST_EXCHANGES);
  if (batch.notes) state.notes = [...state.notes, ...batch.notes].slice(-MOST_NOTES);
  if (batch.tick) addTicks([batch.tick]);
  if (batch.servers) state.servers = batch.servers;
  if (batch.questions) state.questions = batch.questions;
  if (batch.revision !== undefined) state.revision = batch.revision;
  if (batch.tracing) state.tracing = new Set(batch.tracing);
}

export function addTicks(ticks) {
  const known = new Set(state.ticks.map((tick) => Math.round(tick.at)));
  const fresh = ticks.filter((tick) => !known.has(Math.round(tick.at)));
  state.ticks = [...state.ticks, ...fresh].sort((a, b) => a.at - b.at).slice(-MOST_TICKS);
}

function trim(map, most) {
  let gone = 0;
  for (const key of map.keys()) {
    if (map.size <= most) break;
    map.delete(key);
    gone++;
  }
  return gone;
}

/** Calls a second of the last `seconds`, of one server or all: `[{calls, errors}]`. No tick of a second: nothing happened. */
export function rates(seconds, server = null) {
  const now = Date.now() / 1000;
  const found = Array.from({ length: seconds }, () => ({ calls: 0, errors: 0 }));
  for (const tick of state.ticks) {
    const slot = found[seconds - 1 - Math.max(0, Math.floor(now - tick.at))];
    if (!slot) continue;
    for (const [name, counts] of Object.entries(tick.servers))
      if (server === null || name === server) {
        slot.calls += counts.calls;
        slot.errors += counts.errors;
      }
  }
  return found;
}
