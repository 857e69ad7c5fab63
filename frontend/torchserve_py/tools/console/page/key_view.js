// Asks for the management key.

import { key } from "./api.js";
import { field, h } from "./dom.js";

/** Return the form; `opened` is called once there is a key to try. */
export function keyView(refused, opened) {
  const input = h("input", { type: "password", autocomplete: "off", required: true, spellcheck: false, name: "key" });
  const submit = (event) => {
    event.preventDefault();
    key.set(input.value.trim());
    opened();
  };
  requestAnimationFrame(() => input.focus());
  return h(
    "form",
    { class: "card key", onsubmit: submit },
    h("h1", {}, "Management key"),
    h(
      "p",
      {},
      "The server wants the key of its management API: ",
      h("code", {}, "management"),
      " in its ",
      h("code", {}, "key_file.json"),
      ", or one that the server was given: ",
      h("code", {}, "TS_MANAGEMENT_KEYS"),
      " or ",
      h("code", {}, "keys_file"),
      ". A server that was given no more than inference keys has none. The key stays in this tab.",
    ),
    refused ? h("p", { class: "bad", role: "alert" }, "The server did not accept the key: it is wrong, or has expired.") : null,
    field("Key", input),
    h("button", { class: "primary" }, "Open the console"),
  );
}
