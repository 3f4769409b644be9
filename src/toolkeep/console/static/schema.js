/*
 * A form for a JSON Schema, and the value that it holds.
 *
 * Owns how a schema becomes fields: objects, arrays, choices, unions, defaults; and for what it does not
 * know, a field for raw JSON. It never judges a value: the engine checks it, and the problems that it
 * found are shown at their fields. A value that is not set is not sent.
 */

import { h } from "./dom.js";
import { icon } from "./icons.js";
import { parseExactly } from "./json.js";
import { block, hasInvisible, line, plain } from "./text.js";

const DEEPEST = 12; // levels of fields; deeper values are raw JSON
const MOST_CHOICES = 500;
const UNION = ["anyOf", "oneOf"];

/** Resolve local references and merge `allOf`. Foreign references stay as they are: nothing is fetched. */
function resolve(schema, root, depth = 0) {
  if (typeof schema !== "object" || schema === null || depth > 20) return {};
  let found = schema;
  if (typeof found.$ref === "string") {
    const { $ref, ...beside } = found;
    const target = $ref === "#" ? root : at(root, $ref);
    found = { ...resolve(target, root, depth + 1), ...beside };
  }
  if (Array.isArray(found.allOf)) {
    const { allOf, ...beside } = found;
    found = [...allOf.map((each) => resolve(each, root, depth + 1)), beside].reduce(merge, {});
  }
  return found;
}

function at(root, pointer) {
  if (!pointer.startsWith("#/")) return {};
  let found = root;
  for (const part of pointer.slice(2).split("/")) {
    const name = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
    found = typeof found === "object" && found !== null && Object.hasOwn(found, name) ? found[name] : undefined;
  }
  return found ?? {};
}

function merge(first, second) {
  const required = [...new Set([...(first.required ?? []), ...(second.required ?? [])])];
  const properties = { ...first.properties, ...second.properties };
  return { ...first, ...second, ...(required.length && { required }), ...(Object.keys(properties).length && { properties }) };
}

/** What a field of this schema shows: one of the keys of CONTROLS. */
function kindOf(schema) {
  if (Object.hasOwn(schema, "const")) return "fixed";
  if (Array.isArray(schema.enum) && schema.enum.length <= MOST_CHOICES) return "choice";
  if (UNION.some((word) => schema[word]?.length) || Array.isArray(schema.type)) return "union";
  if (schema.type === "object" || (!schema.type && schema.properties))
    return Object.keys(schema.properties ?? {}).length ? "object" : "raw";
  if (schema.type === "array" || (!schema.type && (schema.items || schema.prefixItems))) return "array";
  return { string: "text", integer: "number", number: "number", boolean: "boolean", null: "fixed" }[schema.type] ?? "raw";
}

/** The alternatives of a union, each with a label. */
function variants(schema, root) {
  const word = UNION.find((each) => schema[each]?.length);
  const { [word ?? "type"]: listed, ...beside } = schema;
  const each = word ? listed.map((part) => merge(beside, resolve(part, root))) : listed.map((type) => ({ ...beside, type }));
  return each.map((part, index) => ({ schema: part, label: nameOf(part, index) }));
}

function nameOf(schema, index) {
  if (schema.title) return schema.title;
  if (Object.hasOwn(schema, "const")) return JSON.stringify(schema.const);
  const tagged = Object.entries(schema.properties ?? {}).find(([, property]) => Object.hasOwn(property ?? {}, "const"));
  if (tagged) return `${tagged[0]}: ${JSON.stringify(tagged[1].const)}`;
  return typeOf(schema) || `option ${index + 1}`;
}

function typeOf(schema) {
  if (schema.enum) return "enum";
  if (schema.type === "array") return schema.items?.type && typeof schema.items.type === "string" ? `${schema.items.type}[]` : "array";
  const type = Array.isArray(schema.type) ? schema.type.join(" | ") : schema.type;
  return (
    [type, schema.format].filter((part) => typeof part === "string").join(" · ") || (UNION.some((word) => schema[word]) ? "union" : "")
  );
}

/** The value that a form begins with: defaults, and what is required and can only be one thing. */
function initial(schema, root = schema, depth = 0) {
  const found = resolve(schema, root);
  if (Object.hasOwn(found, "default")) return structuredClone(found.default);
  if (depth > DEEPEST) return undefined;
  switch (kindOf(found)) {
    case "fixed":
      return Object.hasOwn(found, "const") ? found.const : null;
    case "object": {
      const value = {};
      for (const [name, property] of Object.entries(found.properties)) {
        const wanted = found.required?.includes(name) || Object.hasOwn(resolve(property, root), "default");
        const inner = wanted ? initial(property, root, depth + 1) : undefined;
        if (inner !== undefined) set(value, name, inner);
      }
      return value;
    }
    case "array":
      return [];
    case "raw":
      return found.type === "object" ? {} : undefined;
    default:
      return undefined;
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !JSON.isRawJSON?.(value);
}

/** A name may be "__proto__": it is data like any other. */
function set(object, name, value) {
  Object.defineProperty(object, name, { value, enumerable: true, configurable: true, writable: true });
}

/** The fields of one value. `state` keeps what the value does not say: chosen variants, texts as typed. */
export class SchemaForm {
  constructor(schema, value, onchange) {
    this.root = schema;
    this.value = value === undefined ? initial(schema) : value;
    this.onchange = onchange;
    this.state = new Map();
    this.problems = []; // the engine's sentences
    this.placed = new Set(); // those that stand at a field
    this.strict = false; // whether to mark what is missing before it was touched
  }

  /** Problems that belong to no field of the form. Ask after `view`. */
  unplaced() {
    return this.problems.filter((problem) => !this.placed.has(problem));
  }

  view() {
    this.placed.clear();
    const schema = resolve(this.root, this.root);
    const top = { path: [], schema, value: this.value, depth: 0 };
    if (kindOf(schema) === "object") return h("div.fields", null, this.#properties(top));
    if (schema.type === "object" && schema.additionalProperties === false) return h("p.hint", null, "It takes no arguments.");
    return h("div.fields", null, this.#control(top), this.#problemsAt([]));
  }

  /** What the form holds now at a path: events may come faster than the page is drawn. */
  at(path) {
    return path.reduce(
      (found, step) => (typeof found === "object" && found !== null && Object.hasOwn(found, step) ? found[step] : undefined),
      this.value,
    );
  }

  /** Replace the value at a path; undefined takes a property away. */
  put(path, value) {
    const replaced = (old, [step, ...rest]) => {
      if (step === undefined) return value;
      const copy = Array.isArray(old) ? [...old] : isObject(old) ? { ...old } : {};
      const next = replaced(Object.hasOwn(copy, step) ? copy[step] : undefined, rest);
      if (next === undefined && !Array.isArray(copy)) delete copy[step];
      else set(copy, step, next === undefined ? null : next);
      return copy;
    };
    this.value = replaced(this.value, path);
    this.onchange();
  }

  #properties({ schema, value, path, depth }) {
    const object = isObject(value) ? value : {};
    const required = new Set(schema.required ?? []);
    return [
      Object.entries(schema.properties ?? {}).map(([name, property]) =>
        this.#field({
          name,
          required: required.has(name),
          path: [...path, name],
          schema: resolve(property, this.root),
          depth: depth + 1,
          value: Object.hasOwn(object, name) ? object[name] : undefined,
        }),
      ),
      this.#problemsAt(path),
    ];
  }

  #field(field) {
    const { name, required, schema, value, path } = field;
    const id = idOf(path);
    const nested = ["object", "array", "union"].includes(kindOf(schema));
    const unset = value === undefined;
    return h(
      "div.field",
      { key: id, class: [nested && "nested", unset && "unset", this.#at(path).length && "wrong"].filter(Boolean).join(" ") },
      h(
        "div.label",
        null,
        h(nested ? "span.name" : "label.name", nested ? { id: `${id}-label` } : { for: id }, line(name)),
        h("span.type", null, line(typeOf(schema), 60)),
        required ? h("span.required", null, "required") : h("span.optional", null, unset ? "not sent" : ""),
        !required &&
          !unset &&
          h(
            "button.quiet.unset",
            {
              type: "button",
              "aria-label": `Do not send ${plain(name)}`,
              title: "do not send",
              onclick: () => this.#clear(path),
            },
            icon("close"),
          ),
      ),
      schema.description && h("div.description", null, block(schema.description)),
      this.#control(field),
      unset &&
        Object.hasOwn(schema, "default") &&
        h("p.hint", null, "default: ", h("code", null, line(JSON.stringify(schema.default), 80))),
      typeof value === "string" &&
        hasInvisible(value) &&
        h("p.hint", null, icon("warn"), "it holds characters that are not visible: ", line(value, 200)),
      !nested && this.#problemsAt(path),
    );
  }

  #clear(path) {
    this.state.delete(idOf(path));
    this.put(path, undefined);
  }

  #control(field) {
    const kind = field.depth > DEEPEST ? "raw" : kindOf(field.schema);
    const change = (value) => this.put(field.path, value);
    return CONTROLS[kind]({ ...field, id: field.id ?? idOf(field.path), change, described: this.#describedBy(field.path) }, this);
  }

  #describedBy(path) {
    return this.#at(path).length ? { "aria-invalid": "true", "aria-describedby": `${idOf(path)}-problem` } : {};
  }

  /** What the engine says about this value: `a.b[0]: …`, or that it is missing. */
  #at(path) {
    if (!path.length) return [];
    const [place, parent] = [placeOf(path), placeOf(path.slice(0, -1))];
    const missing = `${parent && `${parent}: `}"${path.at(-1)}" is a required property`;
    const found = this.problems.filter(
      (problem) =>
        problem === missing ||
        (problem.startsWith(`${place}: `) && !/^"[^"]+" is a required property$/.test(problem.slice(place.length + 2))),
    );
    for (const problem of found) this.placed.add(problem);
    return found
      .filter((problem) => this.strict || problem !== missing)
      .map((problem) => (problem === missing ? "is required" : problem.slice(place.length + 2)));
  }

  #problemsAt(path) {
    const found = this.#at(path);
    return (
      found.length > 0 &&
      h(
        "p.problem",
        { id: `${idOf(path)}-problem` },
        icon("warn"),
        found.slice(0, 3).map((problem) => line(problem)),
      )
    );
  }

  object(field) {
    if (field.value === undefined)
      return h(
        "button.add",
        { type: "button", onclick: () => field.change(initial(noDefault(field.schema), this.root) ?? {}) },
        icon("plus"),
        "add",
      );
    return h("div.fields", { role: "group", "aria-labelledby": `${field.id}-label` }, this.#properties(field));
  }

  array({ id, path, schema, value, depth }) {
    const items = Array.isArray(value) ? value : [];
    const of = (index) => resolve(schema.prefixItems?.[index] ?? schema.items ?? {}, this.root);
    const now = () => this.at(path) ?? [];
    const add = () => this.put(path, [...now(), initial(of(now().length), this.root) ?? blank(of(now().length))]);
    return h(
      "div.items",
      { role: "group", "aria-labelledby": `${id}-label` },
      items.map((item, index) =>
        h(
          "div.item",
          { key: index },
          this.#field({
            name: `${index}`,
            required: true,
            path: [...path, index],
            schema: of(index),
            value: item,
            depth: depth + 1,
          }),
          h(
            "button.quiet",
            { type: "button", "aria-label": `Remove item ${index}`, title: "remove", onclick: () => this.#remove(path, index) },
            icon("close"),
          ),
        ),
      ),
      h("button.add", { type: "button", onclick: add }, icon("plus"), "item"),
      this.#problemsAt(path),
    );
  }

  /** Texts as typed belong to places, which move when an item goes. */
  #remove(path, index) {
    for (const id of this.state.keys()) if (id.startsWith(`${idOf(path)}-`)) this.state.delete(id);
    this.put(
      path,
      (this.at(path) ?? []).filter((_, place) => place !== index),
    );
  }

  union({ id, path, schema, value, change, depth }) {
    const found = variants(schema, this.root);
    const chosen =
      this.state.get(id) ??
      (value === undefined
        ? -1
        : Math.max(
            0,
            found.findIndex((each) => fits(each.schema, value)),
          ));
    const choose = (index) => {
      for (const each of this.state.keys()) if (each.startsWith(`${id}-`)) this.state.delete(each);
      this.state.set(id, index);
      change(index < 0 ? undefined : (initial(noDefault(found[index].schema), this.root) ?? blank(found[index].schema)));
    };
    const part = found[chosen];
    return h(
      "div.union",
      null,
      h(
        "select",
        { id, "aria-labelledby": `${id}-label`, value: chosen, onchange: (event) => choose(Number(event.target.value)) },
        h("option", { value: -1 }, "choose …"),
        found.map((each, index) => h("option", { value: index }, plain(each.label, 80))),
      ),
      part &&
        kindOf(part.schema) !== "fixed" &&
        this.#control({ path, schema: { ...part.schema, title: undefined }, value, depth: depth + 1, id: `${id}-value` }),
      this.#problemsAt(path),
    );
  }
}

const CONTROLS = {
  object(field, form) {
    return form.object(field);
  },
  array(field, form) {
    return form.array(field);
  },
  union(field, form) {
    return form.union(field);
  },
  fixed({ schema, value, change }) {
    const fixed = Object.hasOwn(schema, "const") ? schema.const : null;
    return value === undefined
      ? h("button.add", { type: "button", onclick: () => change(fixed) }, icon("plus"), line(JSON.stringify(fixed), 80))
      : h("code.fixed", null, line(JSON.stringify(fixed), 80));
  },
  choice({ id, schema, value, change, described }) {
    const index = schema.enum.findIndex((each) => JSON.stringify(each) === JSON.stringify(value));
    const names = schema.enumNames ?? [];
    return h(
      "select",
      { id, ...described, value: index, onchange: (event) => change(schema.enum[event.target.value]) },
      h("option", { value: -1 }, "choose …"),
      schema.enum.map((each, place) =>
        h("option", { value: place }, plain(typeof (names[place] ?? each) === "string" ? (names[place] ?? each) : JSON.stringify(each))),
      ),
    );
  },
  boolean({ id, value, change, described }) {
    const texts = { true: true, false: false };
    return h(
      "select",
      { id, ...described, value: String(value ?? ""), onchange: (event) => change(texts[event.target.value]) },
      h("option", { value: "" }, "choose …"),
      h("option", { value: "true" }, "true"),
      h("option", { value: "false" }, "false"),
    );
  },
  number({ id, schema, value, change, described }, form) {
    const typed = form.state.get(id) ?? (value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));
    const range = [schema.minimum !== undefined && `from ${schema.minimum}`, schema.maximum !== undefined && `to ${schema.maximum}`].filter(
      Boolean,
    );
    const oninput = (event) => {
      const text = event.target.value;
      form.state.set(id, text);
      change(text.trim() === "" ? undefined : numberOf(text.trim()));
    };
    return h("input", {
      id,
      ...described,
      type: "text",
      inputmode: "decimal",
      autocomplete: "off",
      value: typed,
      placeholder: range.join(" "),
      oninput,
    });
  },
  text({ id, schema, value, change, described }) {
    const text = typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value);
    const common = {
      id,
      ...described,
      value: text,
      spellcheck: "false",
      autocomplete: "off",
      oninput: (event) => change(event.target.value),
    };
    const placeholder = typeof schema.examples?.[0] === "string" ? `for example ${plain(schema.examples[0], 80)}` : "";
    const long = text.length > 60 || text.includes("\n") || schema.maxLength > 200 || /multiline|markdown|code/.test(schema.format ?? "");
    if (long) return h("textarea", { ...common, placeholder, rows: Math.min(12, 2 + text.split("\n").length) });
    return h("input", { ...common, placeholder, type: schema.format === "password" || schema.writeOnly ? "password" : "text" });
  },
  raw({ id, path, value, change }, form) {
    const typed = form.state.get(id) ?? (value === undefined ? "" : JSON.stringify(value, null, 2));
    const wrong = typed.trim() !== "" && problemOf(typed);
    const oninput = (event) => {
      form.state.set(id, event.target.value);
      const text = event.target.value.trim();
      change(text === "" ? undefined : problemOf(text) ? text : parseExactly(text));
    };
    const label = path.length ? {} : { "aria-label": "Arguments as JSON" };
    return [
      h("textarea.json", {
        id,
        ...label,
        value: typed,
        rows: Math.min(12, 2 + typed.split("\n").length),
        spellcheck: "false",
        placeholder: "JSON",
        oninput,
      }),
      wrong && h("p.problem", null, icon("warn"), "not JSON yet, sent as a text: ", line(wrong)),
    ];
  },
};

/** What is not valid JSON in a text, or null. */
export function problemOf(text) {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return error.message;
  }
}

function numberOf(text) {
  return /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/.test(text) ? parseExactly(text) : text;
}

function noDefault(schema) {
  const { default: _, ...rest } = schema;
  return rest;
}

function blank(schema) {
  return { text: "", number: 0, boolean: false, array: [], object: {}, choice: schema.enum?.[0] }[kindOf(schema)] ?? null;
}

function fits(schema, value) {
  if (Object.hasOwn(schema, "const")) return JSON.stringify(schema.const) === JSON.stringify(value);
  if (schema.enum) return schema.enum.some((each) => JSON.stringify(each) === JSON.stringify(value));
  const type = value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
  if (type !== "object") return schema.type === type || (schema.type === "integer" && Number.isInteger(value));
  if (schema.type && schema.type !== "object") return false;
  return Object.entries(schema.properties ?? {}).every(([name, property]) =>
    Object.hasOwn(property ?? {}, "const") ? JSON.stringify(property.const) === JSON.stringify(value[name]) : true,
  );
}

/** A path as the engine writes it. */
function placeOf(path) {
  return path.reduce(
    (place, step) =>
      typeof step === "string" && /^[\p{L}_][\p{L}\p{N}_]*$/u.test(step)
        ? `${place}${place && "."}${step}`
        : `${place}[${typeof step === "string" ? `'${step}'` : step}]`,
    "",
  );
}

function idOf(path) {
  return `f${path.map((part) => `-${String(part).replace(/[^\w]/g, (found) => `.${found.codePointAt(0).toString(16)}.`)}`).join("")}`;
}
