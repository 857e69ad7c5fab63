// Numbers, durations and sizes as people read them.

const NOTHING = "–";

/** A number in about three digits: 0.25, 7.1, 43, 1.2k, 3.4M. */
export function number(value) {
  if (value === null || value === undefined) return NOTHING;
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimmed(value / 1e6)}M`;
  if (size >= 1e4) return `${trimmed(value / 1e3)}k`;
  return trimmed(value);
}

/** A whole number with separators. */
export function count(value) {
  return value === null || value === undefined ? NOTHING : Math.round(value).toLocaleString("en");
}

/** Milliseconds. */
export function milliseconds(value) {
  if (value === null || value === undefined) return NOTHING;
  return value >= 10_000 ? `${trimmed(value / 1000)} s` : `${trimmed(value)} ms`;
}

/** Seconds as 4 s, 3 min, 2 h 5 min, 3 d. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 60) return `${seconds < 10 ? trimmed(Math.max(0, seconds)) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

/** A size in bytes. */
export function bytes(value) {
  if (!value) return value === 0 ? "0 B" : NOTHING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log10(value) / 3));
  return `${trimmed(value / 1000 ** power)} ${units[power]}`;
}

/** A moment (seconds since 1970) as a clock shows it. */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

function trimmed(value) {
  const size = Math.abs(value);
  return String(Number(value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2)));
}
