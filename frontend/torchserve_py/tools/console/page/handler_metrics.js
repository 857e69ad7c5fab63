// What a model's code reports itself: where the states of its sequences are, and its own numbers.

import { h, reconcile, setText, table } from "./dom.js";
import { bytes, count, number } from "./format.js";

const TIERS = ["device", "host", "store", "lost"];
const OF_TIERS = ["StateBytes", "StateSequences", "StateHits", "StateMisses", "StateMoves"];
/** These every model has; the charts show them. */
const CHARTED = ["PredictionTime", "HandlerTime"];
const USUAL = ["ModelName", "Level"];

/** Return the cards; `show` takes the numbers of the workers. */
export function handlerMetrics() {
  const tiers = h("tbody");
  const rows = h("tbody");
  const columns = [["Where"], ["Sequences", "number"], ["Size", "number"], ["Found there", "number"], ["Moved here", "number"]];
  const states = h("section", { class: "card" }, h("h2", {}, "States of sequences"), h("p", { class: "note" }, "By the worker that has reported last, with a step; moves since the model was registered."), table("States of sequences", columns, tiers));
  const own = h("section", { class: "card" }, h("h2", {}, "Metrics of the model's code"), table("Metrics of the model's code", [["Metric"], ["Dimensions"], ["Value", "number"]], rows));
  return {
    elements: [states, own],
    show(metrics) {
      const shownTiers = tiersOf(metrics);
      states.hidden = !shownTiers.length;
      reconcile(tiers, shownTiers, (each) => each.tier, (each) => row(each.tier, "", "", "", ""), (element, each) => {
        [count(each.sequences), bytes(each.bytes), each.rate, count(each.moved)].forEach((text, index) => setText(element.children[index + 1], text));
      });
      const others = metrics.filter(({ name }) => !OF_TIERS.includes(name) && !CHARTED.includes(name));
      own.hidden = !others.length;
      const key = ({ name, dimensions }) => `${name} ${JSON.stringify(dimensions)}`;
      reconcile(rows, others, key, (each) => row(each.name, dimensionsOf(each) || "–", ""), (element, each) => setText(element.children[2], number(each.value)));
    },
  };
}

/** Return a row of a table: texts, then empty cells for numbers. */
function row(...texts) {
  return h("tr", {}, texts.map((text) => h("td", { class: text === "" ? "number" : "" }, text)));
}

function dimensionsOf({ dimensions }) {
  return Object.entries(dimensions).filter(([name]) => !USUAL.includes(name)).map(([name, value]) => `${name}=${value}`).join(", ");
}

/** Return what is known of each tier that anything is known of. */
function tiersOf(metrics) {
  const value = (name, tier, dimension = "Tier") => {
    const found = metrics.filter((each) => each.name === name && each.dimensions[dimension] === tier);
    return found.length ? found.reduce((sum, each) => sum + each.value, 0) : null;
  };
  const all = TIERS.map((tier) => {
    const [hits, misses] = [value("StateHits", tier), value("StateMisses", tier)];
    const looked = (hits ?? 0) + (misses ?? 0);
    return {
      tier,
      sequences: value("StateSequences", tier),
      bytes: value("StateBytes", tier),
      rate: looked ? `${number((100 * (hits ?? 0)) / looked)} %` : "–",
      moved: value("StateMoves", tier, "To"),
    };
  });
  return all.filter((each) => each.sequences !== null || each.moved !== null);
}
