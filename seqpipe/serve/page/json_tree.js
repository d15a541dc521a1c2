// Any JSON as a tree that opens and closes.

import { el } from "./dom.js";
import { counted } from "./text.js";

export function jsonTree(value, name = null) {
  const key = name === null ? null : el("span", { class: "key" }, `${name}: `);
  if (value === null || typeof value !== "object") {
    return el("div", { class: "leaf" }, key, el("bdi", { class: `json-${value === null ? "null" : typeof value}` }, JSON.stringify(value)));
  }
  const entries = Object.entries(value);
  const size = Array.isArray(value) ? `list of ${entries.length}` : counted(entries.length, "key");
  return el("details", { class: "tree", open: entries.length <= 20 }, el("summary", {}, key, el("span", { class: "help" }, size)),
    entries.map(([inner, part]) => jsonTree(part, inner)));
}
