// The timeline: what happened to the models lately, the latest first.

import { listen, path } from "./api.js";
import { h, setText } from "./dom.js";
import { clock, count } from "./format.js";

const MOST_SHOWN = 500;

/** Return the view. */
export function view({ signal, tellState }) {
  const list = h("ol", { class: "timeline" });
  const search = h("input", { type: "search", placeholder: "Show events with …", ariaLabel: "Show events with", oninput: () => [...list.children].forEach(sift) });
  const note = h("p", { class: "note", role: "status" }, "Nothing has happened so far.");
  const sift = (line) => (line.hidden = !line.textContent.toLowerCase().includes(search.value.toLowerCase()));
  listen(
    "console/api/events",
    {
      events(arrived) {
        tellState("live");
        for (const each of arrived) {
          const line = create(each);
          sift(line);
          list.prepend(line);
        }
        while (list.children.length > MOST_SHOWN) list.lastElementChild.remove();
        if (list.children.length) setText(note, `${count(list.children.length)} events`);
      },
      lost() {
        list.replaceChildren(); // the server tells all of them again
        tellState("reconnecting");
      },
    },
    signal,
  );
  return h("div", {}, h("div", { class: "heading" }, h("h1", {}, "Events")), h("div", { class: "tools" }, search, note), h("section", { class: "card" }, list));
}

function create({ at, kind, model, version, text }) {
  const link = h("a", { href: `#/models/${path(model, version)}` }, `${model} ${version}`);
  return h("li", { class: kind }, h("time", { dateTime: new Date(at * 1000).toISOString() }, clock(at)), h("span", {}, link, ` ${text}`));
}
