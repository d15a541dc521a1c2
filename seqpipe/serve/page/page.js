// The page: the bundles of the server, a form for the selected one, and its answers.

import { address, ask, askStream, describeBundles, ServerError } from "./api.js";
import { copyButton, el, freshId } from "./dom.js";
import { draw, drawExplanation } from "./drawings.js";
import { continued } from "./draw_text.js";
import { Form, InputError } from "./form.js";
import { pictureAddress } from "./media.js";
import { curl, python } from "./request.js";
import { jsonTree } from "./json_tree.js";

const content = document.getElementById("content");
const nav = document.getElementById("bundles");
const SMALL = 2 ** 28; // maximum bytes of a bundle whose first example is answered automatically
let token = "";

/** One bundle's view: form, answer and request. It is kept, with its input, while another bundle is shown. */
class View {
  constructor(bundle) {
    this.bundle = bundle;
    this.answer = el("div", { class: "result", id: freshId(), "aria-live": "polite", "aria-busy": "false" },
      el("p", { class: "nothing" }, "The answer appears here."));
    this.ask = el("button", { type: "submit", class: "primary" }, "Answer");
    this.stop = el("button", { type: "button", class: "stop", hidden: true, on: { click: () => this.running?.abort() } }, "Stop");
    this.time = el("span", { class: "help", role: "status" });
    this.curl = el("pre", { tabindex: "0", "aria-label": "curl command" });
    this.python = el("pre", { tabindex: "0", "aria-label": "Python code" });
    this.raw = el("div", { class: "raw" });
    this.form = new Form(bundle, () => this.showRequest());
    this.element = this.layout();
    this.showRequest();
    if (bundle.examples.length && bundle.bytes <= SMALL) this.send(true);
  }

  layout() {
    const form = el("form", { novalidate: true, "aria-label": `Input of ${this.bundle.name}`,
      on: { submit: (event) => { event.preventDefault(); this.send(); }, keydown: (event) => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
        event.preventDefault();
        this.send();
      } } },
    this.form.element, el("div", { class: "buttons" }, this.ask, this.stop,
      el("span", { class: "help keys" }, el("kbd", {}, "Ctrl"), " + ", el("kbd", {}, "Enter"))));
    const raw = el("details", { class: "card" }, el("summary", {}, "Response as JSON"), this.raw);
    this.card = el("section", { class: "card" }, el("div", { class: "title" }, el("h2", {}, "Answer"), this.time), this.answer);
    return el("div", { class: "bundle" }, about(this.bundle),
      el("div", { class: "columns" },
        el("section", { class: "card" }, el("h2", {}, "Input"), form), this.card),
      el("details", { class: "card" }, el("summary", {}, "Request"), el("div", { class: "columns" },
        code("curl", this.curl), code("Python", this.python))), raw);
  }

  showRequest() {
    let body;
    try {
      body = this.form.body();
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      this.curl.textContent = this.python.textContent = error.message;
      return;
    }
    const url = address(`v1/${encodeURIComponent(this.bundle.name)}`);
    this.curl.textContent = curl(url, body, token);
    this.python.textContent = python(url, body, token);
  }

  /** Request the answer and show it; that of the first example automatically, without a message if it fails. */
  async send(isUnasked = false) {
    this.running?.abort();
    const running = new AbortController();
    this.running = running;
    const began = performance.now();
    this.wait(true);
    if (!isUnasked) this.reveal();
    try {
      this.form.refuseEmpty();
      const body = this.form.body();
      const record = this.form.record();
      const result = body.stream ? await this.stream(body, record, running.signal)
        : await ask(this.bundle.name, body, token, running.signal);
      this.show(result, record);
      this.time.textContent = `answered in ${Math.round(performance.now() - began)} ms`;
    } catch (error) {
      const isQuiet = isUnasked && (error instanceof ServerError || error instanceof InputError);
      if (this.running === running && !isQuiet) this.refuse(error);
    } finally {
      if (this.running === running) this.wait(false);
    }
  }

  wait(isWaiting) {
    this.answer.setAttribute("aria-busy", String(isWaiting));
    this.stop.hidden = !isWaiting;
    if (isWaiting) this.time.textContent = "";
  }

  /** Scroll to the answer if it is not visible, such as below the form on a phone. */
  reveal() {
    const { top } = this.card.getBoundingClientRect();
    if (top < 0 || top > window.innerHeight / 2) this.card.scrollIntoView();
  }

  async stream(body, record, signal) {
    const prompt = this.input(record).texts.at(-1);
    const place = el("p", { class: "text generated running", dir: "auto" });
    let written = prompt;
    this.answer.replaceChildren(place);
    return askStream(this.bundle.name, body, token, signal, (piece) => {
      written += piece;
      place.replaceChildren(...continued(prompt, written));
    });
  }

  input(record) {
    return { record, texts: this.bundle.inputs.filter(({ type }) => type === "text").map(({ name }) => record[name]) };
  }

  show(result, record) {
    const parts = [draw(this.bundle.drawing, result.answer, this.input(record))];
    const picture = Object.values(record).map(pictureAddress).find(Boolean);
    if (result.explanation) parts.push(...drawExplanation(result.explanation, picture));
    this.answer.replaceChildren(...parts);
    this.raw.replaceChildren(copyButton("the response", () => JSON.stringify(result, null, 2)), jsonTree(result));
  }

  refuse(error) {
    if (error.name === "AbortError") {
      this.time.textContent = "stopped";
      this.answer.querySelector(".running")?.classList.remove("running");
      return;
    }
    if (!(error instanceof ServerError || error instanceof InputError)) throw error;
    this.answer.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
  }
}

// Answer kinds in words.
const ANSWERS = {
  spans: "labelled spans", tags: "a tag for each word", label: "one label", labels: "any number of labels",
  score: "a number", vector: "a vector", candidate: "the nearest candidate", span: "a span of the text",
  pointers: "positions in order", structured: "a structure", text: "a text", generation: "a continuation",
  "fill-mask": "the text with its gaps filled", "span-infilling": "what fills the gaps", joint: "an answer of each head",
};

function about(bundle) {
  const facts = [["Answers with", ANSWERS[bundle.answer] ?? bundle.answer], ["Pipeline", bundle.pipeline], ["SHA-256", bundle.sha256?.slice(0, 12)]];
  return el("div", { class: "about" }, el("h2", { class: "name" }, bundle.name),
    el("dl", {}, facts.filter(([, value]) => value).map(([name, value]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
}

function code(name, pre) {
  return el("div", { class: "code" }, el("div", { class: "title" }, el("h3", {}, name),
    copyButton(name === "curl" ? "the curl command" : "the Python code", () => pre.textContent)), pre);
}

const views = new Map();

function showBundle(bundles) {
  const place = location.hash.slice(1);
  const bundle = bundles.find(({ name }) => name === place || encodeURIComponent(name) === place);
  if (!bundle) {
    if (!document.querySelector(".bundle")) location.replace(`#${encodeURIComponent(bundles[0].name)}`);
    return;
  }
  if (!views.has(bundle.name)) views.set(bundle.name, new View(bundle));
  for (const link of nav.children) link.ariaCurrent = link.dataset.bundle === bundle.name ? "page" : null;
  document.title = `${bundle.name} – seqpipe`;
  content.replaceChildren(views.get(bundle.name).element);
}

function askToken(message) {
  const id = freshId();
  const control = el("input", { id, type: "password", autocomplete: "off", required: true });
  content.replaceChildren(el("form", { class: "card token", on: { submit: (event) => {
    event.preventDefault();
    token = control.value;
    start();
  } } }, el("p", { role: "alert" }, message), el("div", { class: "field" }, el("label", { for: id }, "Token"), control),
  el("button", { type: "submit", class: "primary" }, "Use it")));
  control.focus();
}

/** Show why there is no bundle, and try again, since a bundle may be loaded later. */
function startLater(kind, message) {
  if (content.textContent !== message) content.replaceChildren(el("p", { class: kind, role: "alert" }, message));
  setTimeout(start, 2000);
}

async function start() {
  let bundles;
  try {
    bundles = await describeBundles(token);
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (error.status === 401) askToken(error.message);
    else startLater("error", error.message);
    return;
  }
  if (!bundles.length) {
    startLater("nothing", "The server has no bundle yet; this page looks again every two seconds.");
    return;
  }
  nav.parentElement.hidden = false;
  nav.replaceChildren(...bundles.map(({ name }) =>
    el("a", { href: `#${encodeURIComponent(name)}`, "data-bundle": name }, name)));
  window.addEventListener("hashchange", () => showBundle(bundles));
  showBundle(bundles);
}

start();
