// Spans colored in their text, flat, nested or overlapping; tags under words; the answer in its passage.

import { el, foldedTable } from "./dom.js";
import { nothing, score } from "./draw_numbers.js";
import { hue, number } from "./text.js";

const STRIPE = 3; // pixels of a stripe under a span, and between two of them
const GAP = 2;

/** Labelled spans of the first text: colored there, and in a table. */
export function drawSpans({ label, labels }, answer, input) {
  const spans = answer.map((span) => ({ ...span, label: span[label], hue: hue(span[label], labels) }));
  const text = coloredText(input.texts[0], spans);
  return spans.length ? el("div", {}, text, spanTable(spans)) : el("div", {}, text, nothing());
}

/** The answer span, marked in the last text. */
export function drawPassage(drawing, answer, input) {
  const isNone = answer.start === answer.end;
  const span = { start: answer.start, end: answer.end, label: "answer", hue: 150 };
  return el("div", {},
    isNone ? el("p", { class: "nothing" }, "No answer in this text") : el("p", { class: "big", dir: "auto" }, answer.answer),
    coloredText(input.texts.at(-1), isNone ? [] : [span]), score(answer));
}

/** A text with its spans as marks; overlapping spans have separate stripes below the text. */
export function coloredText(text, spans) {
  const points = Array.from(text); // offsets of answers count code points, not UTF-16 units
  const placed = levels(spans.filter((span) => span.start < span.end));
  const deepest = Math.max(0, ...placed.map((span) => span.level));
  const cuts = [...new Set([0, points.length, ...placed.flatMap((span) => [span.start, span.end])])].sort((a, b) => a - b);
  const parts = cuts.slice(1).flatMap((end, i) => segment(points.slice(cuts[i], end).join(""), cuts[i], end, placed, deepest));
  const lineHeight = `calc(1.9em + ${2 * deepest * (STRIPE + GAP)}px)`;
  return el("p", { class: "text", dir: "auto", style: { "line-height": lineHeight } }, parts);
}

function segment(text, start, end, spans, deepest) {
  const covering = spans.filter((span) => span.start <= start && end <= span.end).sort((a, b) => a.level - b.level);
  if (!covering.length) return [text];
  const inner = covering.at(-1);
  const mark = el("mark", {
    class: [covering.some((span) => span.start === start) && "opens", covering.some((span) => span.end === end) && "closes"]
      .filter(Boolean).join(" "),
    style: {
      "--hue": inner.hue,
      "padding-bottom": `${(deepest + 1) * (STRIPE + GAP)}px`,
      "background-image": covering.map((span) => `linear-gradient(${stripe(span)}, ${stripe(span)})`).join(", "),
      "background-position": covering.map((span) => `0 calc(100% - ${span.level * (STRIPE + GAP)}px)`).join(", "),
      "background-size": `100% ${STRIPE}px`,
    },
  }, text);
  const chips = spans.filter((span) => span.end === end).sort((a, b) => b.start - a.start).map(chip);
  return [mark, ...chips];
}

function stripe(span) {
  return `oklch(var(--stripe) ${span.hue})`;
}

function chip(span) {
  const value = span.score === undefined ? null : el("span", { class: "number" }, number(span.score, 2));
  return el("bdi", { class: "chip", style: { "--hue": span.hue } }, span.label, value);
}

/** Spans with the lowest level that no overlapping span has, longer ones below shorter ones. */
function levels(spans) {
  const placed = [];
  for (const span of [...spans].sort((a, b) => a.start - b.start || b.end - a.end)) {
    const taken = placed.filter((other) => other.end > span.start && other.start < span.end).map((other) => other.level);
    let level = 0;
    while (taken.includes(level)) level += 1;
    placed.push({ ...span, level });
  }
  return placed;
}

function spanTable(spans) {
  const rows = spans.map((span) => el("tr", {},
    el("td", { dir: "auto" }, span.word), el("td", {}, chip({ ...span, score: undefined })),
    el("td", { class: "number" }, span.score === undefined ? "" : number(span.score)),
    el("td", { class: "number" }, `${span.start}–${span.end}`)));
  return foldedTable(["Text", "Label", "Score", "Place"], rows);
}

/** Each word with its tag below. */
export function drawTags({ label, labels }, answer) {
  if (!answer.length) return nothing();
  return el("ol", { class: "tagged", dir: "auto" }, answer.map((word) =>
    el("li", { title: word.score === undefined ? null : `score ${number(word.score)}` },
      el("span", { class: "word" }, word.word),
      el("bdi", { class: "chip", style: { "--hue": hue(word[label], labels) } }, word[label]))));
}
