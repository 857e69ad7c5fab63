// Short notices, and dialogs that ask.

import { h } from "./dom.js";

const SHOWN = 6000;
const MOST = 4;

/** Show a notice for a few seconds; `kind` is "good" or "bad". */
export function notify(text, kind = "good") {
  const place = document.getElementById("toasts");
  const notice = h("div", { class: `toast ${kind}` }, text);
  place.append(notice);
  while (place.children.length > MOST) place.firstElementChild.remove();
  setTimeout(() => notice.remove(), SHOWN);
}

/** Do something that takes a moment, while its button rests; tell of its failure. Return its result, or undefined. */
export async function attempt(button, work) {
  button.disabled = true;
  button.classList.add("working");
  try {
    return await work();
  } catch (error) {
    notify(error.message, "bad");
    return undefined;
  } finally {
    button.disabled = false;
    button.classList.remove("working");
  }
}

/** Show a dialog; resolves when it is closed. `close` is given to `build`, which returns its content. */
export function dialog(title, build) {
  return new Promise((resolve) => {
    const box = h("dialog", { ariaLabel: title, onclose: () => (box.remove(), resolve(box.returnValue)) });
    box.append(h("h2", {}, title), ...build((value) => box.close(value)));
    document.body.append(box);
    box.showModal();
  });
}

/** Show a text to copy by hand: all of it is selected. */
export async function showText(text) {
  const shown = h("textarea", { rows: 12, readOnly: true, spellcheck: false, ariaLabel: "Text to copy", value: text, autofocus: true, onfocus: () => shown.select() });
  await dialog("Copy this", (close) => [shown, h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close("") }, "Close"))]);
}

/** Ask whether to go on; resolves to true or false. */
export async function confirmed(question, action) {
  const answer = await dialog("Are you sure?", (close) => [
    h("p", {}, question),
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "button", onclick: () => close("") }, "Cancel"),
      h("button", { type: "button", class: "danger", onclick: () => close("yes"), autofocus: true }, action),
    ),
  ]);
  return answer === "yes";
}
