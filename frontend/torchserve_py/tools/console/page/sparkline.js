// A small line without axes, drawn on a canvas.

import { color } from "./theme.js";

/** Return a function that draws values on a canvas. */
export function sparkline(canvas, name = "--accent") {
  const context = canvas.getContext("2d");
  return function draw(values, isLater = false) {
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width) {
      // what is not in the page yet will be in a moment
      if (!isLater) requestAnimationFrame(() => draw(values, true));
      return;
    }
    const ratio = devicePixelRatio;
    if (canvas.width !== Math.round(width * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const most = Math.max(...values.map((value) => value ?? 0), 1e-9);
    const step = width / Math.max(1, values.length - 1);
    const points = values.map((value, index) => [index * step, height - 1.5 - ((value ?? 0) / most) * (height - 3)]);
    context.beginPath();
    points.forEach(([x, y], index) => (index ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.strokeStyle = color(name);
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.stroke();
    context.lineTo(width, height);
    context.lineTo(0, height);
    context.globalAlpha = 0.16;
    context.fillStyle = color(name);
    context.fill();
    context.globalAlpha = 1;
  };
}
