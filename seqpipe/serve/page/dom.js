// Elements of the page, created without inline HTML, so that every text of a bundle remains text.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: attributes by name, `style` and `on` as objects, and children that are nodes, texts or lists. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "style") for (const [name, text] of Object.entries(value)) element.style.setProperty(name, text);
    else if (key === "on") for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** A table with the names of its columns above its rows. */
export function table(names, rows) {
  const head = el("tr", {}, names.map((name) => el("th", { scope: "col" }, name)));
  return el("table", {}, el("thead", {}, head), el("tbody", {}, rows));
}

/** A table that opens and closes, below a drawing of the same. */
export function foldedTable(names, rows) {
  return el("details", { class: "table" }, el("summary", {}, "As a table"), table(names, rows));
}

/** A box that scrolls sideways, also with the keyboard. */
export function scrolling(label, ...children) {
  return el("div", { class: "scrolls", tabindex: "0", role: "group", "aria-label": label }, children);
}

let count = 0;

/** A new id, which connects a label with its control. */
export function freshId() {
  count += 1;
  return `c${count}`;
}

/** A button that copies what `text()` returns; if the browser has no clipboard (plain HTTP), it selects the text. */
export function copyButton(what, text) {
  const status = el("span", { class: "help", role: "status" });
  const copy = async () => {
    status.textContent = (await copied(text())) ? "Copied" : "Not allowed here: select the text and copy it";
    setTimeout(() => { status.textContent = ""; }, 2500);
  };
  return el("span", { class: "copy" }, status,
    el("button", { type: "button", class: "small", "aria-label": `Copy ${what}`, on: { click: copy } }, "Copy"));
}

async function copied(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (error) {
      if (error.name !== "NotAllowedError") throw error;
    }
  }
  const area = el("textarea", { class: "hidden" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
