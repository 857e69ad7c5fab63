// How versions share a model's requests: weights, what is decided about a canary, and what a shadow answers otherwise.

import { h, reconcile, setText, table } from "./dom.js";
import { clock, count, milliseconds } from "./format.js";

const MOST_DECISIONS = 5;
const OUTCOMES = ["same", "different", "failed", "dropped"];

/** Return the panel, which is hidden while the default version gets all requests; `show(traffic)` fills it. */
export function trafficPanel() {
  const shares = h("ul", { class: "bars" });
  const canary = h("p", { class: "note canary" });
  const decisions = h("tbody");
  const decided = table("Decisions", [["At"], ["Version"], ["Decision"], ["Share", "number"], ["Why", "wide"]], decisions);
  const shadow = h("p", { class: "note shadow" });
  const differences = h("tbody");
  const differing = table("Differences", [["Request"], ["Live"], ["Shadow"], ["Why", "wide"]], differences);
  const element = h("section", { class: "card traffic", hidden: true }, h("h2", {}, "Traffic"), shares, canary, decided, shadow, differing);
  return {
    element,
    show(now) {
      const weights = Object.entries(now.weights);
      const latest = (now.decisions ?? []).slice(-MOST_DECISIONS).reverse();
      element.hidden = !(weights.length || latest.length || now.shadow);
      reconcile(shares, weights, ([version]) => version, createShare, updateShare);
      canary.hidden = !now.canary;
      if (now.canary) setText(canary, `Canary ${now.canary.version}: ${now.canary.now || "looked at soon"}`);
      decided.hidden = !latest.length;
      reconcile(decisions, latest, ({ at, decision }) => `${at} ${decision}`, decisionRow);
      shadow.hidden = !now.shadow;
      if (now.shadow) setText(shadow, shadowText(now.shadow));
      const found = now.shadow?.differences ?? [];
      differing.hidden = !found.length;
      reconcile(differences, found, ({ requestId }) => requestId, differenceRow);
    },
  };
}

function createShare([version]) {
  const bar = h("meter", { min: 0, max: 100, ariaLabel: `Share of version ${version}` });
  const text = h("b");
  return Object.assign(h("li", {}, h("span", {}, version), bar, text), { bar, text });
}

function updateShare({ bar, text }, [, weight]) {
  bar.value = weight;
  setText(text, `${weight} %`);
}

function decisionRow({ at, version, decision, percent, why }) {
  const share = percent === undefined ? "–" : `${percent} %`;
  const cells = [clock(at), version, decision].map((text) => h("td", {}, text));
  return h("tr", {}, cells, h("td", { class: "number" }, share), h("td", { class: "wide" }, why));
}

function shadowText({ version, percent, meanMSec, liveMeanMSec, ...counts }) {
  const found = OUTCOMES.map((outcome) => `${count(counts[outcome])} ${outcome}`).join(", ");
  const times = meanMSec === undefined ? "" : `; ${milliseconds(meanMSec)} on average, and ${milliseconds(liveMeanMSec)} of the live version`;
  return `Shadow ${version} with ${percent} % of the requests: ${found}${times}`;
}

function differenceRow({ requestId, live, shadow, why }) {
  const begins = [live, shadow].map(({ status, begins: text }) => h("td", {}, status === null ? "no answer" : `${status} ${text}`));
  return h("tr", {}, h("td", { class: "id" }, requestId), begins, h("td", { class: "wide" }, (why ?? ["it failed"]).join("; ")));
}
