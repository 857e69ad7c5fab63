// Large numbers with a small chart behind each.

import { h, setText } from "./dom.js";
import { sparkline } from "./sparkline.js";
import { whenThemeChanges } from "./theme.js";

/**
 * Return a row of tiles.
 *
 * @param kinds  [{ label, column, format, color, more }]; `more` makes a remark of the latest data
 * @param signal ends the tiles
 */
export function tiles(kinds, signal) {
  const made = kinds.map(({ label, color }) => {
    const value = h("strong", {}, "–");
    const remark = h("small", {}, "");
    const canvas = h("canvas", { ariaHidden: "true" });
    const element = h("div", { class: "tile card" }, h("span", {}, label), value, remark, canvas);
    return { element, value, remark, draw: sparkline(canvas, color) };
  });
  let last = null;
  const show = (history, more = {}) => {
    last = [history, more];
    kinds.forEach(({ label, column, format }, index) => {
      const { element, value, remark, draw } = made[index];
      setText(value, format(history.last(column)));
      setText(remark, more[label]?.text ?? "");
      element.classList.toggle("alarm", Boolean(more[label]?.alarm));
      draw(history.line(column));
    });
  };
  whenThemeChanges(() => last && show(...last), signal);
  return { element: h("div", { class: "tiles" }, made.map(({ element }) => element)), show };
}
