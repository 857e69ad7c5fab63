// The open sequences of a model version: searched at the server, which sends the first of them.

import { call, path } from "./api.js";
import { bookmarks } from "./bookmarks.js";
import { h, reconcile, setText, table } from "./dom.js";
import { finishedJobs } from "./finished_jobs.js";
import { count, duration } from "./format.js";
import { attempt, confirmed, notify } from "./notices.js";

const EVERY = 2000;
const LIMIT = 100;
/** How often the store is asked whether a sequence has ended. */
const LOOKS = 10;
const ORDERS = { oldest: "oldest first", newest: "newest first", idle: "longest idle first" };
const COLUMNS = [["Sequence"], ["State"], ["Age", "number"], ["Idle for", "number"], ["Worker"], ["Waiting", "number wide"], ["Running", "number wide"], ["End", "number"]];

/** Return the tab. */
export function sequencesTab({ model, signal }) {
  const here = path(model.name, model.version);
  const target = `console/api/sequences/${here}`;
  const search = h("input", { type: "search", placeholder: "Search ids", ariaLabel: "Search ids of sequences", oninput: () => look() });
  const order = h("select", { ariaLabel: "Order", onchange: () => look() }, Object.entries(ORDERS).map(([value, label]) => h("option", { value }, label)));
  const note = h("p", { class: "note", role: "status" }, "Looking …");
  const history = h("div", { class: "steps" });
  let chosen = null;
  const body = h("tbody");
  let timer = null;
  let turn = 0;

  function choose(id) {
    const remark = "The last steps that this server has run, the oldest first, and how large the state was that a store has written.";
    const steps = finishedJobs(`Steps of ${id}`, remark, model, { areSteps: true });
    chosen = { id, steps, stored: model.durable ? bookmarks(model, id, signal, choose) : null, newest: null, looks: 0 };
    history.replaceChildren(...[chosen.stored, steps].filter(Boolean).map((each) => each.element));
    look();
  }

  async function showSteps(now) {
    const jobs = await call("GET", `console/api/steps/${here}`, { id: now.id });
    now.steps.show(jobs);
    const newest = jobs.at(-1)?.request ?? "";
    const isNew = now.newest !== null && now.newest !== newest;
    now.newest = newest;
    if (!isNew && now.looks === 0) return;
    const state = await now.stored?.refresh();
    now.looks = state === "open" ? Math.max(0, now.looks - 1) : 0;
  }

  async function look() {
    clearTimeout(timer);
    const mine = ++turn;
    try {
      const page = await call("GET", target, { text: search.value, order: order.value, limit: LIMIT });
      if (signal.aborted || mine !== turn) return;
      reconcile(body, page.sequences, (each) => `${each.id} ${each.worker_id}`, (each) => create(target, model, each, ended, choose), update);
      const more = page.found > page.sequences.length ? ` The first ${count(page.sequences.length)} are shown.` : "";
      if (chosen) await showSteps(chosen);
      setText(note, `${count(page.found)} of ${count(page.open)} open sequences.${more}`);
    } catch (error) {
      if (signal.aborted || mine !== turn) return;
      setText(note, error.message);
    }
    if (mine === turn) timer = setTimeout(look, EVERY);
  }

  function ended(id) {
    if (chosen?.id === id) chosen.looks = LOOKS; // its worker ends it within a moment
    look();
  }

  signal.addEventListener("abort", () => clearTimeout(timer));
  look();
  const list = h("section", { class: "card" }, h("div", { class: "tools" }, search, order, note), table("Sequences", COLUMNS, body));
  return { element: h("div", {}, list, history) };
}

function create(target, model, { id, worker_id: worker }, ended, choose) {
  const cell = (kind = "") => h("td", { class: kind });
  const state = h("span", { class: "state-word" });
  const fields = { age: cell("number"), idle: cell("number"), worker: cell(), waiting: cell("number wide"), running: cell("number wide") };
  const end = h("button", { type: "button", class: "small", onclick: () => endSequence(end, target, id, ended), ariaLabel: `End sequence ${id}` }, "End");
  if (worker) fields.worker.append(h("a", { href: `#/logs/${path(worker, model.name, model.version)}` }, worker));
  const steps = h("button", { type: "button", class: "link", onclick: () => choose(id), ariaLabel: `Steps of sequence ${id}` }, id);
  const element = h("tr", {}, h("td", { class: "id" }, steps), h("td", {}, state), Object.values(fields), h("td", { class: "number" }, end));
  return Object.assign(element, { fields, state });
}

function update(element, each) {
  const { fields, state } = element;
  setText(state, each.state);
  state.dataset.state = { idle: "none", running: "busy", ready: "warm" }[each.state] ?? "warm";
  setText(fields.age, duration(each.age));
  setText(fields.idle, duration(each.idle));
  setText(fields.waiting, count(each.waiting));
  setText(fields.running, count(each.in_flight));
}

async function endSequence(button, target, id, ended) {
  if (!(await confirmed(`Sequence ${id} ends, and its state is dropped.`, "End the sequence"))) return;
  const done = await attempt(button, () => call("DELETE", target, { id }));
  if (done) {
    notify(done.status);
    ended(id);
  }
}
