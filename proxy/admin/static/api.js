// The API and the events. One stream of events for the whole page.

class Failed extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function answer(response) {
  if (response.ok) return response.json();
  let message = `the proxy answered ${response.status}`;
  try {
    message = (await response.json()).error ?? message;
  } catch {
    // no JSON: the status says enough
  }
  throw new Failed(response.status, message);
}

async function call(path, init) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...init });
  } catch {
    throw new Failed(0, "the proxy does not answer");
  }
  return answer(response);
}

/** What the proxy says of itself: {record: "ok" or why not, ledger: the same}; null where it says nothing. */
export async function condition() {
  try {
    return await (await fetch("/readyz")).json();
  } catch {
    return null;
  }
}

export function query(facts) {
  const set = new URLSearchParams();
  for (const [name, value] of Object.entries(facts)) if (value !== undefined && value !== null && value !== "") set.set(name, value);
  const text = set.toString();
  return text ? `?${text}` : "";
}

export function get(path, facts = {}) {
  return call(`/api/v1/${path}${query(facts)}`);
}

export function post(path, body) {
  return call(`/api/v1/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
}

/** The type of the event that says: something may have been missed, look again. */
export const AGAIN = "again";

const followers = new Set();
let source = null;

/** Be told of each event; answers a function that ends it. */
export function follow(tell) {
  followers.add(tell);
  return () => followers.delete(tell);
}

function tellAll(event) {
  for (const tell of followers) tell(event);
}

function open(onState) {
  source = new EventSource("/api/v1/events");
  source.onopen = () => {
    onState("on");
    tellAll({ type: AGAIN });
  };
  source.onerror = () => onState("off");
  source.onmessage = (message) => tellAll(JSON.parse(message.data));
}

/** Follow while the page is seen: browsers allow a host few connections, and a hidden tab needs none. */
export function connect(onState) {
  open(onState);
  addEventListener("pagehide", () => source.close());
  document.addEventListener("visibilitychange", () => {
    source.close();
    if (!document.hidden) open(onState);
  });
}

/** Run at most once in a while, and once more after the last call. */
export function calmly(work, ms) {
  let timer = null;
  let last = 0;
  const run = () => {
    timer = null;
    last = Date.now();
    work();
  };
  const ask = () => {
    if (timer === null) timer = setTimeout(run, Math.max(0, last + ms - Date.now()));
  };
  ask.stop = () => clearTimeout(timer);
  return ask;
}
