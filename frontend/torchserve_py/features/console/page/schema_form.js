// A form of what a model declares to take: a field for each value, with its limits. What has no field of its own is JSON.

import { field, h } from "./dom.js";

const DEEPEST = 4; // objects in objects that get fields
const MOST_FIELDS = 40;
const LIMITS = [
  ["minimum", (limit) => `at least ${limit}`, (value, limit) => value >= limit],
  ["maximum", (limit) => `at most ${limit}`, (value, limit) => value <= limit],
  ["exclusiveMinimum", (limit) => `more than ${limit}`, (value, limit) => value > limit],
  ["exclusiveMaximum", (limit) => `less than ${limit}`, (value, limit) => value < limit],
  ["multipleOf", (limit) => `a multiple of ${limit}`, (value, limit) => Math.abs(value / limit - Math.round(value / limit)) < 1e-9],
  ["minLength", (limit) => `${limit} characters or more`, (value, limit) => [...value].length >= limit],
  ["maxLength", (limit) => `at most ${limit} characters`, (value, limit) => [...value].length <= limit],
  ["pattern", (limit) => `like ${limit}`, (value, limit) => matches(value, limit)],
];

/**
 * Return the form: its `element`, `value()`, and `fill(value)`; null if the schema has no values to name.
 *
 * @param schema a JSON Schema of pydantic's
 * @param name   what a single value is called
 */
export function schemaForm(schema, name) {
  if (!schema) return null;
  const part = control(schema, schema, { name, needed: true, depth: 0 });
  if (part.isJson || !part.fields || part.fields > MOST_FIELDS) return null;
  return { ...part, element: h("div", { class: "fields" }, part.element) };
}

/** Return the part of the form for a value: { element, value, fill, fields, isJson }; `value()` may be undefined. */
function control(given, whole, place) {
  const { schema, nullable } = resolved(given, whole);
  if (schema.properties && place.depth < DEEPEST) return members(schema, whole, place);
  const about = { ...place, nullable, hint: hintOf(given, schema) };
  if (schema.enum || "const" in schema) return choice(schema.enum ?? [schema.const], about);
  if (schema.type === "boolean") return choice([true, false], about);
  if (schema.contentEncoding === "base64") return file(about);
  if (schema.type === "integer" || schema.type === "number") return number(schema, about);
  if (schema.type === "string") return text(schema, about);
  return json(about);
}

/** Follow a reference, and take "X or null" for X. */
function resolved(schema, whole) {
  const { $ref: name, anyOf, ...own } = schema;
  if (name) return resolved({ ...whole.$defs?.[name.split("/").at(-1)], ...own }, whole);
  const others = anyOf?.filter((each) => each.type !== "null") ?? [];
  if (anyOf && others.length === 1) return { schema: { ...own, ...resolved(others[0], whole).schema }, nullable: others.length < anyOf.length };
  return { schema, nullable: false };
}

function hintOf(given, schema) {
  const limits = LIMITS.filter(([name]) => name in schema).map(([name, words]) => words(schema[name]));
  const fallback = given.default === undefined || given.default === null ? "" : `${JSON.stringify(given.default)} if it is empty`;
  return [given.description ?? schema.description, schema.type === "integer" ? "a whole number" : "", ...limits, fallback].filter(Boolean).join("; ");
}

function members(schema, whole, { name, depth }) {
  const needed = new Set(schema.required ?? []);
  const parts = Object.entries(schema.properties).map(([each, own]) => [each, control(own, whole, { name: each, needed: needed.has(each), depth: depth + 1 })]);
  const elements = parts.map(([, part]) => part.element);
  return {
    element: depth ? h("fieldset", {}, h("legend", {}, name), elements) : h("div", {}, elements),
    fields: parts.reduce((sum, [, part]) => sum + part.fields, 0),
    value() {
      const found = parts.map(([each, part]) => [each, part.value()]).filter(([, value]) => value !== undefined);
      return found.length || needed.size || !depth ? Object.fromEntries(found) : undefined;
    },
    fill: (value) => parts.forEach(([each, part]) => part.fill(value?.[each])),
  };
}

/** Return a part with one input. `read(text)` makes a value of a text that is not empty, `write(value)` a text of it. */
function single(input, { name, needed, nullable, hint }, read, write = String) {
  input.required = needed && !nullable && input.dataset.mayBeEmpty === undefined;
  const empty = needed ? (nullable ? null : input.dataset.mayBeEmpty) : undefined;
  return {
    element: field(needed ? name : `${name} (optional)`, input, hint),
    fields: 1,
    value: () => (input.value === "" ? empty : read(input.value)),
    fill: (value) => (input.value = value === undefined || value === null ? "" : write(value)),
  };
}

function choice(values, about) {
  const none = about.needed && !about.nullable ? null : h("option", { value: "" }, "");
  const input = h("select", {}, none, values.map((each) => h("option", { value: JSON.stringify(each) }, String(each))));
  return single(input, about, JSON.parse, JSON.stringify);
}

function number(schema, about) {
  const input = h("input", { type: "number", step: "any", oninput: () => check(input, schema, Number) });
  if (schema.type === "integer") input.step = 1;
  return single(input, about, Number);
}

function text(schema, about) {
  const input = h("textarea", { rows: 1, spellcheck: false, oninput: () => check(input, schema, String) });
  if (!schema.minLength && !schema.pattern) input.dataset.mayBeEmpty = "";
  return single(input, about, String);
}

function json(about) {
  const input = h("textarea", { rows: 2, spellcheck: false, placeholder: "JSON", oninput: () => input.setCustomValidity(isJson(input.value) ? "" : "This is not JSON.") });
  return { ...single(input, about, JSON.parse, JSON.stringify), isJson: true };
}

function file(about) {
  const input = h("input", { type: "file", oninput: () => take(input.files[0]) });
  let content = "";
  const take = async (chosen) => {
    content = chosen ? await base64Of(chosen) : "";
  };
  const part = single(input, { ...about, nullable: true }, String);
  return { ...part, value: () => content || undefined, fill: () => {} };
}

/** Say at the field what limit its value breaks: the form is not sent then. */
function check(input, schema, read) {
  const broken = input.value && LIMITS.find(([name, , holds]) => name in schema && !holds(read(input.value), schema[name]));
  input.setCustomValidity(broken ? `The value must be ${broken[1](schema[broken[0]])}.` : "");
}

function matches(value, pattern) {
  try {
    return new RegExp(pattern, "u").test(value);
  } catch {
    return true; // a pattern of Python's that JavaScript has not: the server judges
  }
}

function isJson(text) {
  try {
    return text === "" || JSON.parse(text) !== undefined;
  } catch {
    return false;
  }
}

function base64Of(blob) {
  return new Promise((resolve, reject) => {
    const reader = Object.assign(new FileReader(), { onload: () => resolve(reader.result.split(",")[1]), onerror: () => reject(reader.error) });
    reader.readAsDataURL(blob);
  });
}
