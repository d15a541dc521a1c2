// Explanations: attention weights over words or sentences in the text, matrices as heat maps, and copied tokens.

import { el, freshId, scrolling, svg, table } from "./dom.js";
import { number, share, visibleBlanks } from "./text.js";

const MOST_TOKENS = 100; // rows, and columns, of a matrix; browsers are slow with more

export function attentionParts({ text, attentions, copied = {}, points: rows }, picture) {
  const points = Array.from(text); // offsets of answers count code points, not UTF-16 units
  const parts = Object.entries(attentions).map(([name, attention]) =>
    (attention.grid ? maps(name, attention, picture) : section(name, attention, points)));
  parts.push(...Object.entries(copied).map(([name, origins]) => copies(name, origins, points)));
  if (parts.length || rows) return parts; // rows are drawn with the answer
  return [el("p", { class: "help" }, "This text has no tokens, so there are no weights to show.")];
}

function section(name, attention, points) {
  const { over, weights } = attention;
  const isMatrix = over === "pairs" || over === "written";
  const title = { pairs: "Tokens that each input token attends to", written: "Input tokens that each answer token attends to" }[over]
    ?? `Weight of each ${over.replace(/s$/, "")} of the input`;
  const about = isMatrix ? `Rows: tokens of the ${over === "written" ? "answer" : "input"}; columns: tokens of the input. ${name}` : name;
  return el("section", { class: "attention" }, el("h3", {}, title), el("p", { class: "help" }, about),
    isMatrix ? matrices(attention, points) : shaded(attention.places, weights, points));
}

/** The places of a picture, or of a sound with time to the right: one map for each token of the answer. */
function maps(name, { grid: [rows, columns], weights, written }, picture) {
  const all = written ? weights : [weights];
  const most = Math.max(1e-12, ...all.flat());
  const [width, height] = rows === 1 ? [96, 24] : [16 * columns, 16 * rows];
  const figures = all.map((values, i) => {
    const cells = values.map((value, place) => svg("rect", { style: { "--weight": Math.max(0, value) / most },
      x: (place % columns) * (width / columns), y: Math.floor(place / columns) * (height / rows), width: width / columns, height: height / rows }));
    const under = picture ? svg("image", { href: picture, width, height, preserveAspectRatio: "none" }) : null;
    const label = written ? visibleBlanks(written[i]) : "";
    return el("figure", {}, svg("svg", { class: rows === 1 ? "map wide" : "map", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Weights of the places ${label}` },
      under, cells), el("figcaption", {}, el("bdi", {}, label)));
  });
  return el("section", { class: "attention" }, el("h3", {}, written ? "Places that each answer token attends to" : "Weight of each place of the input"),
    el("p", { class: "help" }, name), el("div", { class: "maps" }, figures), ramp(most));
}

/** The text with each place shaded by its weight. */
function shaded(places, weights, points) {
  const most = Math.max(1e-12, ...weights);
  const parts = [];
  let at = 0;
  places.forEach(([start, end], i) => {
    if (start < at || start === end) return; // a part of a character that belongs to the token before
    parts.push(points.slice(at, start).join(""), el("mark", { class: "heat", title: number(weights[i]),
      style: { "--weight": Math.max(0, weights[i]) / most } }, points.slice(start, end).join("")));
    at = end;
  });
  parts.push(points.slice(at).join(""));
  return el("div", {}, el("p", { class: "text", dir: "auto" }, parts), ramp(most));
}

function ramp(most) {
  return el("p", { class: "help ramp" }, "0 ", el("span", { class: "scale", "aria-hidden": "true" }),
    ` ${number(most)} · the stronger the colour, the greater the weight`);
}

/** A matrix; for several heads, the mean, with a choice of each head. */
function matrices(attention, points) {
  const columns = attention.places.map(([start, end]) => visibleBlanks(points.slice(start, end).join("")));
  const rows = attention.written?.map(visibleBlanks) ?? columns;
  if (attention.written) return matrix(attention.weights, rows, columns);
  const heads = attention.weights;
  if (heads.length < 2) return heads.length ? matrix(heads[0], rows, columns) : null;
  const id = freshId();
  const mean = heads[0].map((row, i) => row.map((_, j) => heads.reduce((sum, head) => sum + head[i][j], 0) / heads.length));
  const place = el("div", {}, matrix(mean, rows, columns));
  const names = ["mean of the heads", ...heads.map((_, i) => `head ${i + 1}`)];
  const select = el("select", { id, on: { change: () => {
    const chosen = Number(select.value);
    place.replaceChildren(matrix(chosen ? heads[chosen - 1] : mean, rows, columns));
  } } }, names.map((name, i) => el("option", { value: i }, name)));
  return el("div", {}, el("div", { class: "field inline" }, el("label", { for: id }, "Weights"), select), place);
}

function matrix(weights, rows, columns) {
  const [shownRows, shownColumns] = [rows.slice(0, MOST_TOKENS), columns.slice(0, MOST_TOKENS)];
  const most = Math.max(1e-12, ...weights.slice(0, MOST_TOKENS).flatMap((row) => row.slice(0, MOST_TOKENS)));
  const lines = shownRows.map((word, i) => el("tr", {}, el("th", { scope: "row" }, el("bdi", {}, word)),
    shownColumns.map((column, j) => el("td", { class: "heat", title: `${word} → ${column}: ${number(weights[i][j])}`,
      style: { "--weight": Math.max(0, weights[i][j]) / most } },
    el("span", { class: "hidden" }, number(weights[i][j], 2))))));
  const head = el("tr", {}, el("td", {}), shownColumns.map((word) =>
    el("th", { scope: "col", class: Array.from(word).length > 2 ? "turned" : null }, el("bdi", {}, word))));
  const cut = Math.max(rows.length, columns.length) > MOST_TOKENS
    ? el("p", { class: "help" }, `The first ${MOST_TOKENS} of ${Math.max(rows.length, columns.length)} are shown.`) : null;
  const whole = el("table", { class: "matrix" }, el("thead", {}, head), el("tbody", {}, lines));
  return el("div", {}, scrolling("Heat map", whole), ramp(most), cut);
}

/** The copied words, with their positions in the input. */
function copies(name, origins, points) {
  const rows = origins.map((origin) => el("tr", {},
    el("td", { class: "heat", style: { "--weight": 1 - origin.generating } }, el("bdi", {}, origin.token)),
    el("td", { class: "number" }, share(1 - origin.generating)),
    el("td", { dir: "auto" }, origin.start === null ? "" : points.slice(origin.start, origin.end).join("")),
    el("td", { class: "number" }, origin.start === null ? "" : `${origin.start}–${origin.end}`)));
  const names = ["Token", "Copied with probability", "Same token in the input", "Place"];
  return el("section", { class: "attention" }, el("h3", {}, "Tokens copied from the input"),
    el("p", { class: "help" }, name), table(names, rows));
}
