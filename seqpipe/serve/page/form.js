// The form of a bundle: a control for each input field and each decode option, and the resulting request.

import { el, freshId } from "./dom.js";
import { isMedia, mediaControl } from "./media.js";

/** An error message for input that cannot be sent. */
export class InputError extends Error {}

/** The form of one bundle; `body()` is the current request. */
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

  /** The values of all input fields by name; InputError for invalid numbers. */
  record() {
    return Object.fromEntries(this.inputs.map((input) => [input.name, input.value()]));
  }

  /** InputError if all fields are empty, unless the model can generate from an empty prompt. */
  refuseEmpty() {
    if (this.bundle.reads_empty || Object.values(this.record()).some((value) => value.length && String(value).trim())) return;
    const names = this.inputs.map((input) => `“${input.name}”`).join(" and ");
    const hint = this.bundle.examples.length ? ", or choose an example" : " first";
    throw new InputError(`There is nothing to answer: ${this.bundle.inputs.every(({ type }) => isMedia(type))
      ? `choose a file for ${names}` : `${names} is empty. Write something${hint}`}.`);
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
  if (isMedia(type)) return mediaControl({ name, type });
  const id = freshId();
  const isRows = type === "rows";
  const area = el("textarea", {
    id, dir: isRows ? "ltr" : "auto", rows: type === "category" ? 1 : alone || isRows ? 5 : 3, spellcheck: "false",
    autocomplete: "off", class: isRows ? "rows" : "", "aria-describedby": isRows ? `${id}h` : null,
  });
  const help = isRows ? el("p", { id: `${id}h`, class: "help" }, "One row of numbers per line, such as 0.25 0.75") : null;
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
    if (!Number.isFinite(value)) throw new InputError(`${name}, line ${place}: '${word}' is no number`);
    return value;
  }));
}

function examplesControl(bundle, choose) {
  if (bundle.examples.length < 2) return null;
  const id = freshId();
  const names = bundle.examples.map((example, i) => el("option", { value: i }, `${i + 1}. ${summary(example, bundle.inputs)}`));
  const select = el("select", { id, on: { change: () => choose(bundle.examples[Number(select.value)]) } }, names);
  return el("div", { class: "field examples" }, el("label", { for: id }, "Example"), select);
}

function summary(example, inputs) {
  if (inputs.every(({ type }) => isMedia(type))) return inputs.map(({ type }) => type).join(" and ");
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
      for (const part of parts) if (part.control !== control) part.control.checked = false; // the server accepts only one
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
  const isNumber = ["int", "float"].includes(option.type) && option.const === undefined;
  const control = el("input", {
    id, "aria-describedby": `${id}h`, autocomplete: "off",
    type: option.type === "bool" ? "checkbox" : isNumber ? "number" : "text",
    checked: option.type === "bool" && option.default, dir: isNumber ? "ltr" : "auto",
    placeholder: option.type === "bool" ? null : shown(usual(option)),
    min: option.minimum, max: option.maximum, step: option.type === "float" ? "any" : "1",
  });
  const element = el("div", { class: "option" }, el("label", { for: id }, name), control,
    el("p", { class: "help", id: `${id}h` }, [option.description, bounds(option)].filter(Boolean).join(" ")));
  const value = () => {
    if (option.type === "bool") return control.checked === option.default ? undefined : control.checked;
    if (control.validity.badInput) throw new InputError(`${name}: write a number`);
    const text = control.value.trim();
    if (text === "") return option.const;
    if (isNumber) return Number(text);
    if (option.const === undefined || text === option.const) return control.value;
    if (!/^\d+$/.test(text)) throw new InputError(`${name}: write a whole number, or ${option.const}`);
    return Number(text);
  };
  return { name, element, value };
}

/** The value of an empty option: `all`, if the option has this value. */
function usual(option) {
  return option.const ?? option.default;
}

function shown(value) {
  if (value === null || value === undefined) return "";
  return Array.isArray(value) ? value.join(" ") : String(value);
}

/** The bounds in words; the next number after a whole one means that the bound itself is not allowed. */
function bounds(option) {
  const { type, minimum, maximum, description } = option;
  const has = (bound) => typeof bound === "number";
  const isAbove = has(minimum) && minimum > Math.round(minimum) && minimum - Math.round(minimum) < 1e-9;
  const parts = [];
  if (isAbove) parts.push(has(maximum) ? `above ${Math.round(minimum)}, at most ${maximum}` : `above ${Math.round(minimum)}`);
  else if (has(minimum)) parts.push(has(maximum) ? `${minimum} to ${maximum}` : `at least ${minimum}`);
  else if (has(maximum)) parts.push(`at most ${maximum}`);
  else if (!description && !["bool", "int", "float"].includes(type)) parts.push("a text");
  if (option.const !== undefined) parts.push(`or ${option.const}`);
  const standard = shown(usual(option));
  if (standard !== "" && type !== "bool") parts.push(option.const === undefined ? `default ${standard}` : `${standard} if left empty`);
  const words = parts.join(", ");
  return words && `${words[0].toUpperCase()}${words.slice(1)}.`;
}
