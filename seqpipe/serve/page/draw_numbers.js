// Labels as bars, scores, vectors, and alternatives with their scores.

import { copyButton, el, svg } from "./dom.js";
import { counted, hue, number, share } from "./text.js";

export function nothing() {
  return el("p", { class: "nothing" }, "(nothing)");
}

/** One bar of a list: its name, its length from 0 to 1, and its number. */
export function bar(name, value, color) {
  return el("li", {}, el("bdi", { class: "name" }, name), track(value, { "--hue": color }),
    el("span", { class: "number" }, share(value)));
}

function track(value, style = {}) {
  const width = `${100 * Math.min(1, Math.max(0, value))}%`;
  return el("span", { class: "track", "aria-hidden": "true" }, el("span", { class: "fill", style: { width, ...style } }));
}

const MOST_BARS = 10; // more of them are below a summary

/** The decided label with its probability, and the requested other ones. */
export function drawLabel({ labels }, answer) {
  const parts = Array.isArray(answer) ? answer : [answer];
  if (parts[0].label === null) return nothing();
  const bars = parts.map((part) => bar(part.label, part.score, hue(part.label, labels)));
  const more = bars.splice(MOST_BARS);
  return el("div", {}, el("p", { class: "big" }, el("bdi", {}, parts[0].label)), el("ol", { class: "bars" }, bars),
    more.length ? el("details", { class: "table" }, el("summary", {}, `${counted(more.length, "more label")}`),
      el("ol", { class: "bars" }, more)) : null);
}

/** Labels: the answer is a list of them, or has one under the key `list`. */
export function drawLabels({ labels, list }, answer) {
  const parts = list ? answer[list] : answer;
  if (!parts.length) return nothing();
  return el("ol", { class: "bars" }, parts.map((part) => (typeof part === "string"
    ? el("li", {}, el("bdi", { class: "name" }, part))
    : bar(part.label, part.score, hue(part.label, labels)))));
}

export function drawNumber(drawing, answer) {
  return answer.score === null ? nothing() : el("p", { class: "big" }, number(answer.score, 4));
}

/** The nearest candidate or its answer, and below it the nearest ones by their cosines. */
export function drawCandidate(drawing, answer) {
  if (answer.text === null) return nothing();
  return el("div", {}, el("p", { class: "text" }, el("bdi", {}, answer.answer ?? answer.text)),
    el("ol", { class: "bars" }, answer.nearest.map((part) => bar(part.text, part.score, hue(part.label ?? part.text)))));
}

const SHOWN = 768; // bars of a vector: more are narrower than a pixel

/** A vector: its bars around zero, its norm, and its first numbers. */
export function drawVector(drawing, { vector }) {
  if (vector === null) return nothing();
  const norm = Math.hypot(...vector);
  const least = Math.min(...vector);
  const most = Math.max(...vector);
  const largest = Math.max(Math.abs(least), Math.abs(most)) || 1;
  const shown = vector.slice(0, SHOWN);
  const middle = 40;
  const bars = shown.map((value, i) => {
    const height = (Math.abs(value) / largest) * middle;
    const y = value < 0 ? middle : middle - height;
    return svg("rect", { class: value < 0 ? "below" : "above", x: i + 0.1, y, width: 0.8, height });
  });
  const words = `${counted(vector.length, "number")}, norm ${number(norm, 4)}, `
    + `from ${number(least, 4)} to ${number(most, 4)}`;
  const first = vector.slice(0, 8).map((value) => number(value, 4)).join(", ");
  return el("div", { class: "vector" },
    el("p", {}, words, " ", copyButton("the vector", () => JSON.stringify(vector))),
    svg("svg", { viewBox: `0 0 ${shown.length} ${2 * middle}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `bars of a vector of ${words}` }, bars),
    el("p", { class: "help" }, `[${first}${vector.length > 8 ? ", …" : ""}]`));
}

/** Alternatives, best first, each with its score. */
export function ranked(alternatives, drawOne) {
  return el("ol", { class: "ranked" }, alternatives.map((part) =>
    el("li", {}, el("div", { class: "alternative" }, drawOne(part)), score(part))));
}

export function score(part) {
  if (part.score === undefined || part.score === null) return null;
  // The probability of a long text is tiny: its logarithm tells alternatives apart.
  const isTiny = part.log_score !== undefined && part.score < 0.001;
  const [name, shown] = isTiny ? ["log score ", String(part.log_score)] : ["score ", number(part.score)];
  return el("p", { class: "score" }, el("span", {}, name), el("span", { class: "number" }, shown), track(part.score));
}
