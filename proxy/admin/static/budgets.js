// Budgets: counters with what is used, held and forecast; who spends most; alerts; orders.

import { AGAIN, calmly, follow, get } from "./api.js";
import { bar, limit } from "./charges.js";
import { h, line, put } from "./dom.js";
import { held } from "./held.js";
import { failed, since, unseen, whose } from "./marks.js";
import { askStop, askTopup } from "./orders.js";
import { table } from "./table.js";
import { amount, many, money, short, time } from "./words.js";

const WINDOWS = { minute: 60e3, hour: 3600e3, day: 86400e3, week: 7 * 86400e3, month: 30.4 * 86400e3 };

/** Where a counter will be when its window ends, if it goes on as it has. Null where no time ends it. */
function forecast(one) {
  const long = WINDOWS[one.window];
  const end = time(one.resets_at);
  if (!long || !end) return null;
  const past = Math.min(1, 1 - (end - Date.now()) / long);
  return past < 0.02 ? null : Number(one.used) / past;
}

const STOPPABLE = new Set(["turn", "thread", "session", "key"]);

function columns(again) {
  return [
    ["Budget", (one) => h("b", {}, line(one.name, 40))],
    ["Scope", (one) => line(one.scope, 40)],
    ["Subject", (one) => whose(one.subject), "name"],
    ["Of", (one) => line(one.dimension, 40)],
    ["Window", (one) => line(one.window, 20)],
    [unseen("Share of the limit"), (one) => bar(Number(one.used), Number(one.reserved), Number(one.limit), `${one.name} ${one.dimension}`)],
    ["Used", (one) => amount(one.dimension, one.used), "num"],
    ["Held", (one) => amount(one.dimension, one.reserved), "num"],
    ["Limit", limit, "num"],
    ["Forecast", ahead, "num"],
    [unseen("Top up"), (one) => h("button", { type: "button", onclick: () => askTopup(one, again) }, "Top up …")],
    [unseen("Stop"), (one) => (STOPPABLE.has(one.scope) ? h("button", { type: "button", class: "risky", onclick: () => askStop(one.subject, one.scope) }, "Stop …") : null)],
  ];
}

function ahead(one) {
  const end = forecast(one);
  if (end === null) return "";
  const over = end > Number(one.limit);
  return h("span", { class: over ? "badge warn" : null, title: "at the end of the window, if it goes on as it has" }, amount(one.dimension, one.dimension === "spend_usd" ? end : Math.round(end)));
}

const ALERTS = [
  ["When", (event) => since(event.time)],
  ["What", (event) => h("span", { class: `badge ${event.type === "budget/exhausted" ? "bad" : event.type === "budget/alert" ? "warn" : ""}` }, line(what(event), 30))],
  ["Budget or policy", (event) => line(event.data.budget ?? event.data.policy ?? "", 40)],
  ["Whose", (event) => whose(event.data.subject ?? event.data.id ?? event.turn), "name"],
  ["Said", (event) => h("span", { class: "dim" }, line(said(event.data), 120)), "name wide"],
];

function what(event) {
  if (event.type === "budget/alert") return `${Math.round(100 * event.data.share)}% used`;
  return event.type === "budget/exhausted" ? "exhausted" : event.data.kind;
}

function said(data) {
  if (data.limit === undefined) return "";
  const used = data.used === undefined ? "" : `${amount(data.dimension, data.used)} of `;
  return `${data.add ? `+${data.add}, limit now ` : used}${amount(data.dimension, data.limit)} ${data.dimension ?? ""}`;
}

const BY = ["key", "team", "org", "agent", "model", "session"];
const SPANS = [["", "ever"], [3600, "last hour"], [86400, "last day"], [7 * 86400, "last 7 days"], [30 * 86400, "last 30 days"]];

function spenders() {
  const by = h("select", { "aria-label": "Top spenders by" }, BY.map((one) => h("option", { value: one }, `by ${one}`)));
  const span = h("select", { "aria-label": "In which time" }, SPANS.map(([value, word]) => h("option", { value }, word)));
  const body = h("div", { class: "body" });
  const load = async () => {
    try {
      const rows = await get("spenders", { by: by.value, since: span.value, limit: 12 });
      const most = Math.max(...rows.map((row) => Number(row.cost_usd ?? 0)), 1e-12);
      put(body, rows.length ? h("table", { "aria-label": "Top spenders" }, h("tbody", {}, rows.map((row) => h("tr", {},
        h("td", { class: "name" }, by.value === "session" && row.name ? h("a", { class: "mono", href: `#/turns?session=${encodeURIComponent(row.name)}` }, short(row.name)) : line(row.name ?? "?", 50)),
        h("td", {}, h("div", { class: "bar", "aria-hidden": "true" }, h("i", { "width%": (100 * Number(row.cost_usd ?? 0)) / most }))),
        h("td", { class: "num" }, money(row.cost_usd, row.cost_quality), row.cost_quality === "unpriced" ? h("span", { class: "dim" }, " + unpriced") : null),
        h("td", { class: "num dim" }, many(row.turns, "turn")))))) : h("p", { class: "none" }, "Nothing spent in that time."));
    } catch (error) {
      put(body, failed(error));
    }
  };
  by.addEventListener("change", load);
  span.addEventListener("change", load);
  return { element: h("section", { class: "sheet", "aria-label": "Top spenders" }, h("header", {}, h("h2", {}, "Top spenders"), h("span", { class: "spring" }), by, span), body), load };
}

export function budgets(main) {
  const none = h("p", { class: "none" }, "Loading …");
  const quiet = h("p", { class: "none" }, "No alert.");
  const top = spenders();
  const waiting = held();
  const load = async () => {
    top.load();
    try {
      const [rows, alarms] = await Promise.all([get("budgets"), get("alerts", { limit: 300 })]);
      counters.set(rows);
      put(none, "No counter yet. Budgets stand in the configuration; each counts from the first request that it holds.");
      none.hidden = rows.length > 0;
      const done = alarms.filter((event) => !String(event.data.kind ?? "").startsWith("would_")).slice(0, 100);
      alerts.set(done);
      quiet.hidden = done.length > 0;
    } catch (error) {
      put(none, failed(error));
      none.hidden = false;
    }
  };
  const again = calmly(load, 900);
  const counters = table("Budgets", columns(again), { key: (one) => JSON.stringify([one.name, one.subject, one.dimension, one.window]) });
  const alerts = table("Alerts and orders", ALERTS, { key: (event) => String(event.seq) });
  put(main, h("div", { class: "head" }, h("h1", {}, "Budgets")),
    waiting.element,
    h("section", { class: "sheet", "aria-label": "Counters" }, counters.element, none),
    h("div", { class: "pair" }, top.element,
      h("section", { class: "sheet", "aria-label": "Alerts and orders" }, h("header", {}, h("h2", {}, "Alerts and orders")), alerts.element, quiet)));
  const off = follow((event) => {
    if (event.type === AGAIN || event.type.startsWith("budget/") || event.type === "intervention" || event.type === "step/attempt") again();
  });
  load();
  return () => {
    off();
    again.stop();
    waiting.stop();
  };
}
