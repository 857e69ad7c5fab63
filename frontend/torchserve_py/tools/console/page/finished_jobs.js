// A table of requests that have ended: when, how long they waited and ran, where, and by which ids logs and traces know them.

import { path } from "./api.js";
import { h, reconcile, table } from "./dom.js";
import { bytes, clock, milliseconds } from "./format.js";

const STATE = "State";
const COLUMNS = [["Ended at"], ["Waited", "number"], ["Ran", "number"], [STATE, "number"], ["Outcome"], ["Worker"], ["Request"], ["Trace", "wide"]];

/** Return a card; `show(jobs)` fills it. Steps of sequences have the size of the state that a store has written. */
export function finishedJobs(title, remark, model, { areSteps = false } = {}) {
  const body = h("tbody");
  const none = h("p", { class: "empty" }, "None.");
  const rows = table(title, areSteps ? COLUMNS : COLUMNS.filter(([name]) => name !== STATE), body);
  return {
    element: h("section", { class: "card finished" }, h("h2", {}, title), h("p", { class: "note" }, remark), none, rows),
    show(jobs) {
      none.hidden = jobs.length > 0;
      rows.hidden = !jobs.length;
      reconcile(body, jobs, ({ at, request }) => `${at} ${request}`, (job) => row(job, model, areSteps));
    },
  };
}

function row({ at, waited, ran, state, told, failed, request, trace, worker }, { name, version }, areSteps) {
  const sizes = areSteps ? [bytes(state)] : [];
  const numbers = [milliseconds(waited), milliseconds(ran), ...sizes].map((text) => h("td", { class: "number" }, text));
  const log = worker ? h("a", { href: `#/logs/${path(worker, name, version)}` }, worker) : "–";
  const ids = [request, trace || "–"].map((each, index) => h("td", { class: index ? "id wide" : "id" }, each));
  return h("tr", {}, h("td", {}, clock(at)), numbers, h("td", { class: failed ? "bad" : "" }, told), h("td", {}, log), ids);
}
