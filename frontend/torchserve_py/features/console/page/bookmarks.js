// What can be done with a stored sequence: it goes back to an earlier step, is forked, or is saved as a file.

import { call, file, path } from "./api.js";
import { field, h, save, setText } from "./dom.js";
import { bytes, count } from "./format.js";
import { attempt, dialog, notify } from "./notices.js";

const MOST_OF_AN_ID = 1000;

/** Return a card; `refresh()` shows what the store has of the sequence and resolves to its state, `choose` is called with the id of a fork to show. */
export function bookmarks(model, id, signal, choose) {
  const target = `sequences/${path(model.name, id)}`;
  const note = h("p", { class: "note", role: "status" }, "Looking …");
  const outcome = h("p", { class: "note", role: "status" });
  const button = (label, onclick) => h("button", { type: "button", disabled: true, onclick, ariaLabel: `${label} sequence ${id}` }, label);
  const rewind = button("Rewind", () => change("rewind", rewind));
  const fork = button("Fork", () => change("fork", fork));
  const saving = button("Export", exported);
  let turn = 0;

  async function look() {
    const mine = ++turn;
    const stored = await call("GET", target);
    if (mine === turn) show(stored);
    return stored;
  }

  function show(stored) {
    const steps = stepsOf(stored);
    rewind.disabled = !steps || steps.first >= stored.lastStep;
    fork.disabled = !steps;
    saving.disabled = false;
    setText(note, described(stored, steps));
  }

  async function refresh() {
    try {
      return (await look()).state;
    } catch (error) {
      if (signal.aborted) return "";
      for (const each of [rewind, fork, saving]) each.disabled = true;
      setText(note, error.message);
      return "";
    }
  }

  async function change(what, pressed) {
    const stored = await attempt(pressed, look);
    const steps = stored && stepsOf(stored);
    if (!steps) return;
    const made = await asked(what, id, target, stored, steps);
    await refresh();
    pressed.focus();
    if (!made) return;
    const end = ` goes on after step ${count(made.lastStep)}. Its token is ${made.token}.`;
    const copy = h("button", { type: "button", class: "link", onclick: () => choose(made.sequenceId) }, made.sequenceId);
    outcome.replaceChildren(...(what === "fork" ? ["The fork ", copy, end] : [`It${end}`]));
    notify(`Sequence ${made.sequenceId} goes on after step ${count(made.lastStep)}.`);
  }

  async function exported() {
    const found = await attempt(saving, () => file(`${target}/export`));
    if (found) save(found, `${id.replaceAll(/[^\w.-]/g, "_")}.sequence`);
  }

  refresh();
  const buttons = h("div", { class: "tools" }, rewind, fork, saving, note);
  return { element: h("section", { class: "card bookmarks" }, h("h2", {}, `Bookmarks of ${id}`), buttons, outcome), refresh };
}

/** Ask for a step, and for the id of a fork; do it, and return what the server says, or undefined. */
async function asked(what, id, target, { lastStep }, { first, last }) {
  let made;
  const isFork = what === "fork";
  const title = isFork ? `Fork ${id}` : `Rewind ${id}`;
  await dialog(title, (close) => {
    const value = isFork ? last : Math.min(last, Math.max(first, lastStep - 1));
    const step = h("input", { name: "step", type: "number", value, min: first, max: last, required: true, autofocus: true });
    const name = h("input", { name: "as", autocomplete: "off", placeholder: "made up by the server", spellcheck: false, maxLength: MOST_OF_AN_ID });
    const submit = h("button", { class: isFork ? "primary" : "danger" }, isFork ? "Fork" : "Rewind");
    const refusal = h("p", { class: "bad", role: "alert" });
    const remark = isFork
      ? "A copy goes on after this step, under an id of its own. The sequence itself stays as it is."
      : "The steps after this one are undone. Clients that send a token need the new one, and a live session of the sequence is over.";
    const send = async (event) => {
      event.preventDefault();
      const query = Object.fromEntries(new FormData(event.target));
      submit.disabled = true;
      try {
        made = await call("POST", `${target}/${what}`, query);
        close("");
      } catch (error) {
        setText(refusal, error.message);
      } finally {
        submit.disabled = false;
      }
    };
    return [
      h(
        "form",
        { onsubmit: send },
        h("p", {}, remark),
        field("After step", step, `${count(first)} to ${count(last)}`),
        isFork ? field("New id", name) : null,
        refusal,
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close("") }, "Cancel"), submit),
      ),
    ];
  });
  return made;
}

/** Return the first and the last step with a state, or null. Where one between them has none, the server refuses it. */
function stepsOf({ stepsWithState: spans }) {
  return spans.length ? { first: spans[0].from, last: spans.at(-1).to } : null;
}

function described({ state, lastStep, stateBytes, logEntries, logBytes, heldBy }, steps) {
  const back = steps && steps.first < lastStep ? `it can go back to step ${count(steps.first)}` : "it can go back to no earlier step";
  const log = logEntries ? `, and ${count(logEntries)} entries of a log, ${bytes(logBytes)}` : "";
  const holder = heldBy ? ` Held by ${heldBy}.` : "";
  return `${state === "open" ? "" : `It is over (${state}). `}The last step is ${count(lastStep)}, ${back}. State ${bytes(stateBytes)}${log}.${holder}`;
}
