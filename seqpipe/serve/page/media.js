// A picture or a sound as input: a file that is chosen or dropped, or a recording of the microphone.

import { el, freshId } from "./dom.js";

const RATE = 16_000; // samples in a second of a recording
const LONGEST = 60; // seconds of a recording, which then stops by itself
const LARGEST = 3_000_000; // bytes that are sent as they are: in base64 they fit into a request
const SIDE = 1000; // pixels of the longer side of a picture that is not sent as it is
const FORMS = {
  picture: { accept: "image/*", file: "picture.png", help: "Choose a picture, or drop it here." },
  sound: { accept: "audio/*", file: "sound.wav", help: "Choose a sound, drop it here, or record one." },
};

/** The content of a file in base64, a text in JSON, with the file's name. */
export class FileText extends String {
  constructor(text, name) {
    super(text);
    this.name = name;
  }
}

export const isMedia = (type) => type in FORMS;

/** The address of a picture for an `img`; null of an array. */
export function pictureAddress(value) {
  if (!(value instanceof FileText)) return null;
  return value.startsWith("data:") ? String(value) : `data:image/${value.startsWith("/9j/") ? "jpeg" : "png"};base64,${value}`;
}

export function mediaControl({ name, type }) {
  const id = freshId();
  const { accept, file: usual, help } = FORMS[type];
  const status = el("p", { id: `${id}h`, class: "help", role: "status" }, help);
  const preview = el("div", { class: "preview" });
  let value = "";
  const fill = (content) => {
    value = typeof content === "string" && content ? new FileText(content, usual) : content;
    preview.replaceChildren(...[drawn(value, type, name)].filter(Boolean));
  };
  /** Use what `load` resolves to, `[base64, name, note]`; a file that cannot be read is reported below the field. */
  const use = async (load) => {
    try {
      const [text, file, note] = await load();
      fill(text);
      if (text) value.name = file;
      status.textContent = note;
    } catch (error) {
      fill("");
      status.textContent = error instanceof MediaError ? error.message : `${name} cannot be read: ${error.message}`;
    }
    element.dispatchEvent(new Event("input", { bubbles: true })); // the request has changed
  };
  const load = (file) => use(() => (type === "sound" ? soundFile(file) : pictureFile(file)));
  const chooser = el("input", { id, type: "file", accept, "aria-describedby": `${id}h`,
    on: { change: () => { if (chooser.files.length) load(chooser.files[0]); } } });
  const element = el("div", { class: "field", on: {
    dragover: (event) => event.preventDefault(),
    drop: (event) => {
      event.preventDefault();
      if (event.dataTransfer.files.length) load(event.dataTransfer.files[0]);
    },
  } }, el("label", { for: id }, name), chooser, type === "sound" ? recordButton(use, status) : null, preview, status);
  return { name, element, fill, value: () => value };
}

/** A reason why a file or the microphone cannot be used, in words for a person. */
class MediaError extends Error {}

function drawn(value, type, name) {
  if (!value || !value.length) return null;
  if (type === "sound") {
    return value instanceof FileText
      ? el("audio", { controls: true, src: value.startsWith("data:") ? String(value) : `data:audio/wav;base64,${value}` })
      : el("p", { class: "help" }, `${value.length.toLocaleString("en")} samples`);
  }
  if (value instanceof FileText) return el("img", { class: "picture", alt: `${name}, the picture that is sent`, src: pictureAddress(value) });
  const canvas = el("canvas", { class: "picture", width: value[0].length, height: value.length, role: "img", "aria-label": name });
  const colors = value.flat().flatMap((pixel) => [...(Array.isArray(pixel) ? pixel : [pixel, pixel, pixel]), 255]);
  canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(colors), value[0].length), 0, 0);
  return canvas;
}

/** A PNG or JPEG as it is (base64 shows how it begins); another picture, or a large one, as a PNG of at most SIDE pixels a side. */
async function pictureFile(file) {
  const text = await base64(file);
  if (file.size <= LARGEST && /^(iVBORw0KG|\/9j\/)/.test(text)) return [text, file.name, file.name];
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new MediaError(`${file.name} is not a picture that this browser can show; choose a PNG or a JPEG`);
  });
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((size) => Math.max(1, Math.round(scale * size)));
  const canvas = el("canvas", { width, height });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, width, height);
  const png = await new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  return [await base64(png), FORMS.picture.file, `${file.name}, sent as a PNG of ${width} × ${height} pixels`];
}

/** A WAV as it is; another sound, or a large one, as a WAV of one channel at RATE. */
async function soundFile(file) {
  const text = await base64(file);
  if (file.size <= LARGEST && text.startsWith("UklGR")) return [text, file.name, file.name];
  const context = new OfflineAudioContext(1, 1, RATE); // decoding converts to its rate
  const sound = await context.decodeAudioData(await file.arrayBuffer()).catch(() => {
    throw new MediaError(`${file.name} is not a sound that this browser can play; choose a WAV`);
  });
  return wavOf(await atRate(sound), file.name);
}

async function wavOf(samples, name) {
  const seconds = samples.length / RATE;
  if (2 * samples.length > LARGEST) throw new MediaError(`${name} has ${Math.round(seconds)} seconds; choose a shorter sound`);
  return [await base64(wav(samples)), FORMS.sound.file, `${name}, ${seconds.toFixed(1)} seconds`];
}

/** The samples of a sound at RATE, of one channel. */
async function atRate(sound) {
  const context = new OfflineAudioContext(1, Math.max(1, Math.ceil(sound.duration * RATE)), RATE);
  const source = context.createBufferSource();
  source.buffer = sound;
  source.connect(context.destination);
  source.start();
  return (await context.startRendering()).getChannelData(0);
}

function recordButton(use, status) {
  let stop = null;
  const button = el("button", { type: "button", class: "small", on: { click: async () => {
    if (stop) {
      stop();
      return;
    }
    const stopped = new Promise((resolve) => { stop = resolve; });
    button.textContent = "Stop recording";
    status.textContent = "Waiting for the microphone …";
    const timer = setTimeout(stop, 1000 * LONGEST);
    await use(() => recorded(stopped, () => { status.textContent = "Recording …"; }));
    clearTimeout(timer);
    button.textContent = "Record";
    stop = null;
  } } }, "Record");
  return el("div", {}, button);
}

/** Record the microphone until the promise `stopped` is kept; `onStart` is called at its first samples. */
async function recorded(stopped, onStart) {
  if (!navigator.mediaDevices) throw new MediaError("A browser gives the microphone only to pages from localhost or over HTTPS.");
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } }).catch((error) => {
    throw new MediaError(`The microphone cannot be used: ${error.message}`);
  });
  const context = new AudioContext();
  const parts = [];
  try {
    await context.audioWorklet.addModule(new URL("recorder.js", import.meta.url));
    const recorder = new AudioWorkletNode(context, "recorder");
    recorder.port.onmessage = ({ data }) => {
      if (parts.push(data) === 1) onStart();
    };
    context.createMediaStreamSource(stream).connect(recorder).connect(context.destination); // it plays silence
    await stopped;
  } finally {
    stream.getTracks().forEach((track) => track.stop());
    await context.close();
  }
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  if (!length) throw new MediaError("The microphone gave no sound; record again.");
  const sound = new AudioBuffer({ length, sampleRate: context.sampleRate });
  parts.reduce((at, part) => { sound.copyToChannel(part, 0, at); return at + part.length; }, 0);
  return wavOf(await atRate(sound), "recording");
}

/** A WAV of 16-bit PCM, one channel at RATE. */
function wav(samples) {
  const size = 2 * samples.length;
  const format = [Uint32Array.of(16), Uint16Array.of(1, 1), Uint32Array.of(RATE, 2 * RATE), Uint16Array.of(2, 16)];
  const numbers = Int16Array.from(samples, (sample) => Math.round(32767 * Math.max(-1, Math.min(1, sample))));
  return new Blob(["RIFF", Uint32Array.of(36 + size), "WAVEfmt ", ...format, "data", Uint32Array.of(size), numbers]);
}

function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
