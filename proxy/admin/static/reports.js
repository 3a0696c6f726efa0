// `looptap report` as pictures: how turns end, how long they get, what they cost, how tools do.

import { calmly, get } from "./api.js";
import { h, line, put, s } from "./dom.js";
import { failed } from "./marks.js";
import { nice } from "./plots.js";
import { sheet } from "./turn.js";
import { count, many, money, percent } from "./words.js";

const SPANS = [["", "all recorded"], [86400, "last day"], [7 * 86400, "last 7 days"], [30 * 86400, "last 30 days"]];
const TONES = { completed: "good", interrupted: "faintfill", superseded: "faintfill", abandoned: "faintfill", max_tokens: "warnfill", context_window: "warnfill" };
const ROW = 26;
const NAME = 210;

const named = (row, kind) => `${line(row[kind] ?? "?", 34)}${row.kind && row.kind !== "main" ? ` (${row.kind})` : ""}`;

export function reports(main) {
  const span = h("select", { "aria-label": "In which time" }, SPANS.map(([value, word]) => h("option", { value }, word)));
  const place = h("div", {}, h("p", { class: "none" }, "Reading the record …"));
  put(main, h("div", { class: "head" }, h("h1", {}, "Reports"), h("span", { class: "spring" }), span), place);
  let told = null;
  const load = async () => {
    try {
      told = await get("report", { since: span.value });
      draw(place, told);
    } catch (error) {
      put(place, failed(error));
    }
  };
  span.addEventListener("change", load);
  const resized = calmly(() => { if (told) draw(place, told); }, 200);
  addEventListener("resize", resized);
  load();
  return () => {
    resized.stop();
    removeEventListener("resize", resized);
  };
}

function draw(place, report) {
  if (!report.turns) {
    put(place, h("p", { class: "none" }, "No turn in that time."));
    return;
  }
  const holders = [];
  const card = (title, hint, make) => {
    const body = h("div");
    holders.push([body, make]);
    return sheet(title, body, hint, "body");
  };
  put(place,
    h("section", { class: "sheet figures", "aria-label": "Sums" }, [["Turns", count(report.turns)], ["Steps", count(report.steps)], ["Cost", money(report.cost_usd, report.cost_quality)], ["Side calls", count(report.side_calls.turns)], ["Unpriced", count(report.unpriced_attempts)]].map(([what, value]) => h("div", {}, h("div", { class: "what" }, what), h("div", { class: "value" }, value)))),
    [["agents", "agent", "By agent"], ["models", "model", "By model"]].map(([name, kind, title]) => [
      h("div", { class: "pair" },
        card(`${title}: how turns end`, "completed says that the agent came to its own end, not that the work is right", (width) => ends(report[name], kind, width)),
        card(`${title}: steps of a turn`, "median, 90 of 100, most", (width) => spread(report[name], kind, width))),
      h("div", { class: "pair" },
        card(`${title}: still going after so many steps`, "at a constant failure rate; half-life where it crosses a half", (width) => survival(report[name], kind, width)),
        card(`${title}: cost of a completed turn`, "with what failed, sub-agents and side calls", (width) => cost(report[name], kind, width)))]),
    report.tools.length ? card("Tools", "calls, and the part that failed", (width) => tools(report.tools, width)) : null);
  for (const [body, make] of holders) put(body, make(Math.max(300, body.clientWidth - 28)));
}

function picture(width, height, label, ...drawn) {
  return s("svg", { class: "plot", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, drawn);
}

function nameAt(text, y) {
  return s("text", { x: 0, y, class: "strong" }, text);
}

function ends(rows, kind, width) {
  const seen = new Set();
  const long = width - NAME - 60;
  const drawn = rows.slice(0, 20).map((row, n) => {
    let at = NAME;
    return [nameAt(named(row, kind), n * ROW + 16), Object.entries(row.causes).map(([cause, part]) => {
      const tone = TONES[cause] ?? "failed";
      seen.add(tone);
      const bar = s("rect", { class: tone, x: at, y: n * ROW + 5, width: Math.max(1, part * long - 1), height: 15, rx: 2 }, s("title", {}, `${cause} ${percent(part)}`));
      const word = part * long > 70 ? s("text", { x: at + 6, y: n * ROW + 16.5, class: "on" }, `${line(cause, 14)} ${percent(part)}`) : null;
      at += part * long;
      return [bar, word];
    }), s("text", { x: width, y: n * ROW + 16, "text-anchor": "end" }, many(row.turns, "turn"))];
  });
  const words = { good: "completed", failed: "failed", warnfill: "cut short", faintfill: "left by the user" };
  return [picture(width, rows.slice(0, 20).length * ROW + 4, rows.slice(0, 20).map((row) => `${named(row, kind)}: ${Object.entries(row.causes).map(([cause, part]) => `${cause} ${percent(part)}`).join(", ")}`).join("; "), drawn),
    h("div", { class: "legend" }, [...seen].map((tone) => h("span", {}, h("i", { class: tone }), words[tone])))];
}

function spread(rows, kind, width) {
  const shown = rows.slice(0, 20);
  const high = nice(Math.max(...shown.map((row) => row.steps.most ?? 0), 2));
  const x = (value) => NAME + (value / high) * (width - NAME - 40);
  return picture(width, shown.length * ROW + 20, shown.map((row) => `${named(row, kind)}: median ${count(row.steps.median)}`).join("; "),
    [0, 0.5, 1].map((part) => [s("line", { class: "axis", x1: x(part * high), x2: x(part * high), y1: 0, y2: shown.length * ROW }), s("text", { x: x(part * high), y: shown.length * ROW + 15, "text-anchor": "middle" }, count(part * high))]),
    shown.map((row, n) => {
      const { median, p90, most } = row.steps;
      if (median === null) return nameAt(named(row, kind), n * ROW + 16);
      return [nameAt(named(row, kind), n * ROW + 16),
        s("rect", { class: "faintfill", x: x(0), y: n * ROW + 11, width: Math.max(1, x(most) - x(0)), height: 3 }, s("title", {}, `most ${most}`)),
        s("rect", { class: "cached", x: x(0), y: n * ROW + 7, width: Math.max(1, x(p90) - x(0)), height: 11, rx: 2 }, s("title", {}, `90 of 100: ${p90}`)),
        s("rect", { class: "stream", x: x(0), y: n * ROW + 7, width: Math.max(1, x(median) - x(0)), height: 11, rx: 2 }, s("title", {}, `median ${median}`)),
        s("text", { x: x(most) + 6, y: n * ROW + 16 }, `${median} / ${p90} / ${most}`)];
    }));
}


function survival(rows, kind, width) {
  const shown = rows.filter((row) => row.failure_rate_per_step !== null && row.failures > 0).slice(0, 6);
  if (!shown.length) return h("p", { class: "none" }, "No turn has failed.");
  const far = nice(Math.max(10, Math.min(400, 2 * Math.max(...shown.map((row) => row.half_life_steps ?? 10)))));
  const tall = 170;
  const x = (n) => 40 + (n / far) * (width - 60);
  const y = (part) => 8 + (1 - part) * (tall - 34);
  const curve = (rate) => Array.from({ length: 61 }, (_, n) => `${n ? "L" : "M"}${x((n * far) / 60)} ${y((1 - rate) ** ((n * far) / 60))}`).join("");
  return [picture(width, tall, shown.map((row) => `${named(row, kind)}: half-life ${row.half_life_steps} steps`).join("; "),
    [0, 0.5, 1].map((part) => [s("line", { class: "axis", x1: 40, x2: width - 20, y1: y(part), y2: y(part) }), s("text", { x: 34, y: y(part) + 4, "text-anchor": "end" }, percent(part))]),
    [0, 0.25, 0.5, 0.75, 1].map((part) => s("text", { x: x(part * far), y: tall - 8, "text-anchor": "middle" }, count(Math.round(part * far)))),
    shown.map((row, n) => s("path", { class: `hue${n}`, fill: "none", "stroke-width": 1.8, d: curve(row.failure_rate_per_step) }, s("title", {}, named(row, kind))))),
  h("div", { class: "legend" }, shown.map((row, n) => h("span", {}, h("i", { class: `hue${n}` }), `${named(row, kind)}: half-life ${row.half_life_steps ?? "?"} steps, from ${many(row.failures, "failure")}`)))];
}

function cost(rows, kind, width) {
  const shown = rows.slice(0, 20);
  const high = Math.max(...shown.map((row) => Number(row.cost_per_completed_turn_usd ?? 0)), 1e-12);
  const long = width - NAME - 150;
  return picture(width, shown.length * ROW + 4, shown.map((row) => `${named(row, kind)}: ${money(row.cost_per_completed_turn_usd)}`).join("; "), shown.map((row, n) => [
    nameAt(named(row, kind), n * ROW + 16),
    s("rect", { class: "stream", x: NAME, y: n * ROW + 6, width: Math.max(1, (long * Number(row.cost_per_completed_turn_usd ?? 0)) / high), height: 13, rx: 2 }),
    s("text", { x: NAME + 6 + (long * Number(row.cost_per_completed_turn_usd ?? 0)) / high, y: n * ROW + 17 }, money(row.cost_per_completed_turn_usd, row.cost_quality)),
    s("text", { x: width, y: n * ROW + 17, "text-anchor": "end" }, `${percent(row.cached_share)} cached`)]));
}

function tools(rows, width) {
  const shown = rows.slice(0, 30);
  const high = Math.max(...shown.map((row) => row.calls), 1);
  const long = Math.max(60, width - NAME - 430);
  return picture(width, shown.length * ROW + 4, shown.map((row) => `${line(row.tool ?? "?", 34)}: ${row.calls} calls`).join("; "), shown.map((row, n) => {
    const wide = Math.max(1, (long * row.calls) / high);
    const bad = row.error_rate ? wide * row.error_rate : 0;
    return [nameAt(line(row.tool ?? "?", 32), n * ROW + 16),
      s("rect", { class: "tool", x: NAME, y: n * ROW + 6, width: wide, height: 13, rx: 2 }),
      s("rect", { class: "failed", x: NAME, y: n * ROW + 6, width: bad, height: 13, rx: 2 }),
      s("text", { x: NAME + wide + 6, y: n * ROW + 17 }, `${many(row.calls, "call")}, ${row.errors === null ? "errors not told" : `${percent(row.error_rate)} failed`}`),
      s("text", { x: width, y: n * ROW + 17, "text-anchor": "end" }, line(Object.entries(row.findings).map(([name, number]) => `${name} ${number}`).join(", "), 44))];
  }));
}
