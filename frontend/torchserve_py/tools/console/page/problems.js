// What is wrong, first of all: the server's own problems, models that do not load or lose their workers, and the last tracebacks.

import { path } from "./api.js";
import { h, reconcile, setText } from "./dom.js";
import { clock, count, duration } from "./format.js";

const MOST_SHOWN = 8;

/** Return the panel; `show({ problems, models, tracebacks })` fills it. */
export function problemsPanel() {
  const lines = h("div", { class: "problems" });
  const list = h("ul", { class: "tracebacks" });
  const note = h("p", { class: "note" });
  const card = h("section", { class: "card", hidden: true, ariaLabel: "Last tracebacks" }, h("h2", {}, "Last tracebacks"), note, list);
  return {
    element: h("div", {}, lines, card),
    show({ problems, models, tracebacks }) {
      const failing = models.filter((row) => row.failing || row.trouble);
      const every = [...problems.map((text) => ({ key: text, text })), ...failing.map((row) => ({ key: `model ${row.id}`, row }))];
      reconcile(lines, every, ({ key }) => key, create, update);
      card.hidden = !tracebacks.length;
      setText(note, `${count(tracebacks.length)} different ones since the server started; the latest is the first.`);
      reconcile(list, tracebacks.slice(0, MOST_SHOWN), ({ model, traceback }) => `${model} ${traceback}`, createTraceback, updateTraceback);
    },
  };
}

function create({ text, row }) {
  if (!row) return h("p", { class: "problem", role: "alert" }, text);
  const why = h("span");
  const link = h("a", { href: `#/models/${path(row.name, row.version)}/workers` }, `${row.name} ${row.version}`);
  return Object.assign(h("p", { class: "problem", role: "alert" }, link, why), { why });
}

function update(element, { row }) {
  if (!row) return;
  setText(element.why, ` ${row.failing ? loadFailure(row) : workerTrouble(row)}`);
}

function loadFailure({ failing_since: since, why, starts_at: startsAt }) {
  return `cannot be loaded for ${duration(Date.now() / 1000 - since)}: ${why}${again(startsAt)}`;
}

/** Return what the workers of a model suffer from: how many ended or gave no answer, and why the last one ended. */
function workerTrouble({ workers, minute, trouble: { worker, why, starts_at: startsAt } }) {
  const { deaths, timeouts } = minute;
  const ended = deaths ? `lost ${deaths === 1 ? "a worker" : `${count(deaths)} workers`} in the last minute` : "";
  const late = timeouts ? `gave no answer in time to ${timeouts === 1 ? "a request" : `${count(timeouts)} requests`} in the last minute` : "";
  const words = [ended, late].filter(Boolean).join(" and ") || (workers ? "has too few workers" : "has no worker");
  return `${words}${worker ? `; worker ${worker} ended: ${why}${again(startsAt)}` : ""}`;
}

function again(startsAt) {
  const left = startsAt - Date.now() / 1000;
  return left > 0 ? `; starts again in ${duration(left)}` : "";
}

function createTraceback({ error, traceback, model }) {
  const when = h("span", { class: "muted" });
  const requests = h("p", { class: "note" });
  const element = h("li", {}, h("details", {}, h("summary", {}, h("b", {}, model), " ", h("span", { class: "bad" }, error), " ", when), requests, h("pre", { tabIndex: 0 }, traceback)));
  return Object.assign(element, { when, requests });
}

function updateTraceback(element, { count: many, first_at: first, last_at: last, requests, worker }) {
  const times = many === 1 ? `at ${clock(last)}` : `${count(many)} times since ${clock(first)}, last at ${clock(last)}`;
  setText(element.when, `${times}, worker ${worker}`);
  setText(element.requests, requests.length ? `Requests: ${requests.join(", ")}` : "The request is not known.");
}
