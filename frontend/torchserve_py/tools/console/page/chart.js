// A chart over time, drawn by uPlot (vendor/), with the page's colors.

import { h } from "./dom.js";
import { count, milliseconds } from "./format.js";
import { color, whenThemeChanges } from "./theme.js";

const HEIGHT = 190;

/**
 * Return a card with a chart.
 *
 * @param title  what it shows
 * @param lines  [{ column, label, color, fill, dash }]
 * @param format makes the text of a value
 * @param signal ends the chart
 */
export function chart(title, lines, format, signal) {
  const plot = h("div", { class: "plot" });
  const card = h("figure", { class: "card chart" }, h("figcaption", {}, title), plot);
  let drawn = null;
  let data = [[], ...lines.map(() => [])];

  const draw = () => {
    drawn?.destroy();
    drawn = new globalThis.uPlot(options(lines, format, plot.clientWidth), data, plot);
  };
  const resizing = new ResizeObserver(() => {
    if (!plot.clientWidth) return;
    if (drawn) drawn.setSize({ width: plot.clientWidth, height: HEIGHT });
    else draw();
  });
  resizing.observe(plot);
  whenThemeChanges(() => drawn && draw(), signal);
  signal.addEventListener("abort", () => {
    resizing.disconnect();
    drawn?.destroy();
  });
  return {
    card,
    show(history, range) {
      data = history.data(range, lines.map((line) => line.column));
      drawn?.setData(data);
      if (drawn && drawn.cursor.idx === null) drawn.setLegend({ idx: data[0].length - 1 });
    },
  };
}

function options(lines, format, width) {
  const axis = {
    stroke: color("--muted"),
    grid: { stroke: color("--grid"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  const series = lines.map((line) => ({
    label: line.label,
    stroke: color(line.color),
    fill: line.fill ? `${color(line.color)}26` : undefined,
    dash: line.dash,
    width: 1.75,
    spanGaps: line.spanGaps ?? false,
    points: { show: (plot, index, first, last) => last - first < 40, size: 4 },
    value: (plot, value) => format(value),
  }));
  return {
    width,
    height: HEIGHT,
    padding: [10, 12, 0, 0],
    cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
    legend: { live: true },
    scales: { y: { range: (plot, least, most) => [0, 1.15 * Math.max(most || 1, format === milliseconds ? 0.2 : 1)] } },
    axes: [
      { ...axis, space: 70, size: 28, values: "{HH}:{mm}:{ss}" },
      { ...axis, size: 58, values: (plot, ticks) => ticks.map((tick) => (format === count && !Number.isInteger(tick) ? "" : format(tick))) },
    ],
    series: [{ value: "{HH}:{mm}:{ss}" }, ...series],
  };
}
