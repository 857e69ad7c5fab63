// A form of what a model declares to take: a field for each value, with its limits and what is wrong with it. What has no field of its own is JSON.

import { h, setText } from "./dom.js";
import { broken, hintOf, JSON_TYPES } from "./schema_limits.js";

const DEEPEST = 4; // objects in objects that get fields
const MOST_FIELDS = 40;
const CONTROLS = ":is(input, select, textarea)";
let made = 0;

/**
 * Return the form; null if the schema has no values to name.
 *
 * - `element`: tells of each change with the events "input" and "change".
 * - `value()`: what the fields have; undefined if nothing is given.
 * - `fill(value)`: returns whether the fields have all of it.
 * - `check()`: shows at each field what is wrong with it, and returns whether nothing is.
 *
 * @param schema a JSON Schema of pydantic's
 * @param name   what a single value is called
 * @param whole  the document that its references point into
 */
export function schemaForm(schema, name, whole = schema) {
  if (!schema) return null;
  const part = control(schema, whole, { name, needed: true, always: true, given: () => true, depth: 0 });
  if (part.isJson || !part.fields || part.fields > MOST_FIELDS) return null;
  const element = h("div", { class: "fields", oninput: follow, onchange: follow }, part.needs ? h("p", { class: "note" }, "* required") : null, part.element);
  const inputs = () => [...element.querySelectorAll(CONTROLS)];

  /** Say what is wrong with an input when it is left, and take that back as soon as it is right. */
  function follow(event) {
    part.judge();
    inputs().filter((each) => each.ariaInvalid === "true" || (each === event.target && event.type === "change")).forEach(tell);
  }

  element.addEventListener("invalid", refuse, true);
  function refuse(event) {
    event.preventDefault(); // the browser's own balloon, which goes away by itself
    tell(event.target);
    if (inputs().find((each) => !each.validity.valid) === event.target) event.target.focus();
  }

  part.judge();
  return {
    element,
    value: part.value,
    fill(value) {
      part.fill(value);
      part.judge();
      inputs().filter((each) => each.ariaInvalid === "true").forEach(tell);
      return hasAll(part.value(), value);
    },
    check() {
      part.judge();
      return inputs().filter((each) => !each.checkValidity()).length === 0;
    },
  };
}

function tell(input) {
  setText(input.parentElement.querySelector(".wrong"), input.validationMessage);
  input.ariaInvalid = String(!input.validity.valid);
}

/**
 * Return the part of the form for a value: { element, value, fill, judge, isFilled, fields, needs, isJson }.
 *
 * `judge()` finds out what is wrong. Of its place, `always` says that all objects around the value are needed, `given()`
 * that they are there: a value that is needed in an object that is left out is not needed.
 */
function control(given, whole, place) {
  const { schema, nullable } = resolved(given, whole);
  if (schema.properties && place.depth < DEEPEST) return members(schema, whole, { ...place, nullable });
  const about = { ...place, nullable, schema, hint: hintOf(given, schema), hasDefault: (given.default ?? null) !== null };
  if (schema.enum || "const" in schema) return choice(schema.enum ?? [schema.const], about);
  if (schema.type === "boolean") return choice([true, false], about);
  if (schema.contentEncoding === "base64" || schema.format === "binary") return file(about);
  if (schema.type === "integer" || schema.type === "number") return number(about);
  if (schema.type === "string") return text(about);
  return json(about);
}

/** Follow a reference, and take "X or null" for X. */
function resolved(schema, whole) {
  const { $ref: reference, anyOf, ...own } = schema;
  if (reference) return resolved({ ...target(reference, whole), ...own }, whole);
  const others = anyOf?.filter((each) => each.type !== "null") ?? [];
  if (anyOf && others.length === 1) return { schema: { ...own, ...resolved(others[0], whole).schema }, nullable: others.length < anyOf.length };
  return { schema, nullable: false };
}

/** Return what a reference like "#/$defs/Box" points to. */
function target(reference, whole) {
  const names = reference.split("/").slice(1);
  return names.reduce((found, name) => found?.[decodeURIComponent(name).replaceAll("~1", "/").replaceAll("~0", "~")], whole);
}

function members(schema, whole, { name, needed, always, nullable, given, depth }) {
  const required = new Set(schema.required ?? []);
  const isAlways = always && needed && !nullable;
  const isGiven = () => given() && (isAlways || isFilled());
  const parts = Object.entries(schema.properties).map(([each, own]) => [
    each,
    control(own, whole, { name: each, needed: required.has(each), always: isAlways, given: isGiven, depth: depth + 1 }),
  ]);
  const isFilled = () => parts.some(([, part]) => part.isFilled());
  const elements = parts.map(([, part]) => part.element);
  return {
    element: depth ? h("fieldset", {}, h("legend", {}, name, needed && !nullable ? mark() : null), elements) : h("div", {}, elements),
    fields: parts.reduce((sum, [, part]) => sum + part.fields, 0),
    needs: (depth > 0 && needed && !nullable) || parts.some(([, part]) => part.needs),
    isFilled,
    judge: () => parts.forEach(([, part]) => part.judge()),
    fill: (value) => parts.forEach(([each, part]) => part.fill(value?.[each])),
    value() {
      if (!isAlways && !isFilled()) return needed ? (nullable ? null : {}) : undefined;
      return Object.fromEntries(parts.map(([each, part]) => [each, part.value()]).filter(([, value]) => value !== undefined));
    },
  };
}

/**
 * Return a part with one input.
 *
 * @param input  the input
 * @param about  the value: its name, schema, place and hint
 * @param read   makes a value of a text that is not empty
 * @param write  makes a text of a value
 * @param wrong  says what is wrong with a text that is not empty; "" if nothing is
 */
function single(input, about, { read = String, write = String, wrong = () => "", empty = undefined }) {
  const { needed, always, nullable, given } = about;
  const mustHave = needed && !nullable && empty === undefined;
  const whenEmpty = needed ? (nullable ? null : empty) : undefined;
  input.required = mustHave && always;
  return {
    element: labelled(input, about, mustHave),
    fields: 1,
    needs: mustHave,
    isFilled: () => input.value !== "",
    value: () => (input.value === "" ? whenEmpty : read(input.value)),
    fill: (value) => (input.value = value === undefined || value === null ? "" : write(value)),
    judge() {
      const missing = mustHave && given() ? "A value is required." : "";
      input.setCustomValidity(input.validity.badInput ? "This is not a number." : input.value === "" ? missing : wrong(input.value));
    },
  };
}

/** Return an input with its label, its hint, and a place for what is wrong with it. */
function labelled(input, { name, hint }, mustHave) {
  const id = `value-${++made}`;
  input.id = id;
  input.setAttribute("aria-describedby", `${id}-hint ${id}-wrong`);
  return h(
    "div",
    { class: "field" },
    h("label", { htmlFor: id }, name, mustHave ? mark() : null),
    input,
    h("small", { id: `${id}-hint`, hidden: !hint }, hint),
    h("small", { id: `${id}-wrong`, class: "wrong" }),
  );
}

function mark() {
  return h("span", { class: "mark" }, " *");
}

function choice(values, about) {
  const none = about.needed && about.always && !about.nullable ? null : h("option", { value: "" }, about.hasDefault ? "(default)" : "(none)");
  const input = h("select", {}, none, values.map((each) => h("option", { value: JSON.stringify(each) }, String(each))));
  return single(input, about, { read: JSON.parse, write: JSON.stringify });
}

function number(about) {
  const { schema } = about;
  const isWhole = schema.type === "integer";
  const input = h("input", { type: "number", step: "any" });
  const least = schema.minimum ?? schema.exclusiveMinimum;
  const most = schema.maximum ?? schema.exclusiveMaximum;
  if (least !== undefined) input.min = isWhole ? Math.ceil(least) + Number(least === schema.exclusiveMinimum && Number.isInteger(least)) : least;
  if (most !== undefined) input.max = isWhole ? Math.floor(most) - Number(most === schema.exclusiveMaximum && Number.isInteger(most)) : most;
  const step = schema.multipleOf ?? (isWhole ? 1 : undefined);
  if (step && Number(input.min) % step === 0) input.step = step; // steps count from the minimum
  const wrong = (value) => {
    if (isWhole && !Number.isInteger(Number(value))) return "The value must be a whole number.";
    if (isWhole && !Number.isSafeInteger(Number(value))) return "The number is too large for a form: write it as JSON.";
    return broken(Number(value), schema);
  };
  return single(input, about, { read: Number, wrong });
}

function text(about) {
  const { schema } = about;
  const empty = schema.minLength || schema.pattern ? undefined : "";
  return single(h("textarea", { rows: 1, spellcheck: false }), about, { wrong: (value) => broken(value, schema), empty });
}

function json(about) {
  const { schema } = about;
  const [kind, isKind] = JSON_TYPES[schema.type] ?? ["", () => true];
  const wrong = (content) => {
    const value = parsed(content);
    if (value === undefined) return "This is not JSON.";
    return isKind(value) ? (kind ? broken(value, schema) : "") : `The value must be ${kind}.`;
  };
  const input = h("textarea", { rows: 2, spellcheck: false, placeholder: "JSON" });
  return { ...single(input, about, { read: parsed, write: JSON.stringify, wrong }), isJson: true };
}

/** A file, which is a Blob in a form and base64 in JSON. What it is filled with is sent until another one is chosen. */
function file(about) {
  const isBlob = about.schema.format === "binary";
  const input = h("input", { type: "file", oninput: () => take(input.files[0]) });
  const mustHave = about.needed && !about.nullable;
  const example = h("small", { hidden: true }, "The example's file is sent as long as no other one is chosen.");
  let content, trouble;
  async function take(chosen) {
    example.hidden = true;
    content = isBlob ? chosen : undefined;
    trouble = "";
    if (isBlob || !chosen) return;
    trouble = "The file is still being read.";
    const found = await base64Of(chosen).catch((error) => error);
    if (input.files[0] !== chosen) return;
    if (found instanceof Error || found instanceof DOMException) trouble = `The file cannot be read: ${found.message}`;
    else [content, trouble] = [found, ""];
    input.dispatchEvent(new Event("change", { bubbles: true }));
  }
  const element = labelled(input, about, mustHave);
  element.append(example);
  return {
    element,
    fields: 1,
    needs: mustHave,
    isFilled: () => content !== undefined || Boolean(trouble),
    value: () => content ?? (about.needed && about.nullable ? null : undefined),
    fill(value) {
      input.value = "";
      content = typeof value === "string" && isBlob ? blobOf(value) : (value ?? undefined);
      example.hidden = content === undefined;
    },
    judge: () => input.setCustomValidity(trouble || (content === undefined && mustHave && about.given() ? "A file is required." : "")),
  };
}

function parsed(content) {
  try {
    return JSON.parse(content);
  } catch {
    return undefined;
  }
}

/** Return whether a value has all that another one has. A null that was left out counts as there. */
function hasAll(own, wanted) {
  if (wanted === null || own instanceof Blob) return own === null || own === undefined || own instanceof Blob;
  if (typeof own !== "object" || typeof wanted !== "object" || own === null) return own === wanted;
  if (Array.isArray(wanted)) return JSON.stringify(own) === JSON.stringify(wanted);
  return Object.keys(wanted).every((name) => hasAll(own[name], wanted[name]));
}

function base64Of(blob) {
  return new Promise((resolve, reject) => {
    const reader = Object.assign(new FileReader(), { onload: () => resolve(reader.result.split(",")[1] ?? ""), onerror: () => reject(reader.error) });
    reader.readAsDataURL(blob);
  });
}

function blobOf(base64) {
  try {
    return new File([Uint8Array.from(atob(base64), (each) => each.charCodeAt(0))], "example");
  } catch {
    return undefined; // no base64: there is no example
  }
}
