// The settings that are in effect for a model version.

import { h } from "./dom.js";

/** Return the tab. */
export function settingsTab({ model }) {
  const rows = Object.entries(model.config).map(([name, value]) =>
    h("tr", {}, h("th", { scope: "row" }, name.replaceAll("_", " ")), h("td", {}, shown(value))),
  );
  return { element: h("section", { class: "card settings" }, h("table", {}, h("tbody", {}, rows))) };
}

function shown(value) {
  if (value === true) return "yes";
  if (value === false) return "no";
  if (Array.isArray(value)) return value.map(shown).join(", ");
  return value instanceof Object ? Object.entries(value).map(([name, each]) => `${name}: ${shown(each)}`).join(", ") : String(value);
}
