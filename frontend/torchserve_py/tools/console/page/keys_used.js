// What each key has used since the server's start.

import { h, reconcile, setText, table } from "./dom.js";
import { count, duration } from "./format.js";

const COLUMNS = [["Key"], ["Requests", "number"], ["Failed", "number"], ["Refused", "number"], ["Tokens", "number"], ["With workers", "number"]];

/** Return the panel, which is hidden while no key with a name has used anything; `show(keys)` fills it. */
export function keysPanel() {
  const body = h("tbody");
  const element = h("section", { class: "card keys", hidden: true }, h("h2", {}, "Keys"), table("Keys", COLUMNS, body));
  return {
    element,
    show(keys) {
      const rows = Object.entries(keys).sort(([, one], [, other]) => other.requests - one.requests);
      element.hidden = rows.length === 0;
      reconcile(body, rows, ([name]) => name, create, update);
    },
  };
}

function create([name]) {
  const cells = COLUMNS.slice(1).map(([, kind]) => h("td", { class: kind }));
  return Object.assign(h("tr", {}, h("td", {}, name), cells), { cellsOfNumbers: cells });
}

function update({ cellsOfNumbers }, [, { requests, failed, refused, tokens, seconds }]) {
  const texts = [requests, failed, refused, tokens].map(count);
  [...texts, duration(seconds)].forEach((text, index) => setText(cellsOfNumbers[index], text));
}
