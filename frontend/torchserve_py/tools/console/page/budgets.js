// What all workers take of the memory that they may have together: a bar for the host and for each GPU.

import { h, reconcile, setText } from "./dom.js";
import { bytes } from "./format.js";

/** Return the panel, which is hidden on a server without a budget; `show(budgets)` fills it. */
export function budgetsPanel() {
  const list = h("ul", { class: "bars" });
  const element = h("section", { class: "card budgets", hidden: true }, h("h2", {}, "Memory budget"), list);
  return {
    element,
    show(budgets) {
      const rows = Object.entries(budgets).map(([resource, { used, total }]) => ({ resource, used, total }));
      element.hidden = rows.length === 0;
      reconcile(list, rows, ({ resource }) => resource, create, update);
    },
  };
}

function create({ resource }) {
  const bar = h("meter", { min: 0, max: 1, ariaLabel: `Memory budget of the ${resource}` });
  const text = h("b");
  return Object.assign(h("li", {}, h("span", {}, resource), bar, text), { bar, text });
}

function update({ bar, text }, { used, total }) {
  bar.value = used / total;
  setText(text, `${bytes(used)} of ${bytes(total)}`);
}
