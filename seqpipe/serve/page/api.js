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
  return (await (await request("v1", token)).json()).bundles;
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
    const events = (waiting + value).split("\n\n");
    waiting = events.pop();
    for (const event of events) {
      const line = event.split("\n").find((text) => text.startsWith("data: ")); // the server writes JSON in one line
      if (!line) continue;
      const data = JSON.parse(line.slice(6));
      if (data.error !== undefined) throw new ServerError(data.error, response.status);
      if (data.text !== undefined) onText(data.text);
      else last = data;
    }
  }
  if (last === null) throw new ServerError("the server closed the connection before the answer was whole", 0);
  return last;
}

function post(name, body, token, signal) {
  const headers = { "Content-Type": "application/json" };
  return request(`v1/${encodeURIComponent(name)}`, token, { method: "POST", headers, body: JSON.stringify(body), signal });
}

async function request(path, token, options = {}) {
  const headers = token ? { ...options.headers, Authorization: `Bearer ${token}` } : options.headers;
  const response = await fetch(address(path), { ...options, headers }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new ServerError("the server cannot be reached; start it again: seqpipe serve BUNDLE", 0);
  });
  if (response.ok) return response;
  const content = await response.json().catch(() => null); // null: from a proxy before the server, text or HTML
  const message = content?.error ?? `${response.status} ${response.statusText}`;
  const later = response.headers.get("Retry-After");
  throw new ServerError(later ? `${message}; try again in ${later} s` : message, response.status);
}
