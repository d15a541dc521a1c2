// Structured answers: words with their values below, arcs between words, and values of the whole text.

import { el, foldedTable, scrolling, svg } from "./dom.js";
import { bar } from "./draw_numbers.js";
import { jsonTree } from "./json_tree.js";
import { hue, isRightToLeft, number } from "./text.js";

const STEP = 26; // height of one level of arcs
const SPACE = 22; // between two words
const LINE = 20;

/** The fields that the answer kind declares, grouped by their unit: the text, each word, or pairs of words. */
export function drawStructure({ fields }, answer) {
  const words = answer.words ?? [];
  const arcs = fields.flatMap((field) => arcsOf(field, answer, words));
  const ofText = fields.filter((field) => field.per === "text");
  const parts = [];
  if (ofText.length) parts.push(el("dl", { class: "values" }, ofText.flatMap((field) => ofWholeText(field, answer))));
  if (words.length) parts.push(graph(words, fields.filter((field) => field.per === "word" && field.type !== "position"), arcs));
  if (arcs.length) parts.push(arcTable(words, arcs));
  return parts.length ? el("div", {}, parts) : jsonTree(answer);
}

function ofWholeText(field, answer) {
  const value = answer[field.name];
  const score = answer[`${field.name}_score`];
  const shown = score === undefined ? plain(value) : el("ol", { class: "bars" }, bar(plain(value), score, hue(value)));
  return [el("dt", {}, field.name), el("dd", { dir: "auto" }, shown)];
}

function plain(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : number(value);
  return typeof value === "object" ? value.text : String(value);
}

/** Arcs between words; for positions, from the word that is the value to the word that has it. */
function arcsOf(field, answer, words) {
  if (field.per === "pair") {
    return answer[field.name].map((pair) => ({ from: pair.from, to: pair.to, name: plain(pair.label ?? pair.value), field }));
  }
  if (field.per !== "word" || field.type !== "position") return [];
  return words.map((word, i) => ({ from: word[field.name], to: i, name: "", field }));
}

function graph(words, below, arcs) {
  const isRtl = isRightToLeft(words.map((word) => word.word).join(" "));
  const columns = words.map((word) => [word.word, ...below.map((field) => plain(word[field.name]))]);
  const widths = columns.map((texts) => Math.max(24, ...texts.map(textWidth)));
  const whole = widths.reduce((sum, width) => sum + width + SPACE, SPACE);
  let at = SPACE;
  const middles = widths.map((width) => {
    const middle = at + width / 2;
    at += width + SPACE;
    return isRtl ? whole - middle : middle;
  });
  const levels = arcLevels(arcs);
  const ends = arcEnds(arcs, middles);
  const top = 30 + STEP * Math.max(0, ...levels);
  const height = top + 24 + LINE * (below.length + 1);
  const drawn = arcs.map((arc, i) => drawArc(arc, ends[i], top, levels[i]));
  const texts = columns.flatMap((column, i) => column.map((text, row) =>
    svg("text", { class: row ? "value" : "word", x: middles[i], y: top + 20 + LINE * row,
      style: row ? { "--hue": hue(text) } : {} }, text)));
  const spoken = `${columns.map((column) => column.join(" ")).join(", ")}. ${arcs.length} arcs, listed in the table below.`;
  const picture = svg("svg", { class: "arcs", width: whole, height, viewBox: `0 0 ${whole} ${height}`, role: "img",
    "aria-label": spoken }, drawn, texts);
  return scrolling("Words and arcs", picture,
    below.length ? el("p", { class: "help" }, `Below each word: ${below.map((field) => field.name).join(", ")}`) : null);
}

/** The ends of each arc: beside the middle of its word, long arcs nearest to it, so that few cross. */
function arcEnds(arcs, middles) {
  const ends = arcs.map(({ from, to }) => ({ a: middles[from ?? to], b: middles[to] }));
  middles.forEach((middle, word) => {
    for (const side of [-1, 1]) {
      const here = arcs.flatMap(({ from, to }, i) => (from === null || from === to ? []
        : [[from, "a", middles[to]], [to, "b", middles[from]]].filter(([at, , other]) =>
          at === word && Math.sign(other - middle) === side).map(([, end, other]) => ({ i, end, other }))));
      here.sort((one, two) => Math.abs(two.other - middle) - Math.abs(one.other - middle));
      here.forEach(({ i, end }, place) => { ends[i][end] = middle + side * (4 + 7 * place); });
    }
  });
  return ends;
}

function drawArc({ from, to, name, field }, { a, b }, top, level) {
  const color = { "--hue": hue(field.name) };
  if (from === null) {
    return svg("g", { class: "arc root", style: color },
      svg("path", { d: `M${b} 16V${top - 2}` }), arrow(b, top), svg("text", { x: b, y: 12 }, "root"));
  }
  const side = Math.sign(b - a) || 1;
  const y = top - STEP * level;
  const d = from === to
    ? `M${a - 8} ${top}C${a - 22} ${y - 12} ${a + 22} ${y - 12} ${b + 8} ${top - 2}`
    : `M${a} ${top}C${a} ${y - 8} ${a} ${y} ${a + 10 * side} ${y}H${b - 10 * side}C${b} ${y} ${b} ${y - 8} ${b} ${top - 2}`;
  return svg("g", { class: "arc", style: color }, svg("path", { d }), arrow(from === to ? b + 8 : b, top),
    name ? svg("text", { x: (a + b) / 2, y: y - 4 }, name) : null);
}

function arrow(x, y) {
  return svg("path", { class: "tip", d: `M${x - 4} ${y - 7}L${x} ${y}L${x + 4} ${y - 7}Z` });
}

/** The level of each arc: above the shorter ones that it encloses. */
function arcLevels(arcs) {
  const levels = new Array(arcs.length).fill(0);
  const reach = arcs.map(({ from, to }) => (from === null ? [to, to] : [Math.min(from, to), Math.max(from, to)]));
  const order = arcs.map((_, i) => i).sort((i, j) => reach[i][1] - reach[i][0] - (reach[j][1] - reach[j][0]));
  order.forEach((i, place) => {
    if (arcs[i].from === null) return;
    const under = order.slice(0, place).filter((j) => reach[j][0] < reach[i][1] && reach[i][0] < reach[j][1]);
    levels[i] = 1 + Math.max(0, ...under.map((j) => levels[j]));
  });
  return levels;
}

function arcTable(words, arcs) {
  const rows = arcs.map(({ from, to, name, field }) => el("tr", {},
    [field.name, from === null ? "root" : words[from].word, words[to].word, name].map((text) => el("td", { dir: "auto" }, text))));
  return foldedTable(["Field", "From", "To", "Value"], rows);
}

const measure = document.createElement("canvas").getContext("2d");

function textWidth(text) {
  measure.font = `16px ${getComputedStyle(document.body).fontFamily}`;
  return measure.measureText(text).width;
}
