// What keys do, wherever the focus is not in a field.

import { h } from "./dom.js";
import { dialog } from "./notices.js";
import { switchTheme } from "./theme.js";

const KEYS = [
  ["/", "search models, sequences or lines", () => document.querySelector("main input[type=search]")?.focus()],
  ["h", "all models", () => (location.hash = "#/")],
  ["r", "register a model", () => document.getElementById("register")?.click()],
  ["1 … 5", "the tabs of a model", null],
  ["t", "dark or light", switchTheme],
  ["?", "this list", () => showShortcuts()],
];

/** Listen to the keys. */
export function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    const isTyped = event.target.closest("input, textarea, select, dialog");
    if (isTyped || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = KEYS.find(([key]) => key === event.key)?.[2];
    if (action) {
      event.preventDefault();
      action();
    } else if (/^[1-5]$/.test(event.key)) {
      document.querySelectorAll("[role=tab]")[Number(event.key) - 1]?.click();
    }
  });
}

/** Show the list of keys. */
export function showShortcuts() {
  dialog("Keyboard", (close) => [
    h("dl", { class: "keys" }, KEYS.map(([key, meaning]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, meaning)])),
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close() }, "Close")),
  ]);
}
