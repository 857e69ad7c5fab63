// Dark and light: as the system says, or as the visitor has chosen.

const CHOICE = "torchserve-py.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const changed = new EventTarget();
let cache = new Map();

/** Return a color of the style sheet, such as "--accent". */
export function color(name) {
  if (!cache.has(name)) cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return cache.get(name);
}

/** Call `redraw` when the colors change, until `signal` says stop. */
export function whenThemeChanges(redraw, signal) {
  changed.addEventListener("change", redraw, { signal });
}

/** Switch to the other theme. */
export function switchTheme() {
  localStorage.setItem(CHOICE, isDark() ? "light" : "dark");
  apply();
}

/** Take the theme over into the page. */
export function apply() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  cache = new Map();
  changed.dispatchEvent(new Event("change"));
}

function isDark() {
  const choice = localStorage.getItem(CHOICE);
  return choice ? choice === "dark" : system.matches;
}

system.addEventListener("change", apply);
