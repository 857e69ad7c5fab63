// The page: asks for the key if the server wants one, and shows the view that the address names.

import { call, key, whenKeyNeeded } from "./api.js";
import { h, setText } from "./dom.js";
import { keyView } from "./key_view.js";
import { listenToKeys, showShortcuts } from "./shortcuts.js";
import { apply, switchTheme } from "./theme.js";

const VIEWS = {
  "": () => import("./overview.js"),
  models: () => import("./model.js"),
  logs: () => import("./worker_log.js"),
  events: () => import("./events.js"),
  server: () => import("./server_view.js"),
};
const main = document.getElementById("main");
const state = document.getElementById("state");
let server = null;
let shown = null; // ends the view that is shown

/** Show in the bar whether the page is fed: "live", "reconnecting" or nothing. What is not fed any more turns grey. */
export function tellState(word) {
  setText(state, word);
  state.dataset.state = word;
  main.classList.toggle("stale", word === "reconnecting");
}

async function show() {
  shown?.abort();
  const { signal } = (shown = new AbortController());
  tellState("");
  try {
    const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
    server ??= await call("GET", "console/api/server");
    setText(document.getElementById("version"), server.version);
    const { view } = await (VIEWS[name] ?? VIEWS[""])();
    for (const link of document.querySelectorAll(".views a")) link.ariaCurrent = link.hash === `#/${VIEWS[name] && name !== "models" && name !== "logs" ? name : ""}` ? "page" : null;
    if (signal.aborted) return;
    const content = await view({ server, segments: rest, signal, tellState: (word) => signal.aborted || tellState(word) });
    if (!signal.aborted) place(content);
  } catch (error) {
    if (!signal.aborted && !error.isKey) place(h("p", { class: "empty" }, error.message));
  }
}

function place(content) {
  main.replaceChildren(content);
  document.title = `${content.querySelector?.("h1")?.textContent ?? "Console"} · torchserve-py`;
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

whenKeyNeeded(() => {
  shown?.abort();
  const refused = key.get() !== "";
  key.set("");
  place(keyView(refused, show));
});
document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("help").addEventListener("click", showShortcuts);
addEventListener("hashchange", show);
// A page that the browser keeps for "back" would keep its connections, of which there are six for a host.
addEventListener("pagehide", () => shown?.abort());
addEventListener("pageshow", (event) => event.persisted && show());
listenToKeys();
apply();
show();
