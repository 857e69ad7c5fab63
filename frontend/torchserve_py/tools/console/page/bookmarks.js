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
    rewind.disabled = !earlier(stored).length;
    fork.disabled = !stored.stepsWithState.length;
    saving.disabled = false;
    setText(note, described(stored));
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
    if (!stored?.stepsWithState.length) return;
    const made = await asked(what, id, target, stored);
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
async function asked(what, id, target, stored) {
  let made;
  const isFork = what === "fork";
  const runs = stored.stepsWithState;
  const [min, max] = [runs[0].from, runs.at(-1).to];
  const title = isFork ? `Fork ${id}` : `Rewind ${id}`;
  await dialog(title, (close) => {
    const value = isFork ? max : (earlier(stored).at(-1)?.to ?? max);
    const step = h("input", { name: "step", type: "number", value, min, max, required: true, autofocus: true });
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
        field("After step", step, words(runs)),
        isFork ? field("New id", name) : null,
        refusal,
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close("") }, "Cancel"), submit),
      ),
    ];
  });
  return made;
}

/** Return the runs of steps before the last one that have a state. */
function earlier({ stepsWithState: runs, lastStep }) {
  return runs.map(({ from, to }) => ({ from, to: Math.min(to, lastStep - 1) })).filter(({ from, to }) => from <= to);
}

function words(runs) {
  return runs.map(({ from, to }) => (from === to ? count(from) : `${count(from)} to ${count(to)}`)).join(", ");
}

function described(stored) {
  const { state, lastStep, stateBytes, logEntries, logBytes, earlierBytes, heldBy } = stored;
  const runs = earlier(stored);
  const isOne = runs.length === 1 && runs[0].from === runs[0].to;
  const back = runs.length ? `it can go back to step${isOne ? "" : "s"} ${words(runs)}` : "it can go back to no earlier step";
  const log = logEntries ? `, and ${count(logEntries)} entries of a log, ${bytes(logBytes)}` : "";
  const kept = earlierBytes ? ` Earlier ones have ${bytes(earlierBytes)}.` : "";
  const holder = heldBy ? ` Held by ${heldBy}.` : "";
  return `${state === "open" ? "" : `It is over (${state}). `}The last step is ${count(lastStep)}, ${back}. State ${bytes(stateBytes)}${log}.${kept}${holder}`;
}
