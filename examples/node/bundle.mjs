// Loads a seqpipe bundle and computes answers for texts.
import { createHash } from "node:crypto";
import { lstat, readFile } from "node:fs/promises";
import { join } from "node:path";
import { SplitPreTokenizer, Tokenizer } from "@huggingface/tokenizers";

process.env.ORT_DISABLE_TELEMETRY ??= "1"; // before the import, otherwise onnxruntime sends telemetry
const { default: ort } = await import("onnxruntime-node");

const SEAL = /^,\n "sha256": "([0-9a-f]{64})"\n}\n$/; // 82 bytes
const KINDS = ["tags", "spans", "label", "text", "structured"], RESERVED = ["graphs", "weights"];
const INPUTS = ["chars", "ngrams"]; // besides ids and mask
const UNKNOWN = 1, EOS = 3; // ids of [UNK] and [EOS]

export async function open(path) {
  const data = await content(join(path, "bundle.json"), 2 ** 26);
  const body = data.subarray(0, -82), seal = SEAL.exec(data.subarray(-82).toString("latin1"));
  if (seal?.[1] !== sha256(body)) throw new Error(`${path}: bundle.json is damaged`);
  const manifest = JSON.parse(body.toString("utf8") + "}");
  if (manifest.format !== "seqpipe-bundle" || ![2, 3, 5].includes(manifest.version))
    throw new Error(`${path}: bundle format version ${manifest.version}; this program reads versions 2, 3 and 5`);
  for (const key of RESERVED) if (key in manifest) throw new Error(`${path}: this program does not support ${key}`);
  if (typeof manifest.field !== "string") throw new Error(`${path}: several texts; this program reads one`);
  for (const { kind } of Object.values(manifest.inputs))
    if (kind && !INPUTS.includes(kind)) throw new Error(`${path}: an input of the kind ${kind}`);
  const { kind, copies, fields = [] } = manifest.answer;
  if (!KINDS.includes(kind) || copies) throw new Error(`${path}: answers of the kind ${kind}${copies ? ", copied" : ""}`);
  for (const { per, type } of fields)
    if (!["text", "word", "pair"].includes(per) || !["label", "position", "number", "span"].includes(type))
      throw new Error(`${path}: a field per ${per} of the type ${type}`);
  const files = {};
  for (const [name, entry] of Object.entries(manifest.files)) {
    if (!/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$/.test(name)) throw new Error(`${path}: ${name} is no plain name`);
    files[name] = await content(join(path, name), 1.9e9);
    if (sha256(files[name]) !== entry.sha256) throw new Error(`${path}: ${name} is damaged`);
  }
  const target = files["target_tokenizer.json"];
  const session = await ort.InferenceSession.create(withoutDefaults(files["model.onnx"], manifest.options), {
    executionProviders: ["cpu"],
    intraOpNumThreads: 1, // waiting threads cost more time than they save in small graphs
    logSeverityLevel: 3,
  });
  return new Bundle(manifest, session, new Words(files["tokenizer.json"]), target && reader(target));
}

class Bundle {
  constructor(manifest, session, words, target) {
    Object.assign(this, { manifest, session, words, target });
  }

  // Answers for texts, or for records such as {words: […]}, in order, from one run of the graph.
  async answers(records, options = {}) {
    const feeds = optionInputs(this.manifest.options, options);
    const docs = records.map((record) => this.doc(record));
    const full = docs.filter((doc) => doc.tokens.length);
    const out = full.length ? await this.session.run({ ...this.inputs(full), ...feeds }) : {};
    let row = 0;
    return docs.map((doc) =>
      doc.tokens.length ? this.warned(this.read(out, row++, doc), doc) : this.empty(feeds.n_best?.dims[0] > 1));
  }

  // The text as code points, and its tokens: {id, word, start, end}.
  doc(input) {
    const { field, limits } = this.manifest;
    const record = typeof input === "string" ? { [field]: input } : input;
    const split = field === "text" && record.words ? record.words : null;
    let text = split && typeof record.text !== "string" ? split.join(" ") : record[field];
    if (!split && /^[\s\p{DI}]*$/u.test(text)) text = ""; // nothing of it is seen
    const tokens = split ? this.words.located(split, text) : this.words.of(text);
    if (tokens.length > limits.tokens) throw new Error(`${tokens.length} tokens are over the limit of ${limits.tokens}`);
    return { points: [...text], tokens };
  }

  inputs(docs) {
    const B = docs.length, T = Math.max(...docs.map((doc) => doc.tokens.length));
    const ids = new BigInt64Array(B * T), mask = new Uint8Array(B * T);
    docs.forEach((doc, b) => doc.tokens.forEach((token, t) => {
      ids[b * T + t] = BigInt(token.id);
      mask[b * T + t] = 1;
    }));
    const arrays = { ids: new ort.Tensor("int64", ids, [B, T]), mask: new ort.Tensor("bool", mask, [B, T]) };
    for (const [name, entry] of Object.entries(this.manifest.inputs)) {
      if (entry.kind === "chars") arrays[name] = chars(docs, B, T, entry);
      else if (entry.kind === "ngrams") arrays[name] = ngrams(docs, B, T, entry);
    }
    return arrays;
  }

  read(out, b, doc) {
    const { kind, labels } = this.manifest.answer;
    if (kind === "text") return this.generated(out, b);
    if (kind === "structured") return this.structured(out, b, doc);
    if (kind === "label") {
      const [, L] = out.scores.dims, label = Number(out.label.data[b]);
      return { label: labels[label], score: probability(out.scores.data[b * L + label]) };
    }
    const [, T] = out.tags.dims, K = out.paths?.dims[1] ?? 1, n = doc.tokens.length;
    const row = (tensor, at) => tensor.data.subarray(at * T, at * T + n);
    if (K === 1) return this.items(doc, row(out.tags, b), (name, t) => row(out[name], b)[t]);
    return Array.from({ length: K }, (_, k) => b * K + k)
      .filter((at) => out.path_scores.data[at] > -1e8)
      .map((at) => ({
        [kind]: this.items(doc, row(out.paths, at)),
        ...this.scores(out.path_scores.data[at]),
      }));
  }

  items({ points, tokens }, path, value) {
    const tags = Array.from(path, (tag) => this.manifest.answer.labels[Number(tag)]);
    const tagged = this.manifest.answer.kind === "tags";
    const places = tagged ? tags.map((tag, t) => [tag, t, t]) : spans(tags);
    return places.map(([label, i, j]) => {
      const { start } = tokens[i], { end } = tokens[j];
      const p = value && (tagged ? value("scores", i) : Math.exp(value("opens", i) + value("closes", j)));
      return {
        [tagged ? "entity" : "entity_group"]: label,
        ...(value ? { score: probability(p) } : {}),
        word: points.slice(start, end).join(""),
        start,
        end,
      };
    });
  }

  structured(out, b, { points, tokens }) {
    const { fields } = this.manifest.answer, n = tokens.length;
    const words = tokens.map(({ start, end }) => ({ word: points.slice(start, end).join(""), start, end }));
    const value = ({ name, type, labels }, at) => {
      const { data } = out[name];
      if (type === "number") return Number(data[at].toPrecision(7));
      if (type === "label") return labels[Number(data[at])];
      if (type === "position") return data[at] < 0 ? null : Number(data[at]);
      const first = Number(data[2 * at]), last = Number(data[2 * at + 1]);
      if (first < 0) return null;
      const { start } = tokens[first], { end } = tokens[last];
      return { text: points.slice(start, end).join(""), start, end };
    };
    const put = (object, field, at, key = field.name, scored = `${field.name}_score`) => {
      const scores = out[`${field.name}_scores`];
      return Object.assign(object, { [key]: value(field, at) }, scores && { [scored]: probability(scores.data[at]) });
    };
    const answer = hasWords(fields) ? { words } : {};
    for (const field of fields) {
      const { name, per, type } = field, [, T] = out[name].dims;
      if (per === "text") put(answer, field, b);
      else if (per === "word") words.forEach((word, i) => put(word, field, b * T + i));
      else answer[name] = Array.from({ length: n * n }, (_, k) => [Math.floor(k / n), k % n])
        .map(([from, to]) => ({ from, to, at: (b * T + from) * T + to }))
        .filter(({ at }) => Number(out[name].data[at]) !== 0)
        .map(({ from, to, at }) => put({ from, to }, field, at, type === "label" ? "label" : "value", "score"));
    }
    return answer;
  }

  generated(out, b) {
    const [, K, N] = out.tokens.dims;
    const texts = Array.from({ length: K }, (_, k) => {
      const ids = Array.from(out.tokens.data.subarray((b * K + k) * N, (b * K + k + 1) * N), Number);
      const tokens = (ids.includes(EOS) ? ids.slice(0, ids.indexOf(EOS)) : ids).filter((id) => id > EOS);
      const scored = out.token_log_p?.dims[2] ? { tokens: this.scored(ids, out.token_log_p, b * K + k) } : {};
      return { generated_text: this.target.decode(tokens), ...this.scores(out.scores.data[b * K + k]), ...scored };
    });
    return K > 1 ? texts.filter((_, k) => out.scores.data[b * K + k] > -1e8) : texts[0];
  }

  // The probability of an alternative, and its logarithm if the bundle says that answers have it.
  scores(log) {
    const { log_score } = this.manifest.answer;
    return { score: probability(Math.exp(log)), ...(log_score ? { log_score: log } : {}) };
  }

  // The tokens of a row, the end included, each with its log-probability.
  scored(ids, { data, dims: [, , N] }, row) {
    const written = ids.filter((id) => id > 0);
    return written.map((id, t) => ({ token: this.target.token(id), log_score: data[row * N + t] }));
  }

  // The answer, with a warning if the text is longer than any in training.
  warned(answer, { tokens: { length } }) {
    const { trained = length } = this.manifest.limits;
    if (length <= trained || this.manifest.answer.kind !== "text") return answer;
    const [n, most] = [length, trained].map((count) => count.toLocaleString("en-US"));
    const warning = `longer than any input in training (${n} tokens; at most ${most} in training)`;
    return Array.isArray(answer) ? answer.map((one) => ({ ...one, warning })) : { ...answer, warning };
  }

  empty(several) {
    const { kind, fields } = this.manifest.answer, nothing = { generated_text: "", ...this.scores(0) };
    if (kind === "structured") {
      const values = fields.filter(({ per }) => per !== "word").map(({ name, per }) => [name, per === "pair" ? [] : null]);
      const answer = { ...(hasWords(fields) ? { words: [] } : {}), ...Object.fromEntries(values) };
      return several ? [answer] : answer;
    }
    if (kind === "label") return { label: null, score: 0 };
    if (kind === "text") return several ? [nothing] : nothing;
    return several ? [{ [kind]: [], ...this.scores(0) }] : [];
  }
}

// Whether a structured answer of these fields lists the words.
function hasWords(fields) {
  return fields.some(({ per, type }) => per !== "text" || type === "position" || type === "span");
}

// The tokenizer of tokenizer.json, with the offsets that @huggingface/tokenizers does not return.
class Words {
  constructor(data) {
    const json = JSON.parse(data.toString("utf8")), split = json.pre_tokenizer;
    if (json.model.type !== "WordLevel" || split?.type !== "Split" || split.behavior !== "Removed" || !split.invert)
      throw new Error("this program reads tokenizers of whole words and of characters");
    if (/"NFK?[CD]"/.test(JSON.stringify(json.normalizer))) throw new Error("this program reads tokenizers without `normalize`");
    this.tokenizer = new Tokenizer(json, { unk_token: "[UNK]" });
    this.pattern = new SplitPreTokenizer(split).pattern;
  }

  // By code point: JavaScript lower-cases the last Σ of a word to ς, tokenizers to σ.
  normal(points) {
    const { normalizer } = this.tokenizer;
    return points.map((point) => (normalizer ? normalizer.normalize(point) : point));
  }

  id(normal) {
    const id = this.tokenizer.token_to_id(normal) ?? UNKNOWN;
    return id > EOS ? id : UNKNOWN; // "[EOS]" in a text is not a special token
  }

  of(text) {
    const points = [...text.toWellFormed()], at = []; // at: the code point of each UTF-16 unit
    const normal = this.normal(points).map((part, i) => (at.push(...Array(part.length).fill(i)), part)).join("");
    return Array.from(normal.matchAll(this.pattern), (match) => {
      const start = at[match.index], end = at[match.index + match[0].length - 1] + 1;
      return { id: this.id(match[0]), word: points.slice(start, end), start, end };
    });
  }

  located(words, text) {
    let at = 0;
    return words.map((source) => {
      const place = text.indexOf(source, at), start = [...text.slice(0, place)].length, word = [...source.toWellFormed()];
      if (place < 0) throw new Error(`${source} is not in the text`);
      at = place + source.length;
      return { id: this.id(this.normal(word).join("")), word, start, end: start + word.length };
    });
  }
}

function chars(docs, B, T, { longest, alphabet }) {
  const ids = new Map([...alphabet].map((point, i) => [point, BigInt(i + 2)])), half = Math.floor(longest / 2);
  const rows = docs.map((doc) => doc.tokens.map(({ word }) =>
    word.length <= longest ? word : [...word.slice(0, longest - half), ...word.slice(word.length - half)]));
  const C = Math.max(1, ...rows.flat().map((word) => word.length));
  const data = new BigInt64Array(B * T * C);
  rows.forEach((words, b) => words.forEach((word, t) => word.forEach((point, c) => {
    data[(b * T + t) * C + c] = ids.get(point) ?? 1n;
  })));
  return new ort.Tensor("int64", data, [B, T, C]);
}

// The numbers of the n-grams of words that end at each token, and of the characters of its word.
function ngrams(docs, B, T, { words, chars, binary, hashes }) {
  const packed = Buffer.from(hashes, "base64"), numbers = new Map();
  if (packed.length % 4 || packed.toString("base64") !== hashes) throw new Error("damaged hashes of n-grams");
  for (let i = 0; i < packed.length; i += 4) numbers.set(packed.readUInt32LE(i), i / 4 + 1);
  const number = (start, values) => numbers.get(polynomial(start, values)) ?? 0;
  const [shortest, longest] = chars ?? [1, 0];
  const rows = docs.map(({ tokens }) => {
    const points = tokens.map(({ word }) => lowered(word)), hashed = points.map(hash), seen = new Set();
    return points.map((inner, t) => {
      const row = Array.from({ length: words }, (_, k) => (k > t ? 0 : number(2, hashed.slice(t - k, t + 1).reverse())));
      const all = [60, ...inner, 62]; // between < and >
      for (let start = 0; start < all.length; start++)
        for (let end = start + shortest; end <= Math.min(start + longest, all.length); end++)
          row.push(number(1, all.slice(start, end)));
      const known = row.filter((value, k) => value || k < words); // an n-gram of characters without a number has no place
      return known.map((value) => (binary && seen.has(value) ? 0 : (seen.add(value), value)));
    });
  });
  const K = Math.max(1, ...rows.flat().map((row) => row.length));
  const data = new BigInt64Array(B * T * K);
  rows.forEach((tokens, b) => tokens.forEach((row, t) => row.forEach((value, k) => {
    data[(b * T + t) * K + k] = BigInt(value);
  })));
  return new ort.Tensor("int64", data, [B, T, K]);
}

// The first 40 code points of a word, each in lower case.
function lowered(word) {
  return word.slice(0, 40).flatMap((point) => [...point.toLowerCase()].map((lower) => lower.codePointAt(0)));
}

// Modulo 2 ** 32, which only Math.imul multiplies exactly.
function polynomial(start, values) {
  return values.reduce((h, value) => (Math.imul(h, 0x9e3779b1) + value) >>> 0, start);
}

// The hash of a word, mixed as MurmurHash3 ends.
function hash(points) {
  let h = polynomial(0, points);
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

// Label, first and last token of each span.
function spans(tags) {
  const ranges = [];
  let before = null;
  tags.forEach((tag, i) => {
    const [, letter, label] = /^([BIMESLU])(?:-(.*))?$/su.exec(tag) ?? [];
    const now = letter && { prefix: { M: "I", L: "E", U: "S" }[letter] ?? letter, label: label || "_" };
    if (now && ("BS".includes(now.prefix) || !before || "ES".includes(before.prefix) || before.label !== now.label))
      ranges.push([now.label, i, i]);
    else if (now) ranges.at(-1)[2] = i;
    before = now;
  });
  return ranges;
}

function optionInputs(declared, values) {
  for (const name of Object.keys(values)) if (!(name in declared)) throw new Error(`there is no option ${name}`);
  const value = (name) => values[name] ?? declared[name].default;
  if ("beams" in declared && "n_best" in declared && value("n_best") > value("beams")) throw new Error("n_best is over beams");
  if ("min_length" in declared && "max_length" in declared &&
      Math.max(value("min_length"), (value("prefix") ?? []).length) >= value("max_length"))
    throw new Error("min_length, or as many tokens of prefix, does not fit into max_length");
  return Object.fromEntries(Object.entries(declared).map(([name, { type, minimum, maximum }]) => {
    const x = value(name), whole = type === "size" || type === "int";
    if (type === "tokens") return [name, new ort.Tensor("int64", (x ?? []).map(BigInt), [1, (x ?? []).length])];
    const arcs = type === "automaton" || type === "trie";
    if ((type === "texts" || arcs) && x !== null) throw new Error(`this program does not support ${name}`);
    if (type === "texts") return [name, new ort.Tensor("int64", [], [1, 0])];
    if (arcs) return [name, new ort.Tensor("int64", [], [1, 0, 3])];
    if (type === "uniform" && x === null) return [name, new ort.Tensor("float32", [], [1, 1, 0])];
    if (typeof x !== (type === "bool" ? "boolean" : "number") || (whole && !Number.isInteger(x)))
      throw new Error(`${name} must be a ${type}`);
    if (!(x >= (minimum ?? -Infinity) && x <= (maximum ?? Infinity))) throw new Error(`${name} is out of bounds`);
    if (type === "size") return [name, new ort.Tensor("int64", new BigInt64Array(x), [x])];
    if (type === "int") return [name, new ort.Tensor("int64", [BigInt(x)], [])];
    return [name, type === "bool" ? new ort.Tensor("bool", [x], []) : new ort.Tensor("float32", [x], [])];
  }));
}

// The model without the defaults of its options: onnxruntime-node ignores inputs that have one.
function withoutDefaults(model, options) {
  const named = (field) => field.number === 8 && field.content.toString("utf8") in options; // TensorProto.name
  const kept = (field) => field.number !== 5 || !fields(field.content).some(named); // GraphProto.initializer
  return Buffer.concat(fields(model).flatMap((field) => {
    if (field.number !== 7) return [field.bytes]; // ModelProto.graph
    const graph = Buffer.concat(fields(field.content).filter(kept).map(({ bytes }) => bytes));
    return [varint((7 << 3) | 2), varint(graph.length), graph];
  }));
}

// The fields of a Protocol Buffers message.
function fields(message) {
  const parsed = [];
  let at = 0;
  const number = () => {
    let value = 0, factor = 1, byte;
    do {
      byte = message[at++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte > 127);
    return value;
  };
  while (at < message.length) {
    const start = at, tag = number(), sizes = { 1: 8, 5: 4 };
    if (tag % 8 === 0) number();
    const size = tag % 8 === 0 ? 0 : tag % 8 === 2 ? number() : sizes[tag % 8];
    const content = message.subarray(at, at += size);
    parsed.push({ number: Math.floor(tag / 8), content, bytes: message.subarray(start, at) });
  }
  return parsed;
}

function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) + 128);
  return Buffer.from([...bytes, value]);
}

// Token ids to text.
function reader(data) {
  const tokenizer = new Tokenizer(JSON.parse(data.toString("utf8")), { unk_token: "[UNK]" });
  const options = { skip_special_tokens: false, clean_up_tokenization_spaces: false };
  return {
    decode: (ids) => (ids.length ? tokenizer.decode(ids, options) : ""),
    token: (id) => tokenizer.id_to_token(id),
  };
}

async function content(path, most) {
  const status = await lstat(path);
  if (!status.isFile() || status.size > most) throw new Error(`${path}: not a regular file, or too long`);
  return readFile(path);
}

function sha256(data) {
  return createHash("sha256").update(data).digest("hex");
}

function probability(value) {
  return Math.round(Math.min(1, Math.max(0, value)) * 1e6) / 1e6;
}
