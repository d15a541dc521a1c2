// The drawings of answers by name; a bundle's description has the name for its answer kind.

import { attentionParts } from "./draw_attention.js";
import { drawCandidate, drawLabel, drawLabels, drawNumber, drawVector, ranked } from "./draw_numbers.js";
import { drawPointers } from "./draw_points.js";
import { drawPassage, drawSpans, drawTags } from "./draw_spans.js";
import { drawStructure } from "./draw_structure.js";
import { drawContinuation, drawFilling, drawText } from "./draw_text.js";
import { el } from "./dom.js";
import { jsonTree } from "./json_tree.js";

const DRAWINGS = {
  spans: drawSpans,
  tags: drawTags,
  label: drawLabel,
  labels: drawLabels,
  number: drawNumber,
  vector: drawVector,
  candidate: drawCandidate,
  passage: drawPassage,
  pointers: drawPointers,
  structure: drawStructure,
  text: drawText,
  continuation: drawContinuation,
  filling: drawFilling,
};

/**
 * Draw an answer; those of several heads one below the other.
 *
 * @param {object} drawing The drawing's name, `as`, and its settings for the answer kind.
 * @param {*} answer The server's answer; a list of alternatives if the request asked for several.
 * @param {object} input The texts (or rows) that were sent, in the order of the input fields, and all by field.
 */
export function draw(drawing, answer, input) {
  if (drawing.as === "heads") {
    return el("div", { class: "heads" }, Object.entries(drawing.heads).map(([head, part]) =>
      el("section", { class: "head" }, el("h3", {}, head), draw(part, answer[head], input))));
  }
  const drawOne = DRAWINGS[drawing.as];
  if (!drawOne) return jsonTree(answer);
  const alternatives = alternativesOf(drawing, answer);
  const warnings = [...new Set((alternatives ?? [answer]).map((part) => part?.warning).filter(Boolean))];
  return el("div", { class: "answer" },
    warnings.map((warning) => el("p", { class: "warning" }, warning)),
    alternatives
      ? ranked(alternatives, (part) => drawOne(drawing, drawing.several ? part[drawing.several] : part, input))
      : drawOne(drawing, answer, input));
}

/** The alternatives of an answer, best first; null if there is only one answer. */
function alternativesOf(drawing, answer) {
  if (!Array.isArray(answer) || drawing.as === "label") return null; // bars for one label or for all
  if (!drawing.several) return answer;
  return answer.length && answer.every((part) => drawing.several in part) ? answer : null;
}

/** The attention weights of a model, and the tokens that it copied; `picture` is the address of the input, if it is one. */
export function drawExplanation(explanation, picture) {
  const parts = attentionParts(explanation, picture);
  return parts.length ? [el("div", { class: "explanation" }, parts)] : [];
}
