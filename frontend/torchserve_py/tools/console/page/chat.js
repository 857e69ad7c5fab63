// A conversation with a model that answers as OpenAI does, with images and audio: answers are shown while they arrive.

import { authorization, path } from "./api.js";
import { attachments } from "./attachments.js";
import { h, setText } from "./dom.js";
import { bytes, milliseconds } from "./format.js";
import { release, shownPart, shownSound } from "./message_parts.js";

/** Return the tab. */
export function chatTab({ server, model, signal }) {
  const log = h("ol", { class: "chat", "aria-live": "polite", tabIndex: 0, ariaLabel: "Conversation" });
  const text = h("textarea", { rows: 2, ariaLabel: "Message", placeholder: "Write a message; Enter sends it" });
  const send = h("button", { class: "primary" }, "Send");
  const clear = h("button", { type: "button", onclick: begin }, "New conversation");
  const files = attachments(server.max_request_size, (parts) => sizeOf(requestOf(model, [...messages, said(text.value, parts)])));
  let messages = [];
  let stop = null;

  function begin() {
    stop?.abort();
    messages = [];
    files.clear();
    release(log);
    log.replaceChildren();
    text.focus();
  }

  function say(role, ...shown) {
    const body = h("p", {}, shown);
    const note = h("small");
    log.append(h("li", { class: role }, h("b", {}, role), body, note));
    return { body, note };
  }

  async function submit(event) {
    event?.preventDefault();
    const content = text.value.trim();
    const chosen = files.chosen();
    if ((!content && !chosen.length) || send.disabled) return;
    const message = said(content, chosen.map((each) => each.part));
    const request = requestOf(model, [...messages, message]);
    if (sizeOf(request) > server.max_request_size) {
      files.say(`The conversation would have ${bytes(sizeOf(request))}, and the server takes ${bytes(server.max_request_size)} (max_request_size).`);
      return;
    }
    text.value = "";
    messages.push(message);
    files.clear();
    say("user", content, chosen.map((each) => shownPart(each.part, each.name)));
    const shown = say("assistant");
    const ended = (stop = new AbortController());
    send.disabled = true;
    try {
      const answer = await ask(model, request, AbortSignal.any([signal, ended.signal]), shown);
      if (!ended.signal.aborted) messages.push({ role: "assistant", content: answer });
    } catch (error) {
      if (!ended.signal.aborted) messages.pop();
      shown.body.classList.add("bad");
      setText(shown.body, ended.signal.aborted ? "cancelled" : error.message);
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
  text.addEventListener("paste", (event) => event.clipboardData.files.length && files.add([...event.clipboardData.files]));
  signal.addEventListener("abort", () => release(log));
  const buttons = h("div", { class: "buttons" }, clear, h("span", { class: "spacer" }), send);
  const form = h("form", { class: "say", onsubmit: submit, ondragover: (event) => event.preventDefault(), ondrop: drop }, text, files.element, buttons);
  return { element: h("div", { class: "card" }, log, form) };

  function drop(event) {
    event.preventDefault();
    files.add([...event.dataTransfer.files]);
  }
}

function said(text, parts) {
  const content = text ? [{ type: "text", text }, ...parts] : parts;
  return { role: "user", content: parts.length ? content : text };
}

function requestOf({ name }, messages) {
  return JSON.stringify({ model: name, messages, stream: true });
}

function sizeOf(request) {
  return new Blob([request]).size;
}

/** Send a request, show the answer as it arrives, and return its content. */
async function ask({ name, version }, request, signal, { body, note }) {
  const began = performance.now();
  const headers = { "Content-Type": "application/json", ...authorization() };
  const response = await fetch(`predictions/${path(name, version)}/v1/chat/completions`, { method: "POST", headers, body: request, signal });
  if (!response.ok) throw new Error(`${response.status}: ${words(await response.text())}`);
  const content = [];
  const sound = [];
  let format;
  let first = null;
  for await (const data of events(response)) {
    if (data.error) throw new Error(data.error.message ?? JSON.stringify(data.error));
    const said = data.choices?.[0]?.delta ?? data.choices?.[0]?.message ?? {};
    for (const part of partsOf(said)) {
      first ??= performance.now() - began;
      const last = content.at(-1);
      if (part.type === "text" && last?.type === "text") last.text += part.text;
      else content.push({ ...part });
      body.append(shownPart(part, "Image of the answer"));
    }
    if (said.audio?.data) {
      first ??= performance.now() - began;
      sound.push(said.audio.data);
      format ??= said.audio.format;
    }
  }
  if (sound.length) body.append(shownSound(sound, format));
  setText(note, `first part after ${milliseconds(first)}, ${milliseconds(performance.now() - began)} in all`);
  return content.every((part) => part.type === "text") ? content.map((part) => part.text).join("") : content;
}

/** Return the parts in a message, or in a piece of one; what is said in audio is its text. */
function partsOf({ content, audio }) {
  if (Array.isArray(content)) return content;
  const text = content || audio?.transcript;
  return text ? [{ type: "text", text }] : [];
}

/** Return what a refusal says: its message, whichever form it has, or all of it. */
function words(text) {
  try {
    const told = JSON.parse(text);
    return told.error?.message ?? told.detail ?? told.message ?? text;
  } catch {
    return text;
  }
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
