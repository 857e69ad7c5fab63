// What a model version does: charts, the batches that were formed, and its failures by cause.

import { chart } from "./chart.js";
import { deadlinesCard } from "./deadlines.js";
import { h, reconcile, setText } from "./dom.js";
import { finishedJobs } from "./finished_jobs.js";
import { bytes, count, milliseconds, number } from "./format.js";
import { handlerMetrics } from "./handler_metrics.js";
import { failureRate } from "./overview.js";
import { rangeSwitch } from "./range_switch.js";
import { tiles } from "./tiles.js";
import { trafficPanel } from "./traffic.js";

const TILES = [
  { label: "Answers per second", column: "answers", format: number, color: "--accent" },
  { label: "Failures per second", column: "failures", format: number, color: "--bad" },
  { label: "Wait, half within", column: "waiting_p50", format: milliseconds, color: "--warm" },
  { label: "Handler, half within", column: "handler_p50", format: milliseconds, color: "--cool" },
  { label: "Jobs in a batch", column: "batch_size", format: number, color: "--violet" },
  { label: "Running", column: "running", format: count, color: "--good" },
  { label: "Memory", column: "memory", format: bytes, color: "--accent" },
];
const points = { spanGaps: true };
const CHARTS = [
  [
    "Answers and failures per second",
    number,
    [
      { column: "answers", label: "answers", color: "--accent", fill: true },
      { column: "failures", label: "failures", color: "--bad", fill: true },
    ],
  ],
  [
    "Waiting in the queue",
    milliseconds,
    [
      { column: "waiting_p99", label: "99 % within", color: "--warm", dash: [4, 4], ...points },
      { column: "waiting_p50", label: "50 % within", color: "--warm", fill: true, ...points },
    ],
  ],
  [
    "A call of the handler",
    milliseconds,
    [
      { column: "handler_p99", label: "99 % within", color: "--cool", dash: [4, 4], ...points },
      { column: "handler_p50", label: "50 % within", color: "--cool", fill: true, ...points },
    ],
  ],
  [
    "Requests in the server",
    count,
    [
      { column: "running", label: "running", color: "--good", fill: true },
      { column: "queued", label: "waiting", color: "--warm", fill: true },
    ],
  ],
  ["Jobs in a batch", number, [{ column: "batch_size", label: "mean", color: "--violet", fill: true, ...points }]],
];
const STREAMS = [
  [
    "Until the first part of a stream",
    milliseconds,
    [
      { column: "first_part_p99", label: "99 % within", color: "--accent", dash: [4, 4], ...points },
      { column: "first_part_p50", label: "50 % within", color: "--accent", fill: true, ...points },
    ],
  ],
  [
    "From one part to the next",
    milliseconds,
    [
      { column: "next_part_p99", label: "99 % within", color: "--good", dash: [4, 4], ...points },
      { column: "next_part_p50", label: "50 % within", color: "--good", fill: true, ...points },
    ],
  ],
];
const SEQUENCES = ["Open sequences", count, [{ column: "sequences", label: "open", color: "--violet", fill: true }]];
const WORKERS = ["Workers ready", count, [{ column: "workers", label: "ready", color: "--good", fill: true }]];

/** Return the tab. */
export function liveTab({ server, model, signal }) {
  const top = tiles(TILES, signal);
  const kinds = [...CHARTS, model.stateful ? SEQUENCES : WORKERS, ...STREAMS];
  const charts = kinds.map(([title, format, lines]) => chart(title, lines, format, signal));
  const ofStreams = charts.slice(-STREAMS.length);
  const draw = () => charts.forEach((each) => each.show(model.history, range.current()));
  const range = rangeSwitch(draw);
  const batches = bars("Batches formed", "--violet");
  const failures = bars("Failures by cause", "--bad");
  const deadlines = deadlinesCard();
  const ofHandler = handlerMetrics();
  const traffic = trafficPanel();
  const slowest = finishedJobs("Slowest requests", "Of the last minutes, the slowest first.", model);
  return {
    element: h(
      "div",
      {},
      top.element,
      h("div", { class: "tools" }, range.element),
      h("div", { class: "charts" }, charts.map((each) => each.card), batches.card, failures.card, deadlines.card, ofHandler.elements),
      traffic.element,
      slowest.element,
    ),
    update(now) {
      const late = (time) => ({ text: `99 % within ${milliseconds(time)} in the last minute` });
      top.show(now.history, {
        "Failures per second": { text: failureRate([now.minute]), alarm: now.history.last("failures") > 0 },
        "Wait, half within": late(now.minute?.wait_p99),
        "Handler, half within": late(now.minute?.handler_p99),
        Running: { text: `${count(now.queued)} waiting, room for ${count(now.free)}` },
      });
      const streams = now.history.line("first_part_p50").some((value) => value !== null);
      ofStreams.forEach(({ card }) => (card.hidden = !streams));
      draw();
      traffic.show(now.traffic);
      slowest.show(now.slowest);
      deadlines.show(now.deadlines);
      ofHandler.show(now.metrics);
      batches.show(sizes(now.batches, server.batch_bounds), "In the last hour, by the number of requests in them.");
      const causes = Object.entries(now.failures).sort(([, a], [, b]) => b - a);
      failures.show(causes, `In the last hour; ${count(now.failed)} of ${count(now.failed + now.succeeded)} requests since the model was registered.`);
    },
  };
}

/** Name the buckets of sizes that were counted: 1, 2, 3–4, … */
function sizes(counts, bounds) {
  const named = counts.map((many, index) => {
    const [low, high] = [(bounds[index - 1] ?? 0) + 1, bounds[index]];
    return [high === undefined ? `over ${bounds.at(-1)}` : low === high ? `${high}` : `${low}–${high}`, many];
  });
  return named.filter(([, many]) => many);
}

function bars(title, color) {
  const list = h("ol", { class: "bars" });
  const none = h("p", { class: "empty" }, "None.");
  const note = h("p", { class: "note" });
  const card = h("section", { class: "card" }, h("h2", {}, title), note, none, list);
  return {
    card,
    show(entries, remark) {
      setText(note, remark);
      none.hidden = entries.length > 0;
      const most = Math.max(...entries.map(([, many]) => many), 1);
      const create = ([name]) => {
        const bar = h("i", { class: "fill" });
        bar.style.setProperty("background", `var(${color})`);
        const many = h("b");
        return Object.assign(h("li", {}, h("span", {}, name), h("div", { class: "track" }, bar), many), { bar, many });
      };
      reconcile(list, entries, ([name]) => name, create, (element, [, many]) => {
        element.bar.style.setProperty("width", `${Math.max(1, (100 * many) / most)}%`);
        setText(element.many, count(many));
      });
    },
  };
}
