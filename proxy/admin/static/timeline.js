// A turn as bars in time: waiting, streaming, tools beside each other, sub-agents below.

import { h, line, s } from "./dom.js";
import { duration, time } from "./words.js";

const LEFT = 150;
const RIGHT = 62;
const ROW = 20;
const TOOL = 15;

/** Bars of one step: {began, ended, attempts, tools} in milliseconds; `now` closes what still runs. */
function bars(step, now) {
  const attempts = (step.attempts ?? []).map((one) => {
    const began = time(one.started_at);
    const ended = time(one.ended_at) ?? now;
    return { began, first: time(one.first_output_at) ?? ended, ended, failed: one.outcome !== "complete", outcome: one.outcome };
  });
  const out = attempts.filter((one) => one.outcome !== "refused"); // between a refusal and a top-up nothing ran
  const began = Math.min(time(step.started_at) ?? now, ...(out.length ? out : attempts).map((one) => one.began ?? now));
  if (!attempts.length && now !== null) attempts.push({ began, first: now, ended: now, running: true });
  const replied = Math.max(...attempts.map((one) => one.ended));
  const results = [...(step.tool_results ?? [])];
  const tools = (step.tool_calls ?? []).map((call) => {
    const at = results.findIndex((one) => one.id === call.id);
    const result = at >= 0 ? results.splice(at, 1)[0] : null;
    const from = time(call.completed_at) ?? replied;
    return { name: call.name, arguments: call.arguments, began: from, ended: time(result?.arrived_at) ?? null, failed: result?.is_error, running: !result };
  });
  const ended = Math.max(replied, ...tools.map((one) => one.ended ?? (now ?? one.began)));
  return { began, ended, attempts, tools };
}

function flatten(turn, depth, rows, now) {
  turn.steps.forEach((step, place) => rows.push({ step, place, depth, turn, bars: bars(step, turn.open ? now : null) }));
  for (const thread of turn.threads ?? []) {
    rows.push({ title: `${thread.kind} ${thread.agent ?? ""}`, depth: depth + 1 });
    for (const below of thread.turns) flatten(below, depth + 1, rows, now);
  }
}

export function timeline(turn, width, { chosen, onpick, now }) {
  const rows = [];
  flatten(turn, 0, rows, turn.open ? now : null);
  const spans = rows.filter((row) => row.bars);
  if (!spans.length) return h("p", { class: "none" }, "No request of this turn went out.");
  const from = Math.min(...spans.map((row) => row.bars.began));
  const to = Math.min(Math.max(...spans.map((row) => row.bars.ended), from + 1), heard(spans, from));
  const right = Math.max(width - RIGHT, LEFT + 60);
  const x = (at) => LEFT + ((Math.min(Math.max(at, from), to) - from) / (to - from)) * (right - LEFT);
  const wide = (a, b) => Math.max(1.5, x(b) - x(a));
  const drawn = [];
  let y = 22;
  for (const row of rows) {
    if (!row.bars) {
      drawn.push(s("text", { x: 6 + 10 * row.depth, y: y + 13, class: "strong" }, line(`▸ ${row.title}`, 24)));
      y += ROW;
      continue;
    }
    const { bars: b, step, place, depth } = row;
    const lanes = b.tools.slice(0, 24);
    const tall = ROW + TOOL * lanes.length;
    const mine = depth === 0;
    drawn.push(s("rect", { class: `row${mine && chosen === place ? " chosen" : ""}`, x: 0, y, width, height: tall, rx: 4, onclick: () => (mine ? onpick(place) : (location.hash = `#/turn/${row.turn.id}`)) }));
    const marks = [];
    marks.push(s("text", { x: 8 + 10 * depth, y: y + 14, class: "strong" }, `${place + 1}`));
    marks.push(s("text", { x: 34 + 10 * depth, y: y + 14 }, line(step.stop_reason ?? (turn.open ? "running" : step.attempts?.at(-1)?.outcome ?? ""), 15)));
    for (const one of b.attempts) {
      if (one.began === null) continue;
      marks.push(s("rect", { class: "wait", x: x(one.began), y: y + 5, width: wide(one.began, one.first), height: 10, rx: 2 }, s("title", {}, `waiting ${duration(one.first - one.began)}`)));
      if (one.ended > one.first || one.failed) marks.push(s("rect", { class: one.failed ? "failed" : "stream", x: x(one.first), y: y + 5, width: wide(one.first, one.ended), height: 10, rx: 2 }, s("title", {}, one.failed ? one.outcome : `streaming ${duration(one.ended - one.first)}`)));
    }
    lanes.forEach((tool, lane) => {
      const at = y + ROW + lane * TOOL;
      const end = tool.ended ?? (turn.open ? now : tool.began);
      marks.push(s("text", { x: 34 + 10 * depth, y: at + 10 }, line(tool.name, 17)));
      marks.push(s("rect", { class: tool.failed ? "failed" : `tool${tool.running ? " growing" : ""}`, x: x(tool.began), y: at + 2, width: wide(tool.began, end), height: 9, rx: 2 }, s("title", {}, `${line(tool.name, 60)} ${duration(end - tool.began)} ${line(tool.arguments, 160)}`)));
    });
    if (step.findings?.length) marks.push(flag(step, turn, row, x(b.ended) + 10, y + 10));
    marks.push(s("text", { x: width - 4, y: y + 14, "text-anchor": "end" }, duration(b.ended - b.began)));
    drawn.push(s("g", { "pointer-events": "none" }, marks));
    y += tall + 2;
  }
  const label = `Timeline of ${turn.steps.length} steps over ${duration(to - from)}; the table of steps says the same in words`;
  return h("div", {},
    h("div", { class: "tall", tabindex: y > 460 ? "0" : null }, s("svg", { class: "plot", width, height: y + 4, viewBox: `0 0 ${width} ${y + 4}`, role: "img", "aria-label": label }, axis(from, to, x, y, right), drawn)),
    h("div", { class: "legend" }, [["wait", "waiting"], ["stream", "streaming"], ["tool", "tools"], ["failed", "failed"]].map(([kind, word]) => h("span", {}, h("i", { class: kind }), word))));
}

/** How far the picture goes: what has been waited for since hours shall not squeeze all that happened. */
function heard(spans, from) {
  let last = from;
  for (const row of spans) {
    for (const one of row.bars.attempts) last = Math.max(last, one.running ? one.began : one.ended);
    for (const tool of row.bars.tools) last = Math.max(last, tool.ended ?? tool.began);
  }
  return last + Math.max(5000, 0.4 * (last - from));
}

function flag(step, turn, row, x, y) {
  const found = step.findings.map((one) => row.turn.findings?.[one] ?? turn.findings[one]).filter(Boolean);
  const worst = found.some((one) => one.severity === "violation") ? "violation" : found.some((one) => one.severity === "warning") ? "" : "info";
  return s("path", { class: `flag ${worst}`, d: `M${x - 5} ${y + 5}L${x} ${y - 5}L${x + 5} ${y + 5}Z` }, s("title", {}, found.map((one) => `${one.policy}/${one.kind}`).join(", ")));
}

function axis(from, to, x, height, right) {
  const count = Math.max(2, Math.min(8, Math.floor((right - LEFT) / 110)));
  return Array.from({ length: count + 1 }, (_, n) => {
    const at = from + ((to - from) * n) / count;
    return [
      s("line", { class: "axis", x1: x(at), x2: x(at), y1: 18, y2: height }),
      s("text", { x: x(at), y: 12, "text-anchor": n === 0 ? "start" : n === count ? "end" : "middle" }, n === 0 ? "0" : `+${duration(at - from)}`),
    ];
  });
}
