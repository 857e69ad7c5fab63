// The server itself: what it takes of the machine, its GPUs, and its settings with where each comes from.

import { listen } from "./api.js";
import { h, reconcile, setText, table } from "./dom.js";
import { bytes, count, duration, number } from "./format.js";

const MEBIBYTE = 2 ** 20;
const FACTS = [
  ["Processors of the machine", (now) => `${number(now.cpu)} % of ${count(now.cpus)}, load ${number(now.load)}`],
  ["Memory of the machine", (now) => `${bytes(now.memory)} of ${bytes(now.memory_total)}`],
  ["Disk", (now) => `${bytes(now.disk)} of ${bytes(now.disk_total)}`],
  ["The server process", (now) => `${number(now.frontend_cpu)} % of a processor, ${bytes(now.frontend_memory)}, process ${now.pid}`],
  ["Its workers", (now) => `${count(now.workers)} with ${bytes(now.workers_memory)}`],
  ["Running for", (now) => duration(now.uptime)],
];

/** Return the view. */
export function view({ server, signal, tellState }) {
  const values = FACTS.map(([label]) => [label, h("td", {}, "–")]);
  const gpus = h("tbody");
  const gpuTable = table("GPUs", [["GPU"], ["Busy"], ["Memory"]], gpus);
  const noGpu = h("p", { class: "empty" }, "No GPU is known.");
  const rows = h("tbody");
  const search = h("input", { type: "search", placeholder: "Search settings", ariaLabel: "Search settings", oninput: () => [...rows.children].forEach(sift) });
  const changed = h("input", { type: "checkbox", onchange: () => [...rows.children].forEach(sift) });
  const sift = (row) => (row.hidden = !row.textContent.toLowerCase().includes(search.value.toLowerCase()) || (changed.checked && row.isDefault));

  listen(
    "console/api/machine",
    {
      settings(every) {
        rows.replaceChildren(...every.map(create));
        [...rows.children].forEach(sift);
        tellState("live");
      },
      second(now) {
        FACTS.forEach(([, text], index) => setText(values[index][1], text(now)));
        noGpu.hidden = now.gpus.length > 0;
        gpuTable.hidden = !noGpu.hidden;
        reconcile(gpus, now.gpus, ({ index }) => index, createGpu, updateGpu);
        tellState("live");
      },
      lost: () => tellState("reconnecting"),
    },
    signal,
  );
  return h(
    "div",
    {},
    h("div", { class: "heading" }, h("h1", {}, "Server"), h("span", { class: "badge" }, `version ${server.version}`)),
    h("div", { class: "halves" },
      h("section", { class: "card" }, h("h2", {}, "Machine"), h("table", { class: "settings" }, h("tbody", {}, values.map(([label, cell]) => h("tr", {}, h("th", { scope: "row" }, label), cell))))),
      h("section", { class: "card" }, h("h2", {}, "GPUs"), noGpu, gpuTable),
    ),
    h("section", { class: "card configuration" }, h("h2", {}, "Settings"), h("div", { class: "tools" }, search, h("label", { class: "check" }, changed, "Only those that are not defaults")), table("Settings", [["Setting"], ["Value"], ["From"]], rows)),
  );
}

function create({ name, value, origin }) {
  const row = h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "id" }, value), h("td", {}, origin));
  return Object.assign(row, { isDefault: origin === "default" });
}

function createGpu({ index }) {
  const busy = h("meter", { min: 0, max: 100, ariaLabel: `Busy, GPU ${index}` });
  const filled = h("meter", { min: 0, max: 1, ariaLabel: `Memory, GPU ${index}` });
  const fields = { busy, filled, busyText: h("span"), filledText: h("span") };
  const row = h("tr", {}, h("th", { scope: "row" }, `${index}`), h("td", {}, busy, " ", fields.busyText), h("td", {}, filled, " ", fields.filledText));
  return Object.assign(row, { fields });
}

/** Show a GPU's numbers; a divided one does not tell them. */
function updateGpu({ fields }, gpu) {
  const share = gpu.memory_total ? gpu.memory_used / gpu.memory_total : 0;
  fields.busy.value = gpu.utilization ?? 0;
  fields.filled.value = share;
  setText(fields.busyText, gpu.utilization === null ? "not told" : `${number(gpu.utilization)} %`);
  setText(fields.filledText, gpu.memory_used === null ? "not told" : `${bytes(gpu.memory_used * MEBIBYTE)} of ${gpu.memory_total === null ? "?" : bytes(gpu.memory_total * MEBIBYTE)}`);
}
