/*
 * A small keyed updater: describes elements as plain objects and makes the page equal to them.
 *
 * Owns every change to the document. Text reaches the page through text nodes, attributes and
 * properties only; nothing here parses markup. Addresses are checked against a list of schemes, so
 * what a server says can never become a program.
 */

const SVG = "http://www.w3.org/2000/svg";
const AS_PROPERTY = new Set(["value", "checked", "disabled", "open", "selected", "indeterminate", "hidden"]);
const ADDRESSES = new Set(["href", "src"]);
const SAFE_ADDRESS = /^(?:#|\.\/|blob:|data:image\/(?:png|jpeg|gif|webp|avif);base64,|data:audio\/[\w.+-]{1,40};base64,|https?:\/\/)/i;

/** The description a node was last made from, by node. */
const made = new WeakMap();

/**
 * An element: `h("li.row", {key, class, onclick, ".items": list}, ...children)`.
 *
 * A name that begins with "." sets a property; `style` is an object of custom properties; `on…` is a
 * listener. Children are descriptions, texts, or nothing (null, false), which holds its place.
 */
export function h(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const given = props ?? {};
  const all = classes.length ? { ...given, class: [...classes, given.class].filter(Boolean).join(" ") } : given;
  return { tag, key: given.key, props: all, children: children.flat(Infinity) };
}

/** Make the children of an element equal to the descriptions. Nodes with the same key are kept. */
export function update(parent, children) {
  patchChildren(parent, children.flat(Infinity), parent.namespaceURI === SVG);
}

function isText(item) {
  return typeof item !== "object" || item === null;
}

function textOf(item) {
  return item === null || item === undefined || item === false || item === true ? "" : String(item);
}

function patchChildren(parent, items, svg) {
  const wanted = new Set();
  for (const item of items) if (!isText(item) && item.key !== undefined) wanted.add(item.key);
  const kept = new Map();
  for (let node = parent.firstChild; node;) {
    const next = node.nextSibling;
    const key = made.get(node)?.key;
    if (key !== undefined) {
      if (wanted.has(key) && !kept.has(key)) kept.set(key, node);
      else node.remove();
    }
    node = next;
  }
  let cursor = parent.firstChild;
  for (const item of items) {
    const node = reuse(cursor, item, kept) ?? create(item, svg);
    if (node === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(node, cursor);
  }
  while (cursor) {
    const gone = cursor;
    cursor = cursor.nextSibling;
    gone.remove();
  }
}

/** The node that this item can be made of: the one with its key, or the next one if it is alike. */
function reuse(cursor, item, kept) {
  if (isText(item)) {
    if (cursor?.nodeType !== Node.TEXT_NODE) return null;
    const text = textOf(item);
    if (cursor.data !== text) cursor.data = text;
    return cursor;
  }
  const node = item.key === undefined ? cursor : kept.get(item.key);
  const before = node && made.get(node);
  if (!before || before.tag !== item.tag || before.key !== item.key) return null;
  if (item.key !== undefined) kept.delete(item.key);
  if (before !== item) patch(node, before, item);
  return node;
}

function create(item, svg) {
  if (isText(item)) return document.createTextNode(textOf(item));
  const inSvg = svg || item.tag === "svg";
  const node = inSvg ? document.createElementNS(SVG, item.tag) : document.createElement(item.tag);
  patch(node, { props: {}, children: [] }, item);
  item.props.ref?.(node);
  return node;
}

function patch(node, before, item) {
  for (const name in before.props) if (!(name in item.props)) setProp(node, name, undefined, before.props[name]);
  // Children first: the value of a <select> needs its options.
  if (!item.tag.includes("-")) patchChildren(node, item.children, node.namespaceURI === SVG);
  for (const name in item.props) setProp(node, name, item.props[name], before.props[name]);
  made.set(node, item);
}

function setProp(node, name, value, before) {
  if (name === "key" || name === "ref") return;
  if (name[0] === ".") node[name.slice(1)] = value;
  else if (name.startsWith("on")) listen(node, name.slice(2), value);
  else if (name === "style") setStyle(node, value ?? {}, before ?? {});
  else if (AS_PROPERTY.has(name) && name in node) {
    const given = name === "value" ? textOf(value) : Boolean(value);
    if (node[name] !== given) node[name] = given;
  } else if (value !== before || !made.has(node)) setAttribute(node, name, value);
}

function setAttribute(node, name, value) {
  if (value === undefined || value === null || value === false) return node.removeAttribute(name);
  const text = value === true ? "" : String(value);
  if (ADDRESSES.has(name) && !SAFE_ADDRESS.test(text)) return node.removeAttribute(name);
  node.setAttribute(name, text);
}

function setStyle(node, value, before) {
  for (const name in before) if (!(name in value)) node.style.removeProperty(name);
  for (const name in value) if (value[name] !== before[name]) node.style.setProperty(name, value[name]);
}

/** One listener for each kind of event, which calls the current function. */
const listeners = new WeakMap();

function listen(node, kind, handler) {
  let own = listeners.get(node);
  if (!own) listeners.set(node, (own = { handleEvent: (event) => own[event.type]?.call(node, event) }));
  if (handler && !(kind in own)) node.addEventListener(kind, own);
  own[kind] = handler;
}
