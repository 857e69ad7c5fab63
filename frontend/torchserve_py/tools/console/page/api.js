// Talks to the management listener. The key is kept for this tab only.

const KEY = "torchserve-py.key";
/** Milliseconds without a word, after which a server counts as gone; on each stream of events it says something each second. */
const MOST_SILENCE = 6000;

/** The server refused; `message` is what it says. */
export class Refused extends Error {
  constructor(status, { type, message } = {}) {
    super(message ?? `The server answered ${status}.`);
    Object.assign(this, { name: "Refused", status, isKey: status === 401 || type === "InvalidKeyException" });
  }
}

let onKeyNeeded = () => {};

/** Call `ask` whenever the server wants a key, or another one. */
export function whenKeyNeeded(ask) {
  onKeyNeeded = ask;
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** Return the headers that carry the key. */
export function authorization() {
  return key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
}

/** Return a path of two or three segments, which may hold any characters. */
export function path(...segments) {
  return segments.map(encodeURIComponent).join("/");
}

/** Send a request to a path of the listener, such as "console/api/server"; return the decoded JSON of its answer. */
export async function call(method, target, query = {}) {
  return (await answered(method, target, query)).json();
}

/** Return what a path of the listener has, as a blob. */
export async function file(target) {
  return (await answered("GET", target, {})).blob();
}

async function answered(method, target, query) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  const response = await fetch(`../${target}${search}`, { method, headers: authorization() });
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const refused = new Refused(response.status, await response.json().catch(() => ({})));
  if (refused.isKey) onKeyNeeded();
  return refused;
}

/**
 * Listen to server-sent events until `signal` says stop; connect again when the connection is lost or silent.
 *
 * @param target a path such as "console/api/overview"
 * @param on     functions by name of event; `lost` and `missing` are the connection's own
 */
export async function listen(target, on, signal) {
  for (let delay = 500; !signal.aborted; delay = Math.min(2 * delay, 5000)) {
    const silence = new AbortController();
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), MOST_SILENCE);
    };
    try {
      heard();
      const response = await fetch(`../${target}`, { headers: authorization(), signal: AbortSignal.any([signal, silence.signal]) });
      if (!response.ok) throw await refusal(response);
      for await (const [name, data] of parsed(response.body, heard)) {
        delay = 500;
        if (name === "expired") throw new Refused(400, { type: "InvalidKeyException" });
        guarded(on[name], data);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.isKey) return onKeyNeeded();
      if (error.status === 404) return on.missing?.(error);
    } finally {
      clearTimeout(timer);
    }
    on.lost?.();
    await new Promise((resolve) => setTimeout(resolve, delay));
  }
}

/** Call a listener; its mistakes are the page's, and no reason to connect again. */
function guarded(listener, data) {
  try {
    listener?.(data);
  } catch (error) {
    reportError(error);
  }
}

async function* parsed(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const name = /^event: (.*)$/m.exec(block);
      const data = /^data: (.*)$/m.exec(block);
      if (name) yield [name[1], data ? JSON.parse(data[1]) : null];
    }
  }
}
