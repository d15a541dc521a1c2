// Generated texts: alone, after their prompt, and in the gaps of a text.

import { el } from "./dom.js";
import { score } from "./draw_numbers.js";

function generated(answer, parts) {
  const isEmpty = answer.generated_text === "";
  return el("div", {}, el("p", { class: isEmpty ? "nothing" : "text generated", dir: "auto" },
    isEmpty ? "(an empty text)" : parts), score(answer));
}

export function drawText(drawing, answer) {
  return generated(answer, [answer.generated_text]);
}

/** The prompt and its continuation. */
export function drawContinuation(drawing, answer, input) {
  return generated(answer, continued(input.texts.at(-1), answer.generated_text));
}

/** Split a text into prompt and continuation, if it begins with the prompt as it was sent. */
export function continued(prompt, text) {
  if (!prompt || !text.startsWith(prompt)) return [text];
  return [el("span", { class: "prompt" }, prompt), el("mark", { class: "new" }, text.slice(prompt.length))];
}

/** A text with filled gaps, which are marked. */
export function drawFilling({ gap }, answer, input) {
  return generated(answer, filled(input.texts[0].split(gap), answer.generated_text) ?? [answer.generated_text]);
}

/** Split the text at its gaps; null if the text between them is not found. */
function filled(between, text) {
  if (!text.startsWith(between[0])) return null;
  const parts = [between[0]];
  let at = between[0].length;
  for (const [i, next] of between.slice(1).entries()) {
    const isLast = i === between.length - 2;
    const end = isLast ? text.length - next.length : next === "" ? -1 : text.indexOf(next, at + 1);
    if (end < at || !text.startsWith(next, end)) return null;
    parts.push(el("mark", { class: "new" }, text.slice(at, end)), next);
    at = end + next.length;
  }
  return parts;
}
