// Makes and updates elements. Text becomes text nodes only: names of models and ids of sequences may hold anything.

/** Control characters other than tabs and line breaks, and what turns the direction of a text around. */
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Return a text in which escapes stand for such characters. */
export function visible(text) {
  return String(text).replace(UNSEEN, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Return a new element; `props` are properties or attributes, `on…` are listeners, children may be null. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && name !== "list" && name !== "form") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  const present = children.flat(2).filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...present.map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

/** Replace the text of an element, if it has changed. */
export function setText(element, text) {
  const value = visible(text);
  if (element.textContent !== value) element.textContent = value;
}

/** Give a container one element for each item, keeping those of items that stay. */
export function reconcile(container, items, keyOf, create, update) {
  const known = (container.byKey ??= new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, element] of known) {
    if (!wanted.has(key)) {
      element.remove();
      known.delete(key);
    }
  }
  items.forEach((item, index) => {
    const key = keyOf(item);
    let element = known.get(key);
    if (!element) known.set(key, (element = create(item)));
    update?.(element, item);
    if (container.children[index] !== element) container.insertBefore(element, container.children[index] ?? null);
  });
}

/** Return a table with these column heads: [title, class] each. */
export function table(label, columns, body) {
  const heads = columns.map(([title, kind]) => h("th", { scope: "col", class: kind ?? "" }, title));
  return h("div", { class: "scroll", tabIndex: 0, role: "region", ariaLabel: label }, h("table", {}, h("thead", {}, h("tr", {}, heads)), body));
}

/** Return a labelled field of a form. */
export function field(label, control, hint) {
  return h("label", { class: "field" }, h("span", {}, label), control, hint ? h("small", {}, hint) : null);
}

/** Let the browser save a blob as a file. */
export function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
