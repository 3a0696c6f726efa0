// What was done to a turn, or would have been: refusals, edits, stops, limits reached.

import { h, inert, line } from "./dom.js";
import { clock } from "./words.js";

const TYPES = new Set(["intervention", "budget/exhausted", "budget/alert", "turn/resume"]);
const KNOWN = new Set(["policy", "kind", "exchange", "number", "code", "grant", "budget", "action"]);
const MOST = 60;

export function interventions(turn, events) {
  const refused = new Set(events.filter((event) => event.type === "budget/exhausted").map((event) => event.data.exchange));
  const told = events.filter((event) => TYPES.has(event.type) && !(event.data.policy === "budgets" && refused.has(event.data.exchange) && event.type === "intervention"));
  if (!told.length) return null;
  return h("section", { class: "sheet", "aria-label": "Interventions and limits" },
    h("header", {}, h("h2", {}, "Interventions and limits")), grouped(told.map((event) => reading(event, turn))).slice(-MOST).map(card));
}

function reading(event, turn) {
  const data = event.data;
  const kind = data.kind ?? event.type.replace(/^(budget|turn)\//, "");
  const facts = Object.entries(data).filter(([name, value]) => !KNOWN.has(name) && value !== null);
  const bad = event.type === "budget/exhausted" || ["deny", "message", "cut"].includes(kind);
  const tone = bad ? "bad" : event.type === "turn/resume" ? "" : "warn";
  return { kind, tone, facts, who: data.budget ?? data.policy ?? "turn", time: event.time, steps: [turn.steps.findIndex((step) => step.id === event.step) + 1].filter(Boolean) };
}

/** The same again and again is told once, with its steps. */
function grouped(readings) {
  const groups = [];
  for (const one of readings) {
    const last = groups.at(-1);
    if (last && !one.facts.length && !last.facts.length && last.kind === one.kind && last.who === one.who) last.steps.push(...one.steps);
    else groups.push(one);
  }
  return groups;
}

function card(one) {
  const steps = [...new Set(one.steps)];
  const where = steps.length > 1 ? `steps ${steps[0]} to ${steps.at(-1)}` : steps.length ? `step ${steps[0]}` : null;
  return h("article", { class: "finding" },
    h("header", {}, h("span", { class: `badge ${one.tone}` }, line(one.kind, 30)), h("b", {}, line(one.who, 40)),
      where ? h("span", { class: "dim" }, where) : null, h("span", { class: "dim" }, clock(one.time))),
    one.facts.length ? h("dl", { class: "evidence" }, one.facts.map(fact)) : null);
}

function fact([name, value]) {
  const text = typeof value === "object" ? JSON.stringify(value) : value;
  return h("div", {}, h("dt", {}, line(name.replaceAll("_", " "), 40)), h("dd", { class: "inline" }, inert(text, 600)));
}
