/*
 * The difference of two texts, word by word. Pure; its work is bounded, and beyond the bound it shows the
 * whole of what changed as replaced.
 */

const MOST_EDITS = 600; // of Myers' algorithm: beyond, what differs is replaced as a whole
const MOST_WORDS = 20_000;

const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

/** `[["same" | "gone" | "new", text], …]` */
export function difference(before, after) {
  const a = words(before);
  const b = words(after);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end++;
  const middle = edits(a.slice(start, a.length - end), b.slice(start, b.length - end));
  return joined([["same", a.slice(0, start).join("")], ...middle, ["same", end ? a.slice(-end).join("") : ""]]);
}

/** Myers: the shortest way from `a` to `b`, as pieces. */
function edits(a, b) {
  const replaced = [
    ["gone", a.join("")],
    ["new", b.join("")],
  ];
  if (!a.length || !b.length || a.length + b.length > MOST_WORDS) return replaced;
  const most = Math.min(a.length + b.length, MOST_EDITS);
  let ends = new Map([[1, 0]]);
  const trail = [];
  for (let depth = 0; depth <= most; depth++) {
    const next = new Map(ends);
    trail.push(ends);
    for (let k = -depth; k <= depth; k += 2) {
      const down = k === -depth || (k !== depth && (ends.get(k - 1) ?? -1) < (ends.get(k + 1) ?? -1));
      let x = down ? (ends.get(k + 1) ?? 0) : (ends.get(k - 1) ?? 0) + 1;
      let y = x - k;
      while (x < a.length && y < b.length && a[x] === b[y]) (x++, y++);
      next.set(k, x);
      if (x >= a.length && y >= b.length) return backwards(trail, a, b);
    }
    ends = next;
  }
  return replaced;
}

function backwards(trail, a, b) {
  const found = [];
  let x = a.length;
  let y = b.length;
  for (let depth = trail.length - 1; depth >= 0; depth--) {
    const ends = trail[depth];
    const k = x - y;
    const down = k === -depth || (k !== depth && (ends.get(k - 1) ?? -1) < (ends.get(k + 1) ?? -1));
    const from = down ? k + 1 : k - 1;
    const startX = depth ? (ends.get(from) ?? 0) : 0;
    const startY = depth ? startX - from : 0;
    while (x > startX && y > startY && x > 0 && y > 0) (found.push(["same", a[--x]]), y--);
    if (depth && down) found.push(["new", b[--y]]);
    else if (depth) found.push(["gone", a[--x]]);
  }
  return found.reverse();
}

/** Neighbours of one kind as one piece; within a change, what is gone comes first. */
function joined(all) {
  const found = [];
  let gone = "";
  let fresh = "";
  let between = ""; // a space between two changes belongs to both
  const keep = (text) => text && (found.at(-1)?.[0] === "same" ? (found.at(-1)[1] += text) : found.push(["same", text]));
  const flush = () => {
    if (gone) found.push(["gone", gone]);
    if (fresh) found.push(["new", fresh]);
    keep(between);
    gone = fresh = between = "";
  };
  for (const [kind, text] of all) {
    if (kind === "same" && (gone || fresh) && /^ ?$/.test(between + text)) between += text;
    else if (kind === "same") (flush(), keep(text));
    else if (text) {
      gone += between + (kind === "gone" ? text : "");
      fresh += between + (kind === "new" ? text : "");
      between = "";
    }
  }
  flush();
  return found.reduce(aligned, []);
}

/** A change that could begin earlier as well begins at the start of a line, if it can. */
function aligned(done, piece) {
  const change = done.at(-1);
  const before = done.at(-2);
  if (piece[0] === "same" && change && change[0] !== "same" && before?.[0] === "same") {
    const most = Math.min(before[1].length, change[1].length, 200);
    for (let shift = 1; shift <= most && before[1].at(-shift) === change[1].at(-shift); shift++) {
      if (before[1].at(-shift - 1) !== "\n") continue;
      const moved = before[1].slice(-shift);
      before[1] = before[1].slice(0, -shift);
      change[1] = moved + change[1].slice(0, -shift);
      piece[1] = moved + piece[1];
      break;
    }
  }
  done.push(piece);
  return done;
}
