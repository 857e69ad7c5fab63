// An answer on a card: its parts with the time of their arrival, then the whole as what it is.

import { h, save, setText } from "./dom.js";
import { bytes, count, milliseconds } from "./format.js";

const MOST_SHOWN = 200_000;
const MOST_PARTS = 500;

/** Return a card for one request or step. */
export function answerCard(title) {
  const began = performance.now();
  const stop = new AbortController();
  const status = h("span", { class: "badge" }, "…");
  const facts = h("span", { class: "muted" });
  const cancel = h("button", { type: "button", class: "small", onclick: () => stop.abort() }, "Cancel");
  const parts = h("ol", { class: "parts" });
  const whole = h("div", { class: "whole" });
  const element = h("article", { class: "card answer" }, h("header", {}, h("h2", {}, title), status, facts, cancel), parts, whole);
  const decoder = new TextDecoder();
  const pieces = [];
  let size = 0;
  let first = null;
  let type = "";

  const now = () => performance.now() - began;
  const close = (word, kind) => {
    cancel.remove();
    if (word) setText(status, word);
    status.classList.add(kind);
    const times = first === null ? [] : [`first part ${milliseconds(first)}`];
    setText(facts, [`${milliseconds(now())}`, ...times, parted(pieces), bytes(size)].join(" · "));
  };
  return {
    element,
    signal: stop.signal,
    begin(code, contentType, cause) {
      type = contentType;
      setText(status, cause ? `${code} ${cause}` : String(code));
      status.classList.toggle("bad", code >= 400);
    },
    /** Add a part: bytes or a text. */
    part(piece) {
      first ??= now();
      pieces.push(piece);
      size += piece.length;
      setText(facts, `${parted(pieces)} · ${bytes(size)}`);
      if (parts.children.length < MOST_PARTS) {
        const text = typeof piece === "string" ? piece : decoder.decode(piece, { stream: true });
        parts.append(h("li", {}, h("time", {}, `+${milliseconds(now())}`), h("span", {}, text.slice(0, MOST_SHOWN))));
      }
    },
    end(word = "") {
      close(word, status.classList.contains("bad") ? "bad" : "good");
      whole.append(...rendered(pieces, type));
      parts.hidden = pieces.length < 2;
    },
    fail(message) {
      close(message, "bad");
    },
  };
}

function rendered(pieces, type) {
  const blob = new Blob(pieces, { type });
  const media = { image: "img", audio: "audio", video: "video" }[type.split("/")[0]];
  const button = h("button", { type: "button", class: "small", onclick: () => save(blob, "answer") }, "Save");
  if (media) return [h(media, { src: URL.createObjectURL(blob), controls: true, alt: "The answer" }), button];
  const text = textOf(pieces);
  if (text === null) return [h("p", { class: "note" }, `${bytes(blob.size)} that are no text.`), button];
  return [h("pre", { tabIndex: 0 }, pretty(text).slice(0, MOST_SHOWN)), text.length > 80 ? button : null].filter(Boolean);
}

function parted(pieces) {
  return pieces.length === 1 ? "1 part" : `${count(pieces.length)} parts`;
}

function textOf(pieces) {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  try {
    return pieces.map((piece) => (typeof piece === "string" ? piece : decoder.decode(piece, { stream: true }))).join("") + decoder.decode();
  } catch {
    return null;
  }
}

function pretty(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
