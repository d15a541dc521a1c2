// The server's interface: descriptions of bundles, answers, and answers as they are generated.

/** A refused request, with the server's message. */
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The address of a path below this page's folder, so that it also works behind a path of a proxy. */
export function address(path) {
  return new URL(path, document.baseURI).href;
}

export async function describeBundles(token) {
  const response = await reach(address("v1"), { headers: withToken({}, token) });
  return (await response.json()).bundles;
}

/** The server's answer to a request body: the parsed JSON, as `{"answer"}` with or without `"explanation"`. */
export async function ask(name, body, token, signal) {
  return (await post(name, body, token, signal)).json();
}

/** Call `onText` with every chunk of a text as it arrives; return the last event, which has the whole answer. */
export async function askStream(name, body, token, signal, onText) {
  const response = await post(name, { ...body, stream: true }, token, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  let last = null;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    waiting += value;
    const events = waiting.split(/\r?\n\r?\n/);
    waiting = events.pop();
    for (const event of events) {
      const data = eventData(event);
      if (data === null) continue;
      if (data.error !== undefined) throw new ServerError(data.error, response.status);
      if (data.text !== undefined) onText(data.text);
      else last = data;
    }
  }
  if (last === null) throw new ServerError("the server closed the connection before the answer was whole", 0);
  return last;
}

function eventData(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.length ? JSON.parse(lines.map((line) => line.slice(5).trimStart()).join("\n")) : null;
}

function post(name, body, token, signal) {
  const headers = withToken({ "Content-Type": "application/json" }, token);
  const url = address(`v1/${encodeURIComponent(name)}`);
  return reach(url, { method: "POST", headers, body: JSON.stringify(body), signal });
}

function withToken(headers, token) {
  return token ? { ...headers, Authorization: `Bearer ${token}` } : headers;
}

async function reach(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("the server cannot be reached; start it again: seqpipe serve BUNDLE", 0);
  }
  if (response.ok) return response;
  throw new ServerError(await errorMessage(response), response.status);
}

async function errorMessage(response) {
  const text = await response.text();
  let message = text;
  try {
    message = JSON.parse(text).error;
  } catch {
    // not JSON: from a proxy before the server, which answers in text or HTML
    message = `${response.status} ${response.statusText}`;
  }
  const later = response.headers.get("Retry-After");
  return later ? `${message}; try again in ${later} s` : message;
}
