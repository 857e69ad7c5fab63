// A conversation with a model that answers as OpenAI does: its answers are shown while they arrive.

import { authorization, path } from "./api.js";
import { h, setText } from "./dom.js";
import { milliseconds } from "./format.js";

/** Return the tab. */
export function chatTab({ model, signal }) {
  const log = h("ol", { class: "chat", "aria-live": "polite" });
  const text = h("textarea", { rows: 2, ariaLabel: "Message", placeholder: "Write a message; Enter sends it" });
  const send = h("button", { class: "primary" }, "Send");
  const clear = h("button", { type: "button", onclick: begin }, "New conversation");
  let messages = [];
  let stop = null;

  function begin() {
    stop?.abort();
    messages = [];
    log.replaceChildren();
    text.focus();
  }

  function say(role, content) {
    const body = h("p", {}, content);
    const note = h("small");
    log.append(h("li", { class: role }, h("b", {}, role), body, note));
    return { body, note };
  }

  async function submit(event) {
    event?.preventDefault();
    const content = text.value.trim();
    if (!content || send.disabled) return;
    text.value = "";
    messages.push({ role: "user", content });
    say("user", content);
    const shown = say("assistant", "");
    send.disabled = true;
    stop = new AbortController();
    try {
      const answer = await ask(model, messages, AbortSignal.any([signal, stop.signal]), shown);
      messages.push({ role: "assistant", content: answer });
    } catch (error) {
      messages.pop();
      shown.body.classList.add("bad");
      setText(shown.body, stop.signal.aborted ? "cancelled" : error.message);
    } finally {
      send.disabled = false;
      text.focus();
    }
  }

  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  return { element: h("div", { class: "card" }, log, h("form", { class: "say", onsubmit: submit }, text, h("div", { class: "buttons" }, clear, h("span", { class: "spacer" }), send))) };
}

/** Send the conversation, show the answer as it arrives, and return it. */
async function ask({ name, version }, messages, signal, { body, note }) {
  const began = performance.now();
  const headers = { "Content-Type": "application/json", ...authorization() };
  const request = JSON.stringify({ model: name, messages, stream: true });
  const response = await fetch(`predictions/${path(name, version)}/v1/chat/completions`, { method: "POST", headers, body: request, signal });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  let answer = "";
  let first = null;
  for await (const data of events(response)) {
    if (data.error) throw new Error(data.error.message ?? JSON.stringify(data.error));
    const choice = data.choices?.[0];
    const piece = choice?.delta?.content ?? choice?.message?.content ?? "";
    if (piece) first ??= performance.now() - began;
    answer += piece;
    setText(body, answer);
  }
  setText(note, `first part after ${milliseconds(first)}, ${milliseconds(performance.now() - began)} in all`);
  return answer;
}

/** Yield the data of server-sent events; of an answer that is no stream, its one object. */
async function* events(response) {
  if (!(response.headers.get("content-type") ?? "").startsWith("text/event-stream")) {
    yield await response.json();
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const data = /^data: ?(.*)$/m.exec(block)?.[1];
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
