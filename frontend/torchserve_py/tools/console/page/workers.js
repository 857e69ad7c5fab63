// The workers of a model version: what each does, why it was restarted, and how many there are to be.

import { call, path } from "./api.js";
import { field, h, reconcile, setText, table } from "./dom.js";
import { bytes, count, duration } from "./format.js";
import { attempt, notify } from "./notices.js";

const MOST_ROWS = 200;
const COLUMNS = [["Worker"], ["State"], ["Device"], ["Running", "number"], ["Memory", "number"], ["Up for", "number wide"], ["Restarts", "number"], ["Why the last one ended"], ["Log", "number"]];

/** Return the tab. */
export function workersTab({ model, signal }) {
  const body = h("tbody");
  const [least, most] = [model.min_workers, model.max_workers].map((value) => h("input", { type: "number", min: 0, value }));
  const apply = h("button", { class: "primary" }, "Scale");
  const note = h("p", { class: "note", role: "status" });
  const scale = async (event) => {
    event.preventDefault();
    const query = { min_worker: least.value, max_worker: most.value, synchronous: "true" };
    const done = await attempt(apply, () => call("PUT", `models/${path(model.name, model.version)}`, query));
    if (done) notify(done.status);
  };
  least.addEventListener("input", () => Number(most.value) < Number(least.value) && (most.value = least.value));
  return {
    element: h(
      "div",
      {},
      h("form", { class: "card scale", onsubmit: scale }, field("At least", least), field("At most", most), apply, note),
      h("section", { class: "card" }, table("Workers", COLUMNS, body)),
    ),
    update(now) {
      if (signal.aborted) return;
      reconcile(body, now.workers.slice(0, MOST_ROWS), (worker) => worker.id, (worker) => create(now, worker), update);
      const ready = now.workers.filter((worker) => worker.ready).length;
      setText(note, `${count(ready)} of ${count(now.workers.length)} workers are ready.`);
    },
  };
}

function create(model, worker) {
  const cell = (kind = "") => h("td", { class: kind });
  const state = h("span", { class: "state-word" });
  const fields = { device: cell(), running: cell("number"), memory: cell("number"), age: cell("number wide"), restarts: cell("number"), why: cell("why") };
  const log = h("a", { class: "button small", href: `#/logs/${path(worker.id, model.name, model.version)}` }, "Log");
  const name = h("td", {}, worker.id, " ", h("span", { class: "muted pid" }));
  return Object.assign(h("tr", {}, name, h("td", {}, state), Object.values(fields), h("td", { class: "number" }, log)), { fields, state });
}

/** Return the kind of a worker's state, by which it is coloured. */
function stateOf(worker, isBusy) {
  if (worker.rest) return "none";
  if (worker.ready) return isBusy ? "busy" : "good";
  return worker.gave_up || worker.failure ? "bad" : "warm";
}

/** Return the state in words: of a worker that has failed also when it starts again. */
function stateText(worker) {
  const left = worker.starts_at - Date.now() / 1000;
  return worker.starts_at && left > 0 ? `${worker.state}, starts again in ${duration(left)}` : worker.state;
}

function update(element, worker) {
  const { fields, state } = element;
  const isBusy = worker.ready && worker.running > 0;
  setText(state, worker.rest ? `${worker.rest.state} for ${duration(Date.now() / 1000 - worker.rest.since)}` : isBusy ? "busy" : stateText(worker));
  state.dataset.state = stateOf(worker, isBusy);
  setText(element.querySelector(".pid"), worker.pid > 0 ? `pid ${worker.pid}` : "");
  setText(fields.device, worker.gpu_memory ? `${worker.device}, ${bytes(worker.gpu_memory)}` : worker.device);
  setText(fields.running, count(worker.running));
  setText(fields.memory, worker.memory ? bytes(worker.memory) : "–");
  setText(fields.age, duration(Date.now() / 1000 - worker.launched_at));
  setText(fields.restarts, count(worker.restarts));
  setText(fields.why, worker.last_end);
}
