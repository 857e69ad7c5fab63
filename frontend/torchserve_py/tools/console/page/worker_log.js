// The log of a worker, as it is written.

import { listen, path } from "./api.js";
import { h, setText } from "./dom.js";
import { clock, count } from "./format.js";

const MOST_LINES = 2000;

/** Return the view of the worker that the address names. */
export function view({ segments: [worker, name, version], signal, tellState }) {
  const lines = h("ol", { class: "log", tabIndex: 0, ariaLabel: "Lines" });
  const search = h("input", { type: "search", placeholder: "Show lines with …", ariaLabel: "Show lines with", oninput: () => [...lines.children].forEach(sift) });
  const follow = h("input", { type: "checkbox", checked: true });
  const note = h("p", { class: "note", role: "status" }, "No line so far.");
  let last = 0;

  const sift = (line) => (line.hidden = !line.textContent.toLowerCase().includes(search.value.toLowerCase()));
  lines.addEventListener("scroll", () => {
    follow.checked = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
  });
  listen(
    `console/api/logs/${path(worker)}`,
    {
      lines(arrived) {
        tellState("live");
        const fresh = arrived.filter((line) => line.number > last);
        if (!fresh.length) return;
        last = fresh.at(-1).number;
        const made = fresh.map(create);
        made.forEach(sift);
        lines.append(...made);
        while (lines.children.length > MOST_LINES) lines.firstElementChild.remove();
        setText(note, `${count(lines.children.length)} lines`);
        if (follow.checked) lines.scrollTop = lines.scrollHeight;
      },
      lost() {
        last = 0; // a server that was started anew counts anew
        lines.replaceChildren();
        tellState("reconnecting");
      },
    },
    signal,
  );
  return h(
    "div",
    { class: "worker-log" },
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Models"), name ? [" / ", h("a", { href: `#/models/${path(name, version)}/workers` }, `${name} ${version}`)] : null),
    h("h1", {}, `Worker ${worker}`),
    h("div", { class: "tools" }, search, h("label", { class: "check" }, follow, "Follow"), note),
    lines,
  );
}

function create({ at, level, source, text }) {
  return h("li", { class: `${level.toLowerCase()} ${source}` }, h("time", {}, clock(at)), h("span", { class: "source" }, source), h("span", { class: "text" }, text));
}
