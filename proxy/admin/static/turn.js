// One turn: figures, timeline, plots, findings, steps, and what the model saw at one of them.

import { AGAIN, calmly, follow, get } from "./api.js";
import { budgetBars, charged } from "./charges.js";
import { h, line, put, tell } from "./dom.js";
import { findingsOf } from "./findings.js";
import { interventions } from "./interventions.js";
import { cause, failed, labels, since } from "./marks.js";
import { askStop } from "./orders.js";
import { costs, tokens } from "./plots.js";
import { stepPanel } from "./step.js";
import { table } from "./table.js";
import { timeline } from "./timeline.js";
import { clock, count, duration, many, money, share, short, time } from "./words.js";

const MANY = 10000;

export function turn(main, facts, parts) {
  const id = parts[1];
  let now = null;
  let events = [];
  let counters = [];
  let picked = facts.step ? Number(facts.step) - 1 : null;
  let gone = false;
  const places = Object.fromEntries(["figures", "time", "tokens", "cost", "done", "findings", "steps", "step"].map((name) => [name, h("div")]));
  const name = h("span", { class: "mono" }, short(id));
  const beside = h("div", { class: "beside" });
  const title = h("div", { class: "head" }, h("h1", {}, "Turn ", name), beside);
  const steps = stepsTable(() => picked, pick);
  put(places.steps, steps.element);
  put(main, title, places.figures);
  const sheets = [
    sheet("Timeline", places.time, "", "body"),
    h("div", { class: "pair" }, sheet("Tokens per step", places.tokens, "", "body"), sheet("Cost", places.cost, "", "body")),
    places.done,
    places.findings,
    sheet("Steps", places.steps, "pick one to see what the model saw"),
    places.step,
  ];

  function pick(place) {
    picked = place;
    history.replaceState(null, "", `#/turn/${encodeURIComponent(id)}?step=${place + 1}`);
    draw();
    showStep();
    places.step.scrollIntoView({ block: "nearest", behavior: "auto" });
  }

  function showStep() {
    const step = now.steps[picked];
    put(places.step, step ? stepPanel(now, step, picked, events) : null);
  }

  function draw() {
    const width = Math.max(320, places.time.clientWidth || 900);
    const half = Math.max(280, places.tokens.clientWidth || width / 2);
    const scrolled = places.time.querySelector(".tall")?.scrollTop ?? 0;
    put(places.time, timeline(now, width, { chosen: picked, onpick: pick, now: Date.now() }));
    if (scrolled) places.time.querySelector(".tall").scrollTop = scrolled;
    put(places.tokens, tokens(now, half, { chosen: picked, onpick: pick }));
    const charges = charged(now, events, counters);
    put(places.cost, costs(now, charges.filter((one) => one.dimension === "spend_usd" && one.room !== null), half, { chosen: picked, onpick: pick }), budgetBars(charges));
    steps.set(now.steps.map((step, place) => ({ ...step, place })));
  }

  function heading() {
    put(name, short(now.id));  // the heading itself stays: it may have the focus
    put(beside, cause(now),
      h("a", { href: `#/turns?session=${encodeURIComponent(now.session)}`, class: "dim" }, `session ${short(now.session)}`),
      h("span", { class: "spring" }),
      now.trace_url ? h("a", { class: "button", href: now.trace_url, target: "_blank", rel: "noopener noreferrer" }, "Open trace") : null,
      now.open ? h("button", { type: "button", class: "risky", onclick: () => askStop(now.id, "turn") }, "Stop …") : null);
    put(places.figures, figures(now));
    document.title = `Turn ${short(now.id)} · Looptap`;
  }

  async function load() {
    try {
      const after = events.at(-1)?.seq ?? 0;
      const [fresh, more, live] = await Promise.all([
        get(`turns/${encodeURIComponent(id)}`),
        get(`turns/${encodeURIComponent(id)}/events`, { after, limit: MANY }),
        get("budgets").catch(() => []),
      ]);
      if (gone) return;
      const first = now === null;
      const ended = now?.open && !fresh.open;
      const grown = now ? fresh.steps.length - now.steps.length : 0;
      now = fresh;
      events = [...events, ...more];
      counters = live;
      if (first) main.append(...sheets);
      heading();
      draw();
      findingsShown();
      if (more.length) put(places.done, interventions(now, events));
      if (first && picked !== null) showStep();
      if (ended) tell(`The turn has ended: ${now.cause}`);
      else if (grown > 0) tell(`Step ${now.steps.length}`);
    } catch (error) {
      if (now === null) put(main, title, failed(error), h("p", {}, h("a", { href: "#/turns" }, "All turns")));
    }
  }

  let told = "";
  function findingsShown() {
    const fresh = JSON.stringify(now.findings);
    if (fresh === told) return;
    told = fresh;
    put(places.findings, findingsOf(now, pick));
  }

  const again = calmly(load, 400);
  const off = follow((event) => {
    if (event.type === AGAIN || event.turn === id || event.turn === now?.id || (event.session === now?.session && now?.open)) again();
  });
  const beat = setInterval(() => { if (now?.open) draw(); }, 1000);
  const resized = calmly(() => { if (now) draw(); }, 150);
  addEventListener("resize", resized);
  load();
  return () => {
    gone = true;
    off();
    again.stop();
    resized.stop();
    clearInterval(beat);
    removeEventListener("resize", resized);
  };
}

export function sheet(title, place, hint, kind) {
  if (kind) place.className = kind;
  return h("section", { class: "sheet", "aria-label": title }, h("header", {}, h("h2", {}, title), hint ? h("span", { class: "dim" }, hint) : null), place);
}

function figures(turn) {
  const end = turn.open ? Date.now() : time(turn.ended_at);
  const usage = turn.usage;
  const cells = [
    ["Agent", line(turn.agent ?? "?", 40), labels(turn.labels)],
    ["Model", line([...new Set(turn.steps.map((step) => step.model))].join(", ") || "?", 60)],
    ["Started", clock(turn.started_at), since(turn.started_at)],
    [turn.open ? "Running" : "Took", duration(end - time(turn.started_at))],
    ["Steps", count(turn.steps.length), turn.threads ? `${many(turn.threads.length, "thread")} below` : null],
    ["Input", count(usage.input_tokens), `${share(usage.cache_read_tokens, usage.input_tokens)} cached`],
    ["Output", count(usage.output_tokens), usage.reasoning_tokens ? `${count(usage.reasoning_tokens)} thinking` : null],
    ["Cost", money(turn.cost_usd, turn.cost_quality), turn.threads ? `${money(whole(turn), turn.cost_quality)} with what is below` : turn.cost_quality],
    ["Findings", count(turn.findings.length)],
  ];
  return h("section", { class: "sheet figures", "aria-label": "Figures" },
    cells.map(([what, value, beside]) => h("div", {}, h("div", { class: "what" }, what), h("div", { class: "value inline" }, value), beside ? h("div", { class: "beside" }, beside) : null)));
}

/** What a turn cost with the threads below it. */
function whole(turn) {
  const below = (turn.threads ?? []).flatMap((thread) => thread.turns);
  return below.reduce((sum, one) => sum + Number(whole(one)), Number(turn.cost_usd ?? 0));
}

function stepsTable(picked, pick) {
  const columns = [
    ["Step", (step) => step.place + 1, "num"],
    ["Model", (step) => line(step.model ?? "?", 40), "name"],
    ["Stop reason", (step) => line(step.stop_reason ?? step.attempts?.at(-1)?.outcome ?? "running", 30)],
    ["Tools", (step) => line(step.tool_calls.map((call) => call.name).join(", "), 80), "name wide"],
    ["Attempts", (step) => count(step.exchanges.length), "num"],
    ["Took", (step) => duration(time(step.ended_at) - time(step.started_at)), "num"],
    ["Input", (step) => count(step.usage.input_tokens), "num"],
    ["Cached", (step) => share(step.usage.cache_read_tokens, step.usage.input_tokens), "num"],
    ["Output", (step) => count(step.usage.output_tokens), "num"],
    ["Cost", (step) => money(step.cost_usd, step.cost_quality), "num"],
    ["Findings", (step) => (step.findings.length ? h("span", { class: "badge warn" }, count(step.findings.length)) : ""), "num"],
  ];
  return table("Steps", columns, { key: (step) => step.id, chosen: (step) => step.place === picked(), onpick: (id) => pick(places.get(id)), seen: (step) => places.set(step.id, step.place) });
}

const places = new Map();
