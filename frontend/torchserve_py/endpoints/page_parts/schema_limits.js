// What a JSON Schema says about a value: its limits in words, and which of them a value breaks.

const length = (value) => (typeof value === "string" ? [...value].length : value.length);
const LIMITS = [
  ["minimum", (limit) => `at least ${limit}`, (value, limit) => value >= limit],
  ["maximum", (limit) => `at most ${limit}`, (value, limit) => value <= limit],
  ["exclusiveMinimum", (limit) => `more than ${limit}`, (value, limit) => value > limit],
  ["exclusiveMaximum", (limit) => `less than ${limit}`, (value, limit) => value < limit],
  ["multipleOf", (limit) => `a multiple of ${limit}`, (value, limit) => Math.abs(value / limit - Math.round(value / limit)) < 1e-9],
  ["minLength", (limit) => `at least ${limit} characters long`, (value, limit) => length(value) >= limit],
  ["maxLength", (limit) => `at most ${limit} characters long`, (value, limit) => length(value) <= limit],
  ["pattern", (limit) => `a text that matches ${limit}`, (value, limit) => matches(value, limit)],
  ["minItems", (limit) => `a list of at least ${limit} items`, (value, limit) => length(value) >= limit],
  ["maxItems", (limit) => `a list of at most ${limit} items`, (value, limit) => length(value) <= limit],
];

/** What JSON alone can write: in words, and whether a value is one. */
export const JSON_TYPES = {
  array: ["a list in JSON", Array.isArray],
  object: ["an object in JSON", (value) => typeof value === "object" && value !== null && !Array.isArray(value)],
};

/** Return what is to be known about a value: what it is, its limits, and what it is by default. */
export function hintOf(given, schema) {
  const kind = schema.type === "integer" ? "a whole number" : JSON_TYPES[schema.type]?.[0];
  const limits = LIMITS.filter(([name]) => name in schema).map(([name, words]) => words(schema[name]));
  const fallback = given.default === undefined || given.default === null ? "" : `${JSON.stringify(given.default)} if it is empty`;
  return [given.description ?? schema.description, kind, schema.format === "binary" ? "" : schema.format, ...limits, fallback].filter(Boolean).join("; ");
}

/** Return which limit a value breaks, as a sentence; "" if none. */
export function broken(value, schema) {
  const found = LIMITS.find(([name, , holds]) => name in schema && !holds(value, schema[name]));
  return found ? `The value must be ${found[1](schema[found[0]])}.` : "";
}

function matches(value, pattern) {
  try {
    return new RegExp(pattern, "u").test(value);
  } catch {
    return true; // a pattern of Python's that JavaScript has not: the server judges
  }
}
