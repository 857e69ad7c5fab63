// One model version: its heading, and a tab for each thing to see or to do.

import { call, listen, path } from "./api.js";
import { chatTab } from "./chat.js";
import { h, reconcile, setText } from "./dom.js";
import { History } from "./history.js";
import { liveTab } from "./model_live.js";
import { attempt, confirmed, notify } from "./notices.js";
import { sequencesTab } from "./sequences.js";
import { settingsTab } from "./settings.js";
import { tryTab } from "./try_it.js";
import { workersTab } from "./workers.js";

const TABS = [
  ["live", "Live", liveTab],
  ["workers", "Workers", workersTab],
  ["try", "Try it", tryTab],
  ["chat", "Chat", chatTab],
  ["sequences", "Sequences", sequencesTab],
  ["settings", "Settings", settingsTab],
];

/** Return the view of the model version that the address names; of the default version if it names none. */
export async function view({ server, segments: [name, named, chosen = "live"], signal, tellState }) {
  const version = named || (await call("GET", `models/${path(name)}`))[0].modelVersion;
  return new Promise((resolve, reject) => {
    let model = null;
    let parts = null;
    const take = (data) => {
      Object.assign(model, data);
      parts.update(model);
      tellState("live");
    };
    listen(
      `console/api/models/${path(name, version)}`,
      {
        model(data) {
          model = { ...data, history: new History(server.columns, data.history) };
          if (!parts) {
            parts = page(server, model, chosen, signal);
            resolve(parts.element);
          }
          take({});
        },
        second(data) {
          model.history.add(data);
          take(data);
        },
        gone() {
          notify(`${name} ${version} is no longer registered.`, "bad");
          location.hash = "#/";
        },
        missing: (error) => (parts ? (location.hash = "#/") : reject(error)),
        lost: () => tellState("reconnecting"),
      },
      signal,
    );
  });
}

function page(server, model, chosen, signal) {
  const here = path(model.name, model.version);
  const versions = h("nav", { class: "versions", ariaLabel: "Versions" });
  const makeDefault = h("button", { type: "button", onclick: () => setDefault(makeDefault, model) }, "Make default");
  const remove = server.model_api // else the server would refuse it
    ? h("button", { type: "button", class: "danger", onclick: () => unregister(remove, model) }, "Unregister")
    : null;
  const shows = { sequences: model.stateful, chat: model.answers_openai };
  const tabs = TABS.filter(([id]) => shows[id] ?? true);
  const journal = h("span", { class: "badge" });
  const panel = h("div", { id: "panel", role: "tabpanel", tabIndex: -1 });
  const links = tabs.map(([id, label]) =>
    h("button", { type: "button", role: "tab", id: `tab-${id}`, onclick: () => choose(id), onkeydown: move }, label),
  );
  let shown = null;
  let ended = new AbortController();

  function choose(id) {
    ended.abort();
    ended = new AbortController();
    signal.addEventListener("abort", () => ended.abort(), { signal: ended.signal });
    const [, , make] = tabs.find(([each]) => each === id) ?? tabs[0];
    shown = make({ server, model, signal: ended.signal });
    panel.replaceChildren(shown.element);
    panel.setAttribute("aria-labelledby", `tab-${id}`);
    links.forEach((link) => {
      link.ariaSelected = String(link.id === `tab-${id}`);
      link.tabIndex = link.id === `tab-${id}` ? 0 : -1;
    });
    history.replaceState(null, "", `#/models/${here}/${id}`);
    shown.update?.(model);
  }

  function move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = links[(links.indexOf(event.target) + step + links.length) % links.length];
    next.focus();
    next.click();
  }

  const element = h(
    "div",
    { class: "model" },
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Models")),
    h("div", { class: "heading" }, h("h1", {}, model.name), versions, h("span", { class: "spacer" }), makeDefault, remove),
    h("p", { class: "about" }, badges(model), journal),
    h("div", { class: "tabs", role: "tablist" }, links),
    panel,
  );
  choose(chosen);
  return {
    element,
    update(now) {
      reconcile(versions, now.versions, (each) => each, (each) => versionLink(now, each), (link, each) => {
        setText(link, each === now.default ? `${each} · default` : each);
      });
      journal.hidden = !now.journal;
      if (now.journal) setText(journal, journalText(now.journal));
      makeDefault.hidden = now.default === now.version;
      shown.update?.(now);
    },
  };
}

function versionLink(model, version) {
  const current = version === model.version ? "page" : null;
  return h("a", { class: "badge", href: `#/models/${path(model.name, version)}`, "aria-current": current });
}

function badges({ contract, stateful, durable, url, config }) {
  const words = [contract, config.device_type, stateful && "sequences", durable && "stored", config.continuous && "continuous batching"];
  return [...words.filter(Boolean).map((word) => h("span", { class: "badge" }, word)), h("span", { class: "muted" }, url)];
}

function journalText({ records, dropped }) {
  return `journal: ${records.toLocaleString("en")} records` + (dropped ? `, ${dropped.toLocaleString("en")} dropped` : "");
}

async function setDefault(button, { name, version }) {
  const done = await attempt(button, () => call("PUT", `models/${path(name, version)}/set-default`));
  if (done) notify(done.status);
}

async function unregister(button, { name, version }) {
  if (!(await confirmed(`${name} ${version} will not be served any more. Its workers and sequences end.`, "Unregister"))) return;
  const done = await attempt(button, () => call("DELETE", `models/${path(name, version)}`));
  if (done) {
    notify(done.status);
    location.hash = "#/";
  }
}
