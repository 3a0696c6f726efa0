// The frame: which view stands at which address, keys, and the sign of life.

import { condition, connect } from "./api.js";
import { budgets } from "./budgets.js";
import { ask } from "./dialogs.js";
import { h, put } from "./dom.js";
import { findings } from "./findings.js";
import { ageAll } from "./marks.js";
import { reports } from "./reports.js";
import { sessions } from "./sessions.js";
import { turn } from "./turn.js";
import { turns } from "./turns.js";

const VIEWS = [
  ["turns", "Turns", turns],
  ["sessions", "Sessions", sessions],
  ["findings", "Findings", findings],
  ["budgets", "Budgets", budgets],
  ["reports", "Reports", reports],
];

let leave = null;

/** `#/turns?agent=x` → ["turns"], {agent: "x"}. */
function place() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { parts: parts.length ? parts : ["turns"], facts: Object.fromEntries(new URLSearchParams(search ?? "")) };
}

function show() {
  if (leave) leave();
  const main = document.getElementById("main");
  const { parts, facts } = place();
  put(main);
  const found = VIEWS.find(([name]) => name === parts[0]);
  const name = found ? found[0] : parts[0] === "turn" ? "turns" : "";
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.name === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave = (found ? found[2] : parts[0] === "turn" ? turn : nowhere)(main, facts, parts) ?? null;
  const title = main.querySelector("h1");
  document.title = title ? `${title.textContent} · Looptap` : "Looptap";
  if (title && started) {
    title.tabIndex = -1;
    title.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  started = true;
}

let started = false;

function nowhere(main) {
  put(main, h("div", { class: "head" }, h("h1", {}, "Nothing here")), h("p", {}, h("a", { href: "#/turns" }, "All turns")));
}

const KEYS = [
  ["1 … 5", "turns, sessions, findings, budgets, reports"],
  ["/", "to the filters"],
  ["↑ ↓ or j k", "from row to row"],
  ["Enter", "open"],
  ["u", "back to the list"],
  ["?", "these keys"],
];

function help() {
  ask("Keys", [h("dl", {}, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]))], null);
}

function step(by) {
  const rows = [...document.querySelectorAll("tr[data-go]")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  const next = rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))];
  for (const row of rows) row.tabIndex = row === next ? 0 : -1;
  next.focus();
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const row = event.target.closest("tr[data-go]");
  const acts = {
    "/": () => document.querySelector(".filters input")?.focus(),
    "?": help,
    u: () => { location.hash = "#/turns"; },
    j: () => step(1),
    k: () => step(-1),
    ArrowDown: row ? () => step(1) : null,
    ArrowUp: row ? () => step(-1) : null,
    Enter: row && event.target === row ? () => row.click() : null,
  };
  const view = VIEWS[Number(event.key) - 1];
  const act = view ? () => { location.hash = `#/${view[0]}`; } : acts[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

let followed = "off";
let trouble = null;

function sign() {
  const live = document.getElementById("live");
  const state = followed === "on" && trouble ? "ill" : followed;
  const text = { on: "live", off: "the proxy is away", ill: trouble?.short }[state];
  if (live.textContent === text) return;
  live.className = `live ${state}`;
  live.textContent = text;
  live.title = state === "ill" ? trouble.why : "";
}

function alive(state) {
  followed = state;
  if (state === "on") examine();
  sign();
}

/** Events come from the record: where nothing is recorded the page would look alive, and stand still. */
async function examine() {
  const told = document.hidden || followed !== "on" ? null : await condition();
  if (!told) return;
  if (told.record !== "ok") trouble = { short: "not recorded", why: told.record };
  else trouble = told.ledger === "ok" ? null : { short: "without ledger", why: told.ledger };
  sign();
}

put(document.getElementById("nav"), VIEWS.map(([name, title]) => h("a", { href: `#/${name}`, "data-name": name }, title)));
document.getElementById("keys").addEventListener("click", help);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
addEventListener("keydown", pressed);
addEventListener("hashchange", show);
setInterval(ageAll, 10000);
setInterval(examine, 10000);
connect(alive);
show();
