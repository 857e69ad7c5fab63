// The body of a request: text, JSON, a file, or what the microphone hears.

import { field, h, setText } from "./dom.js";
import { bytes } from "./format.js";
import { microphone } from "./microphone.js";

const TYPES = { text: "text/plain", json: "application/json", file: "application/octet-stream", microphone: "audio/wav" };
const LABELS = { text: "Text", json: "JSON", file: "File", microphone: "Microphone" };
const EXAMPLES = {
  truss: { prompt: "Hello" },
  mlserver: { inputs: [{ name: "input-0", shape: [1], datatype: "FP64", data: [1] }] },
};

/** Return the part of the form, and functions that read it. */
export function requestBody(model, signal) {
  const takes = model.function?.takes;
  const example = model.example ?? EXAMPLES[model.contract];
  const isText = takes === "text/plain" && typeof example === "string";
  const text = h("textarea", { rows: 6, spellcheck: false, ariaLabel: "Text", value: isText ? example : "" });
  const json = h("textarea", { rows: 6, spellcheck: false, ariaLabel: "JSON", value: JSON.stringify(example ?? {}, null, 2) });
  const file = h("input", { type: "file", onchange: () => take(file.files[0]) });
  const fileNote = h("p", { class: "note" }, "Choose a file, or drop one here.");
  const sound = microphone(signal);
  const contentTypeInput = h("input", { autocomplete: "off", spellcheck: false });
  const panels = {
    text,
    json,
    file: h("div", { class: "drop", ondragover: (event) => event.preventDefault(), ondrop: drop }, file, fileNote),
    microphone: sound.element,
  };
  let kind = null;
  let chosenFile = null;

  const buttons = Object.entries(LABELS).map(([name, label]) => h("button", { type: "button", onclick: () => choose(name), id: `body-${name}` }, label));
  const panel = h("div", { class: "body" });

  function choose(name) {
    kind = name;
    panel.replaceChildren(panels[name]);
    contentTypeInput.value = name === "file" && chosenFile?.type ? chosenFile.type : TYPES[name];
    buttons.forEach((button) => (button.ariaPressed = String(button.id === `body-${name}`)));
  }

  function take(one) {
    chosenFile = one ?? null;
    setText(fileNote, one ? `${one.name}, ${bytes(one.size)}` : "Choose a file, or drop one here.");
    choose("file");
  }

  function drop(event) {
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  }

  const first = { "image/png": "file", "audio/wav": "microphone", "application/octet-stream": "file", "application/json": "json" }[takes];
  choose(first ?? (example === undefined || isText ? "text" : "json"));
  const about = model.function?.description ? h("p", { class: "note described" }, model.function.description) : null;
  return {
    element: h("div", {}, about, h("div", { class: "segments", role: "group", ariaLabel: "Kind of body" }, buttons), panel),
    contentTypeInput,
    contentType: () => contentTypeInput.value || TYPES[kind],
    kind: () => kind,
    sound,
    /** Return what is to be sent: a text, or bytes as a Blob. Throws an Error that says what is missing. */
    async content() {
      if (kind === "json") JSON.parse(json.value);
      if (kind === "text" || kind === "json") return panels[kind].value;
      const blob = kind === "file" ? chosenFile : sound.recording();
      if (!blob) throw new Error(kind === "file" ? "Choose a file first." : "Record something first.");
      return blob;
    },
    /** Return what a copied command sends: { text } or { file }. */
    async description() {
      if (kind === "text" || kind === "json") return { text: panels[kind].value };
      return { file: kind === "file" ? (chosenFile?.name ?? "FILE") : "recording.wav" };
    },
  };
}
