// The table of models: filtered, sorted, and with a limited number of rows.

import { path } from "./api.js";
import { h, reconcile, setText, table } from "./dom.js";
import { count, milliseconds, number } from "./format.js";
import { sparkline } from "./sparkline.js";
import { whenThemeChanges } from "./theme.js";

const MOST_ROWS = 150;
const ANSWERS = 0; // its place in a point
const { compare } = new Intl.Collator(undefined, { numeric: true });
const ORDERS = {
  name: (a, b) => compare(a.name, b.name) || compare(a.version, b.version),
  busiest: (a, b) => busy(b) - busy(a) || ORDERS.name(a, b),
  failing: (a, b) => b.failing - a.failing || Boolean(b.trouble) - Boolean(a.trouble) || failures(b) - failures(a) || b.failed - a.failed || ORDERS.name(a, b),
};
const COLUMNS = [["Model"], ["Workers"], ["Answers / s", "number wide"], ["Last minute", "spark"], ["Waiting", "number"], ["Wait p99", "number wide"], ["Handler p99", "number wide"], ["Sequences", "number wide"], ["Failing", "number"]];

const failures = (row) => row.minute?.failures ?? 0;
const busy = (row) => (row.last?.[ANSWERS] ?? 0) + row.queued + row.running;

/** Return the table; `show(rows)` fills it. */
export function modelsTable(signal) {
  let rows = [];
  const search = h("input", { type: "search", placeholder: "Search models", ariaLabel: "Search models", oninput: draw });
  const order = h("select", { ariaLabel: "Order", onchange: draw }, Object.keys(ORDERS).map((name) => h("option", { value: name }, `by ${name}`)));
  const body = h("tbody");
  const note = h("p", { class: "note", role: "status" });

  function draw() {
    const text = search.value.trim().toLowerCase();
    const found = rows.filter((row) => `${row.name} ${row.version} ${row.contract}`.toLowerCase().includes(text));
    const first = found.sort(ORDERS[order.value]).slice(0, MOST_ROWS);
    reconcile(body, first, (row) => row.id, create, update);
    const more = found.length > first.length ? ` The first ${MOST_ROWS} are shown.` : "";
    setText(note, rows.length ? `${count(found.length)} of ${count(rows.length)} model versions.${more} Times and failures are those of the last minute.` : "No model is registered.");
  }

  whenThemeChanges(() => [...body.children].forEach(({ draw: redraw, row }) => redraw(row.spark)), signal);
  return {
    element: h("section", { class: "card models" }, h("div", { class: "tools" }, search, order, note), table("Models", COLUMNS, body)),
    show(every) {
      rows = every;
      if (!signal.aborted) draw();
    },
  };
}

function create(row) {
  const fields = {
    workers: h("span", { class: "workers" }),
    answers: h("td", { class: "number wide" }),
    queued: h("td", { class: "number" }),
    wait: h("td", { class: "number wide" }),
    handler: h("td", { class: "number wide" }),
    sequences: h("td", { class: "number wide" }),
    failed: h("td", { class: "number" }),
  };
  const canvas = h("canvas", { ariaHidden: "true" });
  const name = h(
    "td",
    {},
    h("a", { href: `#/models/${path(row.name, row.version)}` }, row.name),
    " ",
    h("span", { class: "badge" }, row.version),
    row.contract === "torchserve" ? null : h("span", { class: "badge wide" }, row.contract),
    row.durable ? h("span", { class: "badge wide" }, "stored") : row.stateful ? h("span", { class: "badge wide" }, "sequences") : null,
  );
  const element = h("tr", {}, name, h("td", {}, fields.workers), fields.answers, h("td", { class: "spark" }, canvas));
  element.append(fields.queued, fields.wait, fields.handler, fields.sequences, fields.failed);
  return Object.assign(element, { fields, draw: sparkline(canvas) });
}

/** Say what becomes of a model that has no worker which takes requests: it loads on demand, or sleeps. */
function stateOf(row) {
  if (row.rests) return row.rests;
  if (row.workers) return null;
  if (row.waits) return "waits for memory";
  if (!row.on_demand) return null;
  return row.wanted ? "loading" : "unloaded";
}

function update(element, row) {
  if (element.row === row && element.moves === row.moves) return;
  Object.assign(element, { row, moves: row.moves });
  const { fields, draw } = element;
  const { answers = 0, wait_p99: wait, handler_p99: handler } = row.minute ?? {};
  setText(fields.workers, stateOf(row) ?? `${row.workers} / ${row.wanted}`);
  fields.workers.dataset.state = row.failing || (row.trouble && !row.workers) ? "bad" : row.rests ? "none" : row.workers < row.wanted ? "warm" : row.workers ? "good" : "none";
  setText(fields.answers, number(row.last?.[ANSWERS] ?? 0));
  setText(fields.queued, count(row.queued));
  setText(fields.wait, milliseconds(wait));
  setText(fields.handler, milliseconds(handler));
  setText(fields.sequences, row.stateful ? count(row.sequences) : "");
  const share = answers ? `${number((100 * failures(row)) / answers)} %` : "";
  setText(fields.failed, share);
  fields.failed.title = `${count(failures(row))} of ${count(answers)} answers in the last minute; ${count(row.failed)} failures since the model was registered`;
  fields.failed.classList.toggle("bad", failures(row) > 0);
  draw(row.spark);
}
