/* Questions of servers that wait for an answer, and the forms to answer them. */

import { post } from "./api.js";
import { go, redraw, report } from "./app.js";
import { h } from "./dom.js";
import { ago } from "./format.js";
import { icon } from "./icons.js";
import { json, parseExactly } from "./json.js";
import { button, tag } from "./parts.js";
import { problemOf, SchemaForm } from "./schema.js";
import { state } from "./state.js";
import { block, line } from "./text.js";

const WORDS = { "elicitation/create": "asks", "sampling/createMessage": "asks for a model's answer", "roots/list": "asks for the roots" };
const MOST = 50;
const drafts = new Map(); // what is being typed, by the question's id

export const title = "Questions";

export function view() {
  for (const id of drafts.keys()) if (!state.questions.some((question) => question.id === id)) drafts.delete(id);
  return {
    tools: null,
    body: h(
      "div.cards",
      null,
      state.questions.slice(0, MOST).map((question) => card(question)),
      state.questions.length > MOST && h("p.hint", null, `${state.questions.length - MOST} more wait.`),
      !state.questions.length && h("div.empty", null, "No server waits for an answer."),
    ),
  };
}

export function card(question) {
  const draft = draftOf(question);
  const { params, method } = question;
  return h(
    "article.card",
    { key: question.id, "aria-label": `Question of ${question.server}` },
    h(
      "header",
      null,
      icon("questions"),
      h("b", null, line(question.server, 80)),
      " ",
      WORDS[method] ?? line(method, 60),
      h("span.mute", null, ago(question.at)),
      question.tool &&
        h(
          "span.mute",
          null,
          "during ",
          h("button.quiet", { type: "button", onclick: () => go("calls", question.call) }, line(question.tool, 80)),
        ),
      question.principal && tag(question.principal),
    ),
    h("p.warning", null, "The text below is the server's. Enter nothing that this server should not have."),
    params.message && h("div.message", null, block(params.message)),
    method === "sampling/createMessage" && h("details", { open: true }, h("summary", null, "What it sends to the model"), json(params)),
    state.allowed ? answer(question, draft) : h("p.hint", null, icon("lock"), "This console may only look: answer in the program."),
    !question.answer_required && h("p.hint", null, "The program has a handler that answers this too; the first answer counts."),
  );
}

function draftOf(question) {
  let draft = drafts.get(question.id);
  if (!draft) {
    draft = { text: question.method === "roots/list" ? '{"roots": []}' : "", busy: false };
    if (question.params.requestedSchema) draft.form = new SchemaForm(question.params.requestedSchema, undefined, redraw);
    drafts.set(question.id, draft);
  }
  return draft;
}

function answer(question, draft) {
  const send = (body) => () =>
    report(async () => {
      draft.busy = true; // until the question goes
      redraw();
      try {
        await post(`questions/${encodeURIComponent(question.id)}`, body);
      } catch (error) {
        draft.busy = false;
        throw error;
      }
    });
  const buttons = (accept, word = "Send", disabled = false) =>
    h(
      "div.actions",
      null,
      button(word, accept, { name: "ok", kind: "primary", disabled: draft.busy || disabled }),
      button("Decline", send({ action: "decline" }), { disabled: draft.busy }),
      question.method === "elicitation/create" && button("Cancel", send({ action: "cancel" }), { disabled: draft.busy }),
    );
  if (question.method === "elicitation/create" && question.params.mode === "url")
    return link(question, buttons(send({ action: "accept" }), "I did it"));
  if (draft.form)
    return h(
      "form",
      { onsubmit: (event) => event.preventDefault() },
      draft.form.view(),
      buttons(send({ action: "accept", content: draft.form.value ?? {} })),
    );
  if (question.method === "elicitation/create") return buttons(send({ action: "accept", content: {} }), "Accept");
  const sampling = question.method === "sampling/createMessage";
  const wrong = !sampling && problemOf(draft.text);
  const body = () => ({
    result: sampling
      ? { role: "assistant", content: { type: "text", text: draft.text }, model: "a person at the console", stopReason: "endTurn" }
      : parseExactly(draft.text),
  });
  return [
    h("textarea", {
      "aria-label": sampling ? "Answer in place of the model" : "Result as JSON",
      rows: 4,
      value: draft.text,
      oninput: (event) => ((draft.text = event.target.value), redraw()),
    }),
    wrong && h("p.problem", null, icon("warn"), line(wrong)),
    buttons(() => send(body())(), "Send", Boolean(wrong)),
  ];
}

/** An address to visit: shown whole, with its host in bold, because it is the server's choice. */
function link(question, buttons) {
  const url = String(question.params.url ?? "");
  let parsed = null;
  try {
    parsed = new URL(url);
  } catch {
    // shown as text below
  }
  const known = parsed && /^https?:$/.test(parsed.protocol);
  return [
    h("p", null, "It wants you to visit ", known ? h("b", null, line(parsed.host, 200)) : "an address that is no web address", ":"),
    h(
      "p.uri",
      null,
      known ? h("a", { href: parsed.href, target: "_blank", rel: "noopener noreferrer" }, line(parsed.href, 500)) : line(url, 500),
    ),
    buttons,
  ];
}
