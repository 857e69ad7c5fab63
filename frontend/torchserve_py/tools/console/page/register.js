// Registers a model.

import { call, path } from "./api.js";
import { field, h } from "./dom.js";
import { attempt, dialog, notify } from "./notices.js";

/** Show the form; what is in the model store is proposed. */
export async function registerDialog() {
  const stored = await call("GET", "console/api/store").catch(() => []);
  return dialog("Register a model", (close) => {
    const choices = h("datalist", { id: "stored" }, stored.map((location) => h("option", { value: location })));
    const url = h("input", { name: "url", required: true, list: "stored", placeholder: "mnist.mar", autocomplete: "off", autofocus: true });
    const name = h("input", { name: "model_name", placeholder: "as the archive says", autocomplete: "off" });
    const numbers = [
      ["initial_workers", "Workers", 1, 0],
      ["batch_size", "Batch size", "", 1],
      ["max_batch_delay", "Batch delay, ms", "", 0],
    ].map(([key, label, value, min]) => field(label, h("input", { name: key, type: "number", value, min, placeholder: "default" })));
    const submit = h("button", { class: "primary" }, "Register");
    const register = async (event) => {
      event.preventDefault();
      const query = Object.fromEntries(new FormData(event.target));
      const done = await attempt(submit, () => call("POST", "models", { ...query, synchronous: "true" }));
      if (!done) return;
      notify(done.status);
      const found = /^Model "(.*)" Version: (.*) registered/.exec(done.status);
      close();
      if (found) location.hash = `#/models/${path(found[1], found[2])}`;
    };
    return [
      h(
        "form",
        { onsubmit: register },
        field("Archive", url, "A file or folder of the model store, or a URL"),
        choices,
        field("Name", name),
        h("div", { class: "row" }, numbers),
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close() }, "Cancel"), submit),
      ),
    ];
  });
}
