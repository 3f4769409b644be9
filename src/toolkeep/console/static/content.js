/*
 * Results as a person reads them: texts, JSON, images, audio and links of tools, prompts and resources.
 *
 * Everything in it is a server's data. Pictures and sound are shown from data of a few known types; nothing
 * is fetched from an address that a server names.
 */

import { h } from "./dom.js";
import { bytes } from "./format.js";
import { icon } from "./icons.js";
import { json, parseExactly } from "./json.js";
import { tag } from "./parts.js";
import { block, line } from "./text.js";

const IMAGE = /^image\/(?:png|jpeg|gif|webp|avif)$/;
const AUDIO = /^audio\/[\w.+-]{1,40}$/;
const MOST_BLOCKS = 100;

/** The result of tools/call, prompts/get or resources/read. `read(uri)` opens a resource. */
export function result(value, read) {
  if (value === null || value === undefined) return h("p.hint", null, "No result.");
  if (value.truncated === true && typeof value.head === "string")
    return [h("p.hint", null, `Too large to show${value.bytes ? `: ${bytes(value.bytes)}` : ""}. It begins with:`), block(value.head)];
  const blocks = value.content ?? value.contents ?? value.messages?.map((message) => ({ role: message.role, ...message.content }));
  if (!Array.isArray(blocks)) return json(value);
  const structured = value.structuredContent;
  const same = structured !== undefined && blocks.length === 1 && sameText(blocks[0], structured);
  return [
    value.isError && h("p.banner.bad", null, icon("toolerror"), "The tool reports an error."),
    value.description && h("div.description", null, block(value.description)),
    structured !== undefined && h("div.block", { key: "structured" }, h("div.block-head", null, tag("structured")), json(structured)),
    !same &&
      blocks.slice(0, MOST_BLOCKS).map((each, index) => h("div.block", { key: `block-${index}` }, header(each), content(each, read))),
    blocks.length > MOST_BLOCKS && h("p.hint", null, `${blocks.length - MOST_BLOCKS} more blocks are not shown.`),
    !blocks.length && structured === undefined && h("p.hint", null, "The result is empty."),
    h("details.raw", null, h("summary", null, "Raw result"), json(value)),
  ];
}

/** Many servers send the structured content once more as text. */
function sameText(part, structured) {
  if (part.type !== "text" || typeof part.text !== "string" || part.text.length > 200_000) return false;
  try {
    return JSON.stringify(parseExactly(part.text)) === JSON.stringify(structured);
  } catch {
    return false;
  }
}

function header(part) {
  const what = [
    part.role && tag(part.role),
    part.type !== "text" && part.type && tag(part.type),
    part.mimeType && h("span.type", null, line(part.mimeType, 60)),
  ];
  return what.some(Boolean) && h("div.block-head", null, what);
}

function content(part, read) {
  if (typeof part !== "object" || part === null) return json(part);
  switch (part.type) {
    case "text":
      return text(part.text);
    case "image":
    case "audio":
      return media(part.mimeType, part.data);
    case "resource_link":
      return h(
        "div.link",
        null,
        h("p", null, line(part.title ?? part.name)),
        uri(part.uri, read),
        part.description && block(part.description),
      );
    case "resource":
      return part.resource ? embedded(part.resource, read) : json(part);
    case undefined:
      return embedded(part, read); // of resources/read
    default:
      return json(part);
  }
}

function embedded(part, read) {
  return [
    part.uri && h("p", null, uri(part.uri, null)),
    typeof part.text === "string" ? text(part.text) : typeof part.blob === "string" ? media(part.mimeType, part.blob) : json(part),
  ];
}

function uri(value, read) {
  return h(
    "p.uri",
    null,
    h("code", null, line(value, 500)),
    read && h("button.small", { type: "button", onclick: () => read(String(value)) }, "read it"),
  );
}

/** A text; as a tree too if it is a JSON object or list. */
function text(value) {
  const body = String(value ?? "");
  if (/^\s*[[{]/.test(body) && body.length < 500_000) {
    try {
      return json(parseExactly(body));
    } catch {
      // a text that begins like JSON
    }
  }
  return h("div.textblock", null, block(body));
}

function media(type, data) {
  const size = typeof data === "string" ? Math.floor((data.length * 3) / 4) : 0;
  const source = /^[\w+/=\s]*$/.test(data ?? "") && `data:${type};base64,${String(data).replace(/\s/g, "")}`;
  if (source && IMAGE.test(type))
    return h("figure", null, h("img", { src: source, alt: `image, ${type}, ${bytes(size)}` }), h("figcaption", null, bytes(size)));
  if (source && AUDIO.test(type)) return h("audio", { controls: true, preload: "metadata", src: source });
  return h("p.hint", null, "Bytes that the page does not show: ", line(type ?? "unknown type", 60), `, ${bytes(size)}.`);
}

/** What a call said while it ran, and how it ended. */
export function logLines(lines) {
  return h(
    "ol.log",
    null,
    lines.map((each, index) =>
      h(
        "li",
        { key: index },
        h("span.level", { class: each.level }, line(each.level, 12)),
        typeof each.data === "string" ? block(each.data) : json(each.data),
      ),
    ),
  );
}
