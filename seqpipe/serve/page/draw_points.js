// Positions in order: words of a text, or a path through points of the plane.

import { el, svg } from "./dom.js";
import { nothing, score } from "./draw_numbers.js";

const SIDE = 420;
const EDGE = 28;

export function drawPointers({ points, style }, answer, input) {
  if (!answer.pointers.length) return nothing();
  const rows = points ? input.record[points] : null;
  const list = el("ol", { class: "pointers", dir: "auto" }, answer.pointers.map((place, i) => el("li", {},
    answer.words ? el("bdi", { class: "word" }, answer.words[i]) : null, el("span", { class: "place" }, String(place)))));
  const isPlane = Array.isArray(rows) && rows.length && rows.every((row) => Array.isArray(row) && row.length <= 2);
  return el("div", {}, isPlane ? figure(rows, answer.pointers, style) : null, list, score(answer));
}

/** The points in a square, with equal units on both axes, and the path through them. */
export function figure(rows, way, style) {
  const places = placed(rows.map(([x, y]) => [x, y ?? 0]));
  const isPolygon = style === "polygon";
  const chosen = new Set(way);
  const line = way.filter((place) => place < rows.length).map((place) => places[place].join(",")).join(" ");
  const marks = places.map(([x, y], i) => {
    const kind = i === way[0] ? "first" : chosen.has(i) ? "chosen" : "point";
    return svg("g", { class: kind }, svg("circle", { cx: x, cy: y, r: i === way[0] ? 7 : 5 }),
      svg("text", { x: x + 9, y: y - 8 }, String(i)));
  });
  const size = SIDE + 2 * EDGE;
  const words = `${rows.length} points and the ${isPolygon ? "polygon" : "path"} through ${chosen.size} of them: ${way.join(", ")}`;
  return svg("svg", { class: "points", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": words },
    svg("polyline", { class: isPolygon ? "way polygon" : "way", points: line }), marks);
}

function placed(points) {
  const [lows, highs] = [Math.min, Math.max].map((pick) => [0, 1].map((axis) => pick(...points.map((row) => row[axis]))));
  const unit = Math.max(highs[0] - lows[0], highs[1] - lows[1]) || 1;
  const middle = [0, 1].map((axis) => (lows[axis] + highs[axis]) / 2);
  return points.map(([x, y]) =>
    [EDGE + SIDE * (0.5 + (x - middle[0]) / unit), EDGE + SIDE * (0.5 - (y - middle[1]) / unit)].map((at) => Number(at.toFixed(1))));
}
