// A table of requests that have ended: when, how long they waited and ran, where, and by which ids logs and traces know them.

import { path } from "./api.js";
import { h, reconcile, table } from "./dom.js";
import { clock, milliseconds } from "./format.js";

const COLUMNS = [["Ended at"], ["Waited", "number"], ["Ran", "number"], ["Outcome"], ["Worker"], ["Request"], ["Trace", "wide"]];

/** Return a card; `show(jobs)` fills it. */
export function finishedJobs(title, remark, model) {
  const body = h("tbody");
  const none = h("p", { class: "empty" }, "None.");
  const rows = table(title, COLUMNS, body);
  return {
    element: h("section", { class: "card finished" }, h("h2", {}, title), h("p", { class: "note" }, remark), none, rows),
    show(jobs) {
      none.hidden = jobs.length > 0;
      rows.hidden = !jobs.length;
      reconcile(body, jobs, ({ at, request }) => `${at} ${request}`, (job) => row(job, model));
    },
  };
}

function row({ at, waited, ran, told, failed, request, trace, worker }, { name, version }) {
  const numbers = [waited, ran].map((value) => h("td", { class: "number" }, milliseconds(value)));
  const log = worker ? h("a", { href: `#/logs/${path(worker, name, version)}` }, worker) : "–";
  const ids = [request, trace || "–"].map((each, index) => h("td", { class: index ? "id wide" : "id" }, each));
  return h("tr", {}, h("td", {}, clock(at)), numbers, h("td", { class: failed ? "bad" : "" }, told), h("td", {}, log), ids);
}
