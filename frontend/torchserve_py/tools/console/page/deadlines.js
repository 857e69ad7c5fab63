// How many requests with deadlines were in time, and how much time was left or missing.

import { h, setText, table } from "./dom.js";
import { count, milliseconds } from "./format.js";

/** Return the card; `show` takes the counts since the model was registered, or null. */
export function deadlinesCard() {
  const columns = [["Answered"], ["Requests", "number"], ["On average", "number"]];
  const rows = ["In time", "Late", "Not: dropped"].map((name) => h("tr", {}, h("td", {}, name), h("td", { class: "number" }), h("td", { class: "number" })));
  const note = h("p", { class: "note" }, "Since the model was registered.");
  const card = h("section", { class: "card", hidden: true }, h("h2", {}, "Deadlines"), note, table("Deadlines", columns, h("tbody", {}, rows)));
  return {
    card,
    show(counts) {
      card.hidden = !counts;
      if (!counts) return;
      const mean = (seconds, many) => (many ? milliseconds((1000 * seconds) / many) : null);
      const left = mean(counts.slack_seconds, counts.in_time);
      const missing = mean(counts.late_seconds, counts.late);
      const cells = [
        [counts.in_time, left ? `${left} left` : "–"],
        [counts.late, missing ? `${missing} late` : "–"],
        [counts.dropped, "–"],
      ];
      cells.forEach(([many, text], index) => {
        setText(rows[index].children[1], count(many));
        setText(rows[index].children[2], text);
      });
    },
  };
}
