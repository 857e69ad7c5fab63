// Sends requests to a model, and shows the parts of their answers as they arrive.

import { answerCard } from "./answer.js";
import { authorization, path } from "./api.js";
import { field, h } from "./dom.js";
import { notify, showText } from "./notices.js";
import { requestBody } from "./request_body.js";
import { sessionPanel } from "./session.js";
import { asCurl, asPython, asPythonSession } from "./snippets.js";

const MOST_ANSWERS = 30;

/** Return the tab. */
export function tryTab({ server, model, signal }) {
  const answers = h("div", { class: "answers", "aria-live": "polite" });
  const body = requestBody(model, signal);
  const more = h("textarea", { rows: 2, spellcheck: false, placeholder: "name: value", ariaLabel: "Further headers" });
  const sequence = h("input", { autocomplete: "off", placeholder: "none", spellcheck: false });
  const send = h("button", { class: "primary" }, "Send");
  const session = model.stateful ? sessionPanel(model, body, add, signal) : null;
  let number = 0;

  function add(title) {
    const card = answerCard(`${title} ${++number}`);
    answers.prepend(card.element);
    while (answers.children.length > MOST_ANSWERS) answers.lastElementChild.remove();
    return card;
  }

  /** Return the headers that the form says. */
  function headers() {
    const lines = more.value.split("\n").map((line) => /^\s*([^:\s]+)\s*:\s*(.*?)\s*$/.exec(line));
    const given = Object.fromEntries(lines.filter(Boolean).map(([, name, value]) => [name, value]));
    if (sequence.value) given[server.sequence_header] = sequence.value;
    return { "Content-Type": body.contentType(), ...given };
  }

  async function submit(event) {
    event.preventDefault();
    try {
      const content = await body.content();
      if (session?.isChosen()) await session.send(content);
      else await request(add("Request"), `predictions/${path(model.name, model.version)}`, headers(), content, signal);
    } catch (error) {
      notify(error.message, "bad");
    }
  }

  async function copy(make) {
    try {
      const text = make(server, model, headers(), await body.description());
      if (!navigator.clipboard) return await showText(text); // browsers have one only over https, or on this machine
      await navigator.clipboard.writeText(text);
      notify("Copied.");
    } catch (error) {
      notify(error.message, "bad");
    }
  }

  const form = h(
    "form",
    { class: "card try", onsubmit: submit, onkeydown: (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && form.requestSubmit() },
    session?.choice,
    body.element,
    h(
      "details",
      {},
      h("summary", {}, "Content type and headers"),
      field("Content type", body.contentTypeInput),
      model.stateful ? field("Sequence", sequence, "Id of the sequence that a single request belongs to") : null,
      field("Further headers", more),
    ),
    session?.element,
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "button", id: "copy-curl", onclick: () => copy(asCurl) }, "Copy as curl"),
      h("button", { type: "button", id: "copy-python", onclick: () => copy(session?.isChosen() ? asPythonSession : asPython) }, "Copy as Python"),
      h("span", { class: "spacer" }),
      send,
    ),
  );
  send.title = "Ctrl and Enter";
  return { element: h("div", { class: "halves" }, form, answers) };
}

/** Send one request, and show its answer on a card. */
async function request(card, target, headers, content, signal) {
  const stop = AbortSignal.any([signal, card.signal]);
  try {
    const response = await fetch(target, { method: "POST", headers: { ...headers, ...authorization() }, body: content, signal: stop });
    card.begin(response.status, response.headers.get("content-type") ?? "", response.headers.get("ts-error-cause"));
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      card.part(value);
    }
    card.end();
  } catch (error) {
    card.fail(stop.aborted ? "cancelled" : error.message);
  }
}
