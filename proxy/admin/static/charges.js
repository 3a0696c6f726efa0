// What a turn was charged to each budget, and how much room is left there.

import { h, line } from "./dom.js";
import { unseen } from "./marks.js";
import { amount, count } from "./words.js";

/** Charges by budget and dimension, from the settlements among a turn's events and the live counters. */
export function charged(turn, events, counters) {
  const found = new Map();
  for (const event of events) {
    if (event.type !== "budget/settle") continue;
    for (const hold of event.data.holds ?? []) {
      const key = JSON.stringify([hold.budget, hold.subject, hold.dimension]);
      const one = found.get(key) ?? { name: hold.budget, scope: hold.scope, subject: hold.subject, dimension: hold.dimension, charged: 0 };
      one.charged += Number(hold.charged);
      found.set(key, one);
    }
  }
  return [...found.values()].map((one) => {
    const live = counters.find((other) => other.name === one.name && other.subject === one.subject && other.dimension === one.dimension);
    // What the others left of the limit: where this turn's own cost meets it.
    const room = live ? Math.max(0, Number(live.limit) - (Number(live.used) - one.charged)) : null;
    // A turn's own counter is its own; a streak or a time is charged to nobody.
    const own = live && one.scope === "turn" ? Number(live.used) : one.charged;
    return { ...one, live, room, own };
  }).filter((one) => one.charged > 0 || (one.live && Number(one.live.used) >= 0.5 * Number(one.live.limit)));
}

/** The limit of a counter, and where requests stop if that is further on. */
export function limit(one) {
  const said = amount(one.dimension, one.limit);
  return one.stops_at === undefined ? said : h("span", {}, said, h("span", { class: "dim" }, `, stops at ${amount(one.dimension, one.stops_at)}`));
}

/** A bar: what was used by others and by this turn, what is held, of the limit. */
export function bar(used, reserved, limit, label) {
  const part = (value) => Math.min(100, Math.max(0, (100 * value) / (limit || 1)));
  const tone = used >= limit ? "over" : used >= 0.8 * limit ? "near" : "";
  return h("div", { class: "bar", role: "meter", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(part(used)), "aria-label": label },
    h("i", { class: "held", "width%": part(used + reserved) }), h("i", { class: tone, "width%": part(used) }));
}

export function budgetBars(charges) {
  if (!charges.length) return h("p", { class: "hint" }, "No budget holds this turn.");
  return h("div", { class: "scroll" }, h("table", { "aria-label": "Charged to budgets" },
    h("thead", {}, h("tr", {}, ["Budget", "Of", "This turn", "Used", "Limit", unseen("Share of the limit")].map((title, n) => h("th", { scope: "col", class: n > 1 && n < 5 ? "num" : null }, title)))),
    h("tbody", {}, charges.map((one) => h("tr", {},
      h("td", {}, line(one.name, 40), " ", h("span", { class: "dim" }, line(one.scope, 30))),
      h("td", {}, line(one.dimension, 30)),
      h("td", { class: "num" }, amount(one.dimension, one.own)),
      h("td", { class: "num" }, one.live ? amount(one.dimension, one.live.used) : count(null)),
      h("td", { class: "num" }, one.live ? limit(one.live) : count(null)),
      h("td", {}, one.live ? bar(Number(one.live.used), Number(one.live.reserved), Number(one.live.limit), `${one.name} ${one.dimension}`) : null))))));
}
