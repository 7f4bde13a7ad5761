// The shell: which page is shown, who is signed in, light or dark.

import { json, key, whenRefused } from "./api.js";
import { connect, disconnect, listen } from "./feed.js";
import { problem, render } from "./parts.js";

const PAGES = {
  now: () => import("./pages/now.js"),
  requests: () => import("./pages/requests.js"),
  benchmarks: () => import("./pages/benchmarks.js"),
  quality: () => import("./pages/quality.js"),
  experiments: () => import("./pages/experiments.js"),
  cache: () => import("./pages/cache.js"),
  playground: () => import("./pages/playground.js"),
};
const THEMES = ["auto", "light", "dark"];

const at = id => document.getElementById(id);
let turn = 0;
let close = () => {};

async function show() {
  const [name, ...rest] = location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  const wanted = name in PAGES ? name : "now";
  const mine = ++turn;
  close();
  close = () => {};
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${wanted}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const view = document.createElement("div");
  view.className = "page";
  try {
    const page = await PAGES[wanted]();
    if (mine !== turn) return;
    document.title = `${page.title} · Paceline`;
    at("main").replaceChildren(view);
    close = page.open(view, rest) ?? close;
  } catch (error) {
    render(problem(error), view);
    at("main").replaceChildren(view);
  }
}

// Signing in

function askForKey(refused) {
  at("sign-in-why").textContent = refused && key.get() ? refused.message : "This Paceline asks for a key.";
  at("sign-out").hidden = true;
  if (!at("sign-in").open) at("sign-in").showModal();
}

at("sign-in-form").addEventListener("submit", async event => {
  event.preventDefault();
  key.set(at("key").value.trim());
  at("key").value = "";
  try {
    await json("admin/fleet");
  } catch (error) {
    at("sign-in-why").textContent = error.message;
    key.forget();
    return;
  }
  at("sign-in").close();
  start();
});
at("sign-in").addEventListener("cancel", event => event.preventDefault());
at("sign-out").addEventListener("click", () => {
  key.forget();
  location.reload();
});

// Light and dark

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  at("theme").textContent = `Theme: ${theme === "auto" ? "system" : theme}`;
  document.dispatchEvent(new Event("themechange"));
}
at("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem("paceline-theme", next);
  setTheme(next);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));

// The connection

const WORDS = { idle: "not connected", live: "live", lost: "connection lost" };
listen(({ status, why }) => {
  const shown = at("connection");
  if (shown.dataset.state === status) return;
  shown.dataset.state = status;
  shown.textContent = WORDS[status];
  shown.title = why;
});
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : at("sign-in").open || connect()));

document.querySelector(".skip").addEventListener("click", event => {
  event.preventDefault();
  at("main").focus();
});
document.addEventListener("keydown", event => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName);
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector("main input[type=search]");
  if (search) { event.preventDefault(); search.focus(); }
});

function start() {
  if (document.documentElement.dataset.keys === "on" && !key.get()) { askForKey(); return; }
  at("sign-out").hidden = !key.get();
  disconnect();
  connect();
  show();
}

whenRefused(askForKey);
setTheme(THEMES.includes(localStorage.getItem("paceline-theme")) ? localStorage.getItem("paceline-theme") : "auto");
addEventListener("hashchange", show);
start();
