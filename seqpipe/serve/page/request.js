// The request as a command with curl and as a program in Python.

/** A curl command for a POSIX shell. */
export function curl(url, body, token) {
  const flags = ["-H 'Content-Type: application/json'"];
  if (token) flags.push('-H "Authorization: Bearer $TOKEN"');
  if (body.stream) flags.unshift("-N");
  return [`curl -s ${quoted(url)}`, ...flags, `-d ${quoted(JSON.stringify(body))}`].join(" \\\n  ");
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

function literal(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([key, part]) => `${JSON.stringify(key)}: ${literal(part)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
