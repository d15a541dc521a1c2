// The request as a command with curl and as a program in Python. Both read a picture or a sound from its file.

import { FileText } from "./media.js";

/** A curl command for a POSIX shell. */
export function curl(url, body, token) {
  const flags = ["-H 'Content-Type: application/json'"];
  if (token) flags.push('-H "Authorization: Bearer $TOKEN"');
  if (body.stream) flags.unshift("-N");
  const files = [];
  const data = JSON.stringify(body, (key, value) => (value instanceof FileText ? `\ue000${files.push(value.name)}\ue000` : value));
  if (!files.length) return [`curl -s ${quoted(url)}`, ...flags, `-d ${quoted(data)}`].join(" \\\n  ");
  const steps = data.split("\ue000").map((part, i) => // every second part is the number of a file
    (i % 2 ? `base64 < ${quoted(files[part - 1])} | tr -d '\\n'` : `printf %s ${quoted(part)}`));
  return [`{ ${steps.join("; ")}; } |`, `curl -s ${quoted(url)}`, ...flags, "-d @-"].join(" \\\n  ");
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A Python program that needs only the standard library. */
export function python(url, body, token) {
  const headers = [['"Content-Type"', '"application/json"']];
  if (token) headers.push(['"Authorization"', `f"Bearer {os.environ['TOKEN']}"`]);
  const show = body.stream
    ? ["    for line in response:", "        print(line.decode(), end=\"\")"]
    : ["    print(json.load(response))"];
  return [
    ...(JSON.stringify(body, marked).includes("\ue000") ? ["import base64"] : []),
    "import json",
    ...(token ? ["import os"] : []),
    "import urllib.request",
    "",
    `body = ${literal(body)}`,
    "request = urllib.request.Request(",
    `    ${JSON.stringify(url)},`,
    "    json.dumps(body).encode(),",
    `    {${headers.map((pair) => pair.join(": ")).join(", ")}},`,
    ")",
    "with urllib.request.urlopen(request) as response:",
    ...show,
  ].join("\n");
}

const marked = (key, value) => (value instanceof FileText ? "\ue000" : value);

function literal(value) {
  if (value instanceof FileText) return `base64.b64encode(open(${JSON.stringify(value.name)}, "rb").read()).decode()`;
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([key, part]) => `${JSON.stringify(key)}: ${literal(part)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
