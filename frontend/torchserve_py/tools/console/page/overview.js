// All models: sums, their history, and the table.

import { listen } from "./api.js";
import { budgetsPanel } from "./budgets.js";
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { bytes, count, number } from "./format.js";
import { History } from "./history.js";
import { keysPanel } from "./keys_used.js";
import { modelsTable } from "./models_table.js";
import { problemsPanel } from "./problems.js";
import { rangeSwitch } from "./range_switch.js";
import { registerDialog } from "./register.js";
import { tiles } from "./tiles.js";

const TILES = [
  { label: "Answers per second", column: "answers", format: number, color: "--accent" },
  { label: "Failures per second", column: "failures", format: number, color: "--bad" },
  { label: "Waiting", column: "queued", format: count, color: "--warm" },
  { label: "Running", column: "running", format: count, color: "--cool" },
  { label: "Workers ready", column: "workers", format: count, color: "--good" },
  { label: "Open sequences", column: "sequences", format: count, color: "--violet" },
];

/** Return the view of all models. */
export function view({ server, signal, tellState }) {
  const top = tiles(TILES, signal);
  const problems = problemsPanel();
  const budgets = budgetsPanel();
  const keys = keysPanel();
  let tracebacks = [];
  const charts = [
    chart(
      "Answers and failures per second",
      [
        { column: "answers", label: "answers", color: "--accent", fill: true },
        { column: "failures", label: "failures", color: "--bad", fill: true },
      ],
      number,
      signal,
    ),
    chart(
      "Requests in the server",
      [
        { column: "running", label: "running", color: "--cool", fill: true },
        { column: "queued", label: "waiting", color: "--warm", fill: true },
      ],
      count,
      signal,
    ),
  ];
  const models = new Map();
  const list = modelsTable(signal);
  let history = new History(server.columns, null);
  const draw = () => charts.forEach((each) => each.show(history, range.current()));
  const range = rangeSwitch(draw);

  const take = (data, rows) => {
    for (const row of rows) {
      const before = models.get(row.id);
      const spark = before?.spark ?? data.sparks?.[row.id] ?? [...Array(59).fill(0), row.last?.[0] ?? 0];
      models.set(row.id, { ...row, spark, moves: before?.moves ?? 0 });
    }
    for (const id of data.gone ?? []) models.delete(id);
    const every = [...models.values()];
    tracebacks = data.tracebacks ?? tracebacks;
    problems.show({ problems: data.problems, models: every, tracebacks });
    const wanted = every.reduce((sum, row) => sum + row.wanted, 0);
    const ready = every.reduce((sum, row) => sum + row.workers, 0);
    top.show(history, {
      "Failures per second": { text: failureRate(every.map((row) => row.minute)), alarm: history.last("failures") > 0 },
      "Workers ready": { text: `of ${count(wanted)}, ${bytes(history.last("memory") || null)}`, alarm: ready < wanted },
    });
    budgets.show(data.budgets);
    keys.show(data.keys);
    draw();
    list.show(every);
    tellState("live");
  };
  listen(
    "console/api/overview",
    {
      overview(data) {
        models.clear();
        history = new History(server.columns, data.history);
        take(data, data.models);
      },
      second(data) {
        history.add(data);
        const fresh = new Map(data.models.map((row) => [row.id, row]));
        for (const row of models.values()) {
          const answers = (fresh.get(row.id) ?? row).last?.[0] ?? 0;
          if (!answers && row.spark.every((value) => !value)) continue; // a flat line looks the same
          row.spark.shift();
          row.spark.push(answers);
          row.moves += 1;
        }
        take(data, data.models);
      },
      lost: () => tellState("reconnecting"),
    },
    signal,
  );
  return h(
    "div",
    { class: "overview" },
    h("div", { class: "heading" }, h("h1", {}, "Models"), range.element, h("span", { class: "spacer" }), registerButton(server)),
    problems.element,
    top.element,
    budgets.element,
    h("div", { class: "charts" }, charts.map((each) => each.card)),
    list.element,
    keys.element,
  );
}

/** Return which share of the answers of the last minute were failures, from what models did in it. */
export function failureRate(minutes) {
  const sum = (name) => minutes.reduce((total, minute) => total + (minute?.[name] ?? 0), 0);
  const [answers, failures] = [sum("answers"), sum("failures")];
  return answers ? `${number((100 * failures) / answers)} % of the last minute` : "";
}

function registerButton(server) {
  if (!server.model_api) return null; // the server would refuse it
  return h("button", { id: "register", type: "button", class: "primary", onclick: registerDialog }, "Register a model");
}
