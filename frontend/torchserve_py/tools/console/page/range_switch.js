// Chooses between the last five minutes and the last hour.

import { h } from "./dom.js";

const RANGES = [
  ["seconds", "5 minutes"],
  ["coarse", "1 hour"],
];

/** Return the switch; `changed` gets the range, and `current()` returns it. */
export function rangeSwitch(changed) {
  let current = "seconds";
  const buttons = RANGES.map(([range, label]) =>
    h("button", { type: "button", ariaPressed: String(range === current), onclick: () => choose(range) }, label),
  );
  const choose = (range) => {
    current = range;
    buttons.forEach((button, index) => (button.ariaPressed = String(RANGES[index][0] === range)));
    changed(range);
  };
  return { element: h("div", { class: "segments", role: "group", ariaLabel: "Time shown" }, buttons), current: () => current };
}
