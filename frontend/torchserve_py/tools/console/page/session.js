// Holds a live session: each thing that is sent is a step of one sequence.

import { key, path } from "./api.js";
import { h, setText } from "./dom.js";
import { LiveSession, SessionClosed } from "./live-session.js";
import { notify } from "./notices.js";

/** Return the choice between single requests and a session, and the session's panel; `add` makes a card for a step. */
export function sessionPanel(model, body, add, signal) {
  const note = h("p", { class: "note", role: "status" }, "The first step opens the session.");
  const ends = h("input", { type: "checkbox", id: "ends" });
  const live = h("input", { type: "checkbox", onchange: () => (body.sound.onPiece = live.checked ? hear : null) });
  const close = h("button", { type: "button", onclick: leave, disabled: true }, "Leave the session");
  const element = h(
    "div",
    { class: "session", hidden: true },
    note,
    h("label", { class: "check" }, ends, "The sequence ends with this step"),
    h("label", { class: "check" }, live, "While recording, each half second is a step (16-bit PCM)"),
    close,
  );
  const buttons = ["One request", "Session"].map((label, index) => h("button", { type: "button", onclick: () => choose(index), id: `mode-${index}` }, label));
  const choice = h("div", { class: "segments", role: "group", ariaLabel: "How to send" }, buttons);
  let session = null;
  let waiting = Promise.resolve();

  function choose(index) {
    element.hidden = index === 0;
    buttons.forEach((button, each) => (button.ariaPressed = String(each === index)));
  }

  async function open(contentType) {
    const url = new URL(`sequences/${path(model.name, model.version)}`, document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    url.hash = "";
    session = await LiveSession.open(url.href, { contentType, key: key.get() });
    close.disabled = false;
    setText(note, `Sequence ${session.sequence}: up to ${session.window} steps may be on their way.`);
  }

  function leave(reason = "The session is closed.") {
    session?.close();
    session = null;
    close.disabled = true;
    setText(note, typeof reason === "string" ? reason : "The session is closed.");
  }

  async function step(content, contentType, end) {
    if (!session) await open(contentType);
    const card = add("Step");
    card.begin(200, contentType === "application/json" ? contentType : "", null);
    try {
      for await (const part of session.stream(content, { end })) card.part(typeof part === "string" ? part : bytesOf(part.base64));
      card.end("answered");
      if (end) leave("The sequence has ended.");
    } catch (error) {
      card.fail(error.message);
      if (error instanceof SessionClosed) leave(error.message);
    }
  }

  /** Send a piece of sound once the steps before it are answered. */
  function hear(pcm, rate) {
    const type = `audio/l16; rate=${rate}; channels=1`;
    waiting = waiting.then(() => step({ base64: base64Of(pcm) }, type, false)).catch((error) => notify(error.message, "bad"));
  }

  choose(0);
  signal.addEventListener("abort", () => leave());
  return {
    choice,
    element,
    isChosen: () => !element.hidden,
    /** Send a text or a Blob as a step. */
    async send(content) {
      const given = typeof content === "string" ? content : { base64: base64Of(new Uint8Array(await content.arrayBuffer())) };
      await step(given, body.contentType(), ends.checked);
      ends.checked = false;
    },
  };
}

function base64Of(given) {
  let text = "";
  for (let start = 0; start < given.length; start += 0x8000) text += String.fromCharCode(...given.subarray(start, start + 0x8000));
  return btoa(text);
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
