// The body of a request: a form of the declared values, text, JSON, a file, or what the microphone hears.

import { field, h, setText } from "./dom.js";
import { bytes } from "./format.js";
import { microphone } from "./microphone.js";
import { notify } from "./notices.js";
import { schemaForm } from "./schema_form.js";

const TYPES = { form: "application/json", text: "text/plain", json: "application/json", file: "application/octet-stream", microphone: "audio/wav" };
const LABELS = { form: "Form", text: "Text", json: "JSON", file: "File", microphone: "Microphone" };
const EXAMPLES = {
  truss: { prompt: "Hello" },
  mlserver: { inputs: [{ name: "input-0", shape: [1], datatype: "FP64", data: [1] }] },
};

/** Return the part of the form, and functions that read it. */
export function requestBody(model, signal) {
  const takes = model.function?.takes;
  const example = model.example ?? EXAMPLES[model.contract];
  const isText = takes === "text/plain" && typeof example === "string";
  const form = takes && takes !== TYPES.json ? null : schemaForm(model.request, model.function?.parameters[0] ?? "value");
  const text = h("textarea", { rows: 6, spellcheck: false, ariaLabel: "Text", value: isText ? example : "" });
  const json = h("textarea", { rows: 6, spellcheck: false, ariaLabel: "JSON", value: asJson(example ?? {}) });
  const file = h("input", { type: "file", onchange: () => take(file.files[0]) });
  const fileNote = h("p", { class: "note" }, "Choose a file, or drop one here.");
  const sound = microphone(signal);
  const contentTypeInput = h("input", { autocomplete: "off", spellcheck: false });
  const panels = {
    form: form?.element,
    text,
    json,
    file: h("div", { class: "drop", ondragover: (event) => event.preventDefault(), ondrop: drop }, file, fileNote),
    microphone: sound.element,
  };
  let kind = null;
  let chosenFile = null;

  const kinds = Object.entries(LABELS).filter(([name]) => name !== "form" || form);
  const buttons = kinds.map(([name, label]) => h("button", { type: "button", onclick: () => choose(name), id: `body-${name}` }, label));
  const panel = h("div", { class: "body" });

  function choose(name) {
    if (form && kind === "form" && name === "json") json.value = asJson(form.value());
    if (name === "form") fillForm();
    kind = name;
    panel.replaceChildren(panels[name]);
    contentTypeInput.value = name === "file" && chosenFile?.type ? chosenFile.type : TYPES[name];
    buttons.forEach((button) => (button.ariaPressed = String(button.id === `body-${name}`)));
  }

  /** Take what is valid JSON over into the form. */
  function fillForm() {
    try {
      if (!form.fill(JSON.parse(json.value))) notify("The form has no field for some of what was written as JSON.", "bad");
    } catch {
      notify("What was written as JSON is not valid, and was not taken over.", "bad");
    }
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

  const first = { "image/png": "file", "audio/wav": "microphone", "application/octet-stream": "file", "application/json": form ? "form" : "json" }[takes];
  choose(first ?? (form ? "form" : example === undefined || isText ? "text" : "json"));
  const about = model.function?.description ? h("p", { class: "note described" }, model.function.description) : null;
  return {
    element: h("div", {}, about, h("div", { class: "segments", role: "group", ariaLabel: "Kind of body" }, buttons), panel),
    contentTypeInput,
    contentType: () => contentTypeInput.value || TYPES[kind],
    kind: () => kind,
    sound,
    /** Return what is to be sent: a text, or bytes as a Blob. Throws an Error that says what is missing. */
    async content() {
      if (kind === "form") return asJson(form.value());
      if (kind === "json") JSON.parse(json.value);
      if (kind === "text" || kind === "json") return panels[kind].value;
      const blob = kind === "file" ? chosenFile : sound.recording();
      if (!blob) throw new Error(kind === "file" ? "Choose a file first." : "Record something first.");
      return blob;
    },
    /** Return what a copied command sends: { text } or { file }. */
    async description() {
      if (kind === "form" && !form.check()) throw new Error("A value in the form is wrong.");
      if (kind === "form") return { text: asJson(form.value()) };
      if (kind === "text" || kind === "json") return { text: panels[kind].value };
      return { file: kind === "file" ? (chosenFile?.name ?? "FILE") : "recording.wav" };
    },
  };
}

function asJson(value) {
  return JSON.stringify(value, null, 2);
}
