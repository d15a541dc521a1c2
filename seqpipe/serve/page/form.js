// The form of a bundle: a control for each input field and each decode option, and the request that they make.

import { el, freshId } from "./dom.js";

export class RowsError extends Error {}

/** The form of one bundle; `body()` is the request as it stands. */
export class Form {
  constructor(bundle, onChange) {
    this.bundle = bundle;
    this.inputs = bundle.inputs.map((input) => inputControl(input, bundle.inputs.length === 1));
    this.options = Object.entries(bundle.options).map(([name, option]) => optionControl(name, option));
    this.switches = switches(bundle);
    this.element = el("div", { class: "form", on: { input: onChange } },
      this.inputs.map((input) => input.element),
      examplesControl(bundle, (example) => this.fill(example, onChange)),
      optionsBox(this.options, this.switches));
    if (bundle.examples.length) this.fill(bundle.examples[0], () => {});
  }

  fill(example, onChange) {
    for (const input of this.inputs) input.fill(fieldOf(example, input.name, this.inputs.length === 1));
    onChange();
  }

  /** The values of all input fields by name; RowsError where numbers are none. */
  record() {
    return Object.fromEntries(this.inputs.map((input) => [input.name, input.value()]));
  }

  body() {
    const record = this.record();
    const single = this.inputs.length === 1 && this.bundle.inputs[0].type === "text";
    const body = { inputs: single ? Object.values(record)[0] : record };
    const chosen = this.options.map((option) => [option.name, option.value()]).filter(([, value]) => value !== undefined);
    if (chosen.length) body.options = Object.fromEntries(chosen);
    for (const { name, control } of this.switches) if (control.checked) body[name] = true;
    return body;
  }
}

function fieldOf(example, name, alone) {
  if (typeof example === "string") return example;
  if (example[name] !== undefined && example[name] !== null) return example[name];
  return alone && Array.isArray(example.words) ? example.words.join(" ") : "";
}

function inputControl({ name, type }, alone) {
  const id = freshId();
  const isRows = type === "rows";
  const area = el("textarea", {
    id, dir: isRows ? "ltr" : "auto", rows: type === "category" ? 1 : alone || isRows ? 5 : 3, spellcheck: "false",
    autocomplete: "off", class: isRows ? "rows" : "", "aria-describedby": isRows ? `${id}h` : null,
  });
  const help = isRows ? el("p", { id: `${id}h`, class: "help" }, "One row of numbers a line, such as 0.25 0.75") : null;
  const element = el("div", { class: "field" }, el("label", { for: id }, name), area, help);
  const fill = (value) => { area.value = typeof value === "string" ? value : rowsText(value); };
  return { name, element, fill, value: () => (isRows ? rowsOf(area.value, name) : area.value) };
}

function rowsText(rows) {
  if (!Array.isArray(rows)) return String(rows);
  return rows.every(Array.isArray) ? rows.map((row) => row.join(" ")).join("\n") : rows.join(" ");
}

function rowsOf(text, name) {
  const lines = text.split("\n").map((line, i) => [i + 1, line.trim()]).filter(([, line]) => line);
  return lines.map(([place, line]) => line.split(/[\s,;]+/).filter(Boolean).map((word) => {
    const value = Number(word);
    if (!Number.isFinite(value)) throw new RowsError(`${name}, line ${place}: '${word}' is no number`);
    return value;
  }));
}

function examplesControl(bundle, choose) {
  if (bundle.examples.length < 2) return null;
  const id = freshId();
  const names = bundle.examples.map((example, i) => el("option", { value: i }, `${i + 1}. ${summary(example)}`));
  const select = el("select", { id, on: { change: () => choose(bundle.examples[Number(select.value)]) } }, names);
  return el("div", { class: "field examples" }, el("label", { for: id }, "Example"), select);
}

function summary(example) {
  const whole = typeof example === "string" ? example : Object.values(example).find((value) => typeof value === "string")
    ?? rowsText(Object.values(example)[0] ?? []).replaceAll("\n", ", ");
  const points = Array.from(whole.replace(/\s+/g, " "));
  return points.length > 60 ? `${points.slice(0, 59).join("")}…` : points.join("");
}

const SWITCHES = [
  ["stream", "streams", "Show the text as it is generated", true],
  ["explain", "explains", "Explain: attention weights and copied words", false],
  ["documents", "documents", "Read the text as a document: split it into sentences", false],
];

function switches(bundle) {
  const parts = SWITCHES.filter(([, known]) => bundle[known]).map(([name, , words, checked]) => {
    const id = freshId();
    const control = el("input", { type: "checkbox", id, checked, on: { change: () => {
      for (const part of parts) if (part.control !== control) part.control.checked = false; // the server takes one
    } } });
    return { name, control, element: el("div", { class: "switch" }, control, el("label", { for: id }, words)) };
  });
  return parts;
}

function optionsBox(options, more) {
  if (!options.length && !more.length) return null;
  const fields = options.length
    ? el("details", { class: "options" }, el("summary", {}, `Decode options (${options.length})`),
      el("div", { class: "grid" }, options.map((option) => option.element)))
    : null;
  return el("div", { class: "choices" }, more.map((part) => part.element), fields);
}

function optionControl(name, option) {
  const id = freshId();
  const isNumber = ["int", "float"].includes(option.type);
  const control = el("input", {
    id, "aria-describedby": `${id}h`, autocomplete: "off",
    type: option.type === "bool" ? "checkbox" : isNumber ? "number" : "text",
    checked: option.type === "bool" && option.default, dir: isNumber ? "ltr" : "auto",
    placeholder: option.type === "bool" ? null : shown(option.default),
    min: option.minimum, max: option.maximum, step: option.type === "float" ? "any" : "1",
  });
  const element = el("div", { class: "option" }, el("label", { for: id }, name), control,
    el("span", { class: "help", id: `${id}h` }, bounds(option)));
  const value = () => {
    if (option.type === "bool") return control.checked === option.default ? undefined : control.checked;
    if (control.validity.badInput) throw new RowsError(`${name}: write a number`);
    if (control.value.trim() === "") return undefined;
    return isNumber ? Number(control.value) : control.value;
  };
  return { name, element, value };
}

function shown(value) {
  if (value === null || value === undefined) return "";
  return Array.isArray(value) ? value.join(" ") : String(value);
}

/** The bounds in words; the next number after a whole one stands for a bound that is not allowed itself. */
function bounds({ type, minimum, maximum, default: usual }) {
  const has = (bound) => typeof bound === "number";
  const isAbove = has(minimum) && minimum > Math.round(minimum) && minimum - Math.round(minimum) < 1e-9;
  const parts = [];
  if (isAbove) parts.push(has(maximum) ? `above ${Math.round(minimum)}, at most ${maximum}` : `above ${Math.round(minimum)}`);
  else if (has(minimum)) parts.push(has(maximum) ? `${minimum} to ${maximum}` : `at least ${minimum}`);
  else if (has(maximum)) parts.push(`at most ${maximum}`);
  else if (["tokens", "texts", "automaton"].includes(type)) parts.push("a text");
  const standard = shown(usual);
  if (standard !== "") parts.push(`default ${standard}`);
  return parts.join(", ");
}
