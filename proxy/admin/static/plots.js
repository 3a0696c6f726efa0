// Plots of a turn: tokens that each step read, and cost as it accrued.

import { h, s } from "./dom.js";
import { count, many, money, share } from "./words.js";

const TALL = 190;
const LEFT = 52;
const RIGHT = 12;
const BOTTOM = 22;
const TOP = 12;

function scale(most, width, columns) {
  const high = nice(most);
  return {
    high,
    x: (at) => LEFT + (at / Math.max(1, columns)) * (width - LEFT - RIGHT),
    y: (value) => TALL - BOTTOM - (value / high) * (TALL - BOTTOM - TOP),
  };
}

export function nice(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 6, 8, 10].map((one) => one * power).find((one) => one >= most) ?? most;
}

function frame(width, high, y, x, steps, format) {
  const lines = [0, 0.5, 1].map((part) => [
    s("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: y(part * high), y2: y(part * high) }),
    s("text", { x: LEFT - 6, y: y(part * high) + 4, "text-anchor": "end" }, format(part * high)),
  ]);
  const every = Math.max(1, Math.ceil(steps / Math.max(4, Math.floor(width / 70))));
  for (let n = 0; n < steps; n += every) lines.push(s("text", { x: x(n + 0.5), y: TALL - 6, "text-anchor": "middle" }, n + 1));
  return lines;
}

/** Tokens per step: cached, newly cached, fresh; the line that they follow, and on. */
export function tokens(turn, width, { chosen, onpick }) {
  const steps = turn.steps;
  if (!steps.some((step) => step.usage.input_tokens)) return h("p", { class: "none" }, "No step has reported tokens.");
  const growth = turn.growth;
  const ahead = growth && growth.growth_per_step > 0 ? Math.min(20, Math.max(3, Math.round(steps.length / 2))) : 0;
  const columns = steps.length + ahead;
  const line = (n) => growth.start + growth.growth_per_step * (n - (steps.length - growth.fitted_steps));
  const most = Math.max(...steps.map((step) => (step.usage.input_tokens ?? 0) + (step.usage.output_tokens ?? 0)), ahead ? line(columns - 1) : 0);
  const window = growth?.window && growth.window < 2.2 * most ? growth.window : null;
  const { high, x, y } = scale(Math.max(most, window ?? 0), width, columns);
  const thick = Math.max(1, Math.min(46, (x(1) - x(0)) * 0.74));
  const drawn = steps.map((step, n) => {
    const read = step.usage.cache_read_tokens ?? 0;
    const wrote = step.usage.cache_write_tokens ?? 0;
    const stack = [["cached", read], ["written", wrote], ["fresh-input", Math.max(0, (step.usage.input_tokens ?? 0) - read - wrote)], ["out", step.usage.output_tokens ?? 0]];
    let base = 0;
    return s("g", { onclick: () => onpick(n) },
      s("title", {}, `step ${n + 1}: ${count(step.usage.input_tokens)} in, ${share(step.usage.cache_read_tokens, step.usage.input_tokens)} cached, ${count(step.usage.output_tokens)} out`),
      s("rect", { class: `row${chosen === n ? " chosen" : ""}`, x: x(n), width: x(1) - x(0), y: TOP, height: TALL - BOTTOM - TOP }),
      stack.map(([kind, value]) => {
        const top = y(base + value);
        const bar = s("rect", { class: kind, x: x(n + 0.5) - thick / 2, width: thick, y: top, height: Math.max(0, y(base) - top) });
        base += value;
        return bar;
      }));
  });
  if (growth) {
    const first = steps.length - growth.fitted_steps;
    const point = (n) => `${x(n + 0.5)} ${y(Math.max(0, line(n)))}`;
    drawn.push(s("path", { class: "curve", d: `M${point(first)}L${point(steps.length - 1)}` }));
    if (ahead) drawn.push(s("path", { class: "ahead", d: `M${point(steps.length - 1)}L${point(columns - 1)}` }));
  }
  if (window) drawn.push(s("line", { class: "limit", x1: LEFT, x2: width - RIGHT, y1: y(window), y2: y(window) }), s("text", { class: "limit-text", x: width - RIGHT, y: y(window) - 4, "text-anchor": "end" }, `window ${count(window)}`));
  const label = growth ? `Tokens per step, growing by about ${count(Math.round(growth.growth_per_step))} a step` : "Tokens per step";
  return h("div", {},
    s("svg", { class: "plot", width, height: TALL, viewBox: `0 0 ${width} ${TALL}`, role: "img", "aria-label": label }, frame(width, high, y, x, steps.length, count), drawn),
    h("div", { class: "legend" }, [["cached", "cached"], ["written", "cache write"], ["fresh-input", "fresh input"], ["out", "output"]].map(([kind, word]) => h("span", {}, h("i", { class: kind }), word))),
    h("p", { class: "hint" }, outlook(turn)));
}

/** Where it leads, in words. */
function outlook(turn) {
  const said = [];
  const growth = turn.growth;
  if (growth && turn.steps.length > 1) {
    const more = Math.round(growth.growth_per_step);
    said.push(Math.abs(more) < 1 ? "Each step reads as much as the one before." : `Each step reads about ${many(Math.abs(more), "token")} ${more > 0 ? "more" : "less"} than the one before.`);
    const last = turn.steps.at(-1).usage.input_tokens;
    if (growth.window && growth.growth_per_step > 0 && last) {
      said.push(`At that pace the window of ${count(growth.window)} is full after about ${many(Math.max(0, Math.floor((growth.window - last) / growth.growth_per_step)), "more step")}.`);
    }
  }
  if (turn.open) for (const one of turn.forecast ?? []) said.push(`Budget ${one.name} (${one.dimension}) lasts about ${many(one.steps_left, "more step")}.`);
  return said.join(" ");
}

/** Money as it accrued, a stair per step, and the limits that it runs towards. */
export function costs(turn, limits, width, { chosen, onpick }) {
  const steps = turn.steps;
  let sum = 0;
  const stairs = steps.map((step) => (sum += Number(step.cost_usd ?? 0)));
  if (!sum) return h("p", { class: "none" }, "No step has a price.");
  const near = limits.filter((one) => one.room <= 4 * sum);
  const { high, x, y } = scale(Math.max(sum, ...near.map((one) => one.room)), width, steps.length);
  let path = `M${x(0)} ${y(0)}`;
  stairs.forEach((value, n) => { path += `V${y(value)}H${x(n + 1)}`; });
  const format = (value) => money(value);
  return s("svg", { class: "plot", width, height: TALL, viewBox: `0 0 ${width} ${TALL}`, role: "img", "aria-label": `Cost by step, ${money(sum)} in all` },
    frame(width, high, y, x, steps.length, format),
    steps.map((step, n) => s("rect", { class: `row${chosen === n ? " chosen" : ""}`, x: x(n), width: x(1) - x(0), y: TOP, height: TALL - BOTTOM - TOP, onclick: () => onpick(n) }, s("title", {}, `step ${n + 1}: ${money(step.cost_usd, step.cost_quality)}, ${money(stairs[n])} so far`))),
    s("g", { "pointer-events": "none" }, s("path", { class: "curve", d: path }),
      near.map((one) => [
        s("line", { class: "limit", x1: LEFT, x2: width - RIGHT, y1: y(one.room), y2: y(one.room) }),
        s("text", { class: "limit-text", x: LEFT + 4, y: y(one.room) - 4 }, `limit of ${one.name}${one.room < Number(one.live.limit) ? ", less what others used" : ""}: ${money(one.room)}`),
      ])));
}
