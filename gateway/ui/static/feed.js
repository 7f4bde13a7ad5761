// The one live connection: what goes on, once a second. Everything that is kept here has a bound.

import { ask, events } from "./api.js";

const POINTS = 300;
const RETRY_MS = [1000, 2000, 5000, 10000];

export const feed = { state: null, requests: [], history: { at: [], running: [], waiting: [] }, status: "idle", why: "" };

const listeners = new Set();
let running = null;

/** Call `listener` after each event and each change of the connection; returns what ends that. */
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const tell = () => { for (const listener of listeners) listener(feed); };

/** Connect, and again whenever the connection is lost, until `disconnect`. */
export function connect() {
  if (running) return;
  running = new AbortController();
  follow(running.signal);
}

/** Wait for the first event, or until it is clear that there is no connection. */
export const ready = () => new Promise(resolve => {
  if (feed.state || feed.status === "lost") { resolve(); return; }
  const stop = listen(() => { if (feed.state || feed.status === "lost") { stop(); resolve(); } });
});

export function disconnect() {
  running?.abort();
  running = null;
  if (feed.status !== "idle") told("idle");
}

function told(status, why = "") {
  Object.assign(feed, { status, why });
  tell();
}

async function follow(signal) {
  for (let failures = 0; !signal.aborted;) {
    try {
      const response = await ask("admin/live", { signal });
      feed.requests = [];
      for await (const data of events(response)) {
        failures = 0;
        take(JSON.parse(data));
      }
      throw new Error("Paceline has ended the connection.");
    } catch (error) {
      if (signal.aborted) return;
      told("lost", error.message);
      if (error.status === 401 || error.status === 403) { running = null; return; }
      await pause(RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)], signal);
    }
  }
}

function take({ state, requests, most }) {
  feed.state = state;
  if (requests.length) feed.requests = [...feed.requests, ...requests].slice(-most);
  const { history } = feed;
  const gap = history.at.length && state.at - history.at.at(-1) > 5;
  if (gap) add(history.at.at(-1) + 1, null, null);
  add(state.at, state.running, state.waiting);
  told("live");
}

function add(at, inside, waiting) {
  const { history } = feed;
  history.at.push(at);
  history.running.push(inside);
  history.waiting.push(waiting);
  for (const values of Object.values(history)) if (values.length > POINTS) values.shift();
}

const pause = (ms, signal) => new Promise(resolve => {
  const end = () => { clearTimeout(timer); signal.removeEventListener("abort", end); resolve(); };
  const timer = setTimeout(end, ms);
  signal.addEventListener("abort", end);
});
