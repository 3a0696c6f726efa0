// All sessions, newest first: each is one run of one client.

import { h, line, put } from "./dom.js";
import { filters } from "./filters.js";
import { list } from "./list.js";
import { labels, since } from "./marks.js";
import { table } from "./table.js";
import { count, duration, money, share, short, time } from "./words.js";

const NAMES = ["agent", "key", "label"];
const address = (session) => `#/turns?session=${encodeURIComponent(session.id)}`;

const COLUMNS = [
  ["Started", (one) => since(one.started_at)],
  ["Session", (one) => h("a", { href: address(one), class: "mono" }, short(one.id))],
  ["Client", (one) => line(one.client ?? "?", 40), "name"],
  ["Turns", (one) => count(one.turns), "num"],
  ["Threads", (one) => count(one.threads), "num"],
  ["Steps", (one) => count(one.steps), "num"],
  ["Lasted", (one) => duration(time(one.ended_at) - time(one.started_at)), "num"],
  ["Input", (one) => count(one.usage.input_tokens), "num"],
  ["Cached", (one) => share(one.usage.cache_read_tokens, one.usage.input_tokens), "num"],
  ["Output", (one) => count(one.usage.output_tokens), "num"],
  ["Cost", (one) => money(one.cost_usd, one.cost_quality), "num"],
  ["Findings", (one) => (one.findings ? h("span", { class: "badge warn" }, count(one.findings)) : ""), "num"],
  ["Key and labels", (one) => [one.key && one.key !== "unnamed" ? h("span", { class: "tag inline" }, line(one.key, 40)) : null, labels(one.labels)], "name"],
];

export function sessions(main, facts) {
  const chosen = Object.fromEntries(NAMES.filter((name) => facts[name]).map((name) => [name, facts[name]]));
  const rows = table("Sessions", COLUMNS, { key: (one) => one.id, go: address });
  const shown = list("sessions", chosen, rows, {
    touches: (event) => event.session !== undefined,
    empty: Object.keys(chosen).length ? "No session fits these filters." : "No session yet.",
  });
  put(main, h("div", { class: "head" }, h("h1", {}, "Sessions")),
    h("section", { class: "sheet" }, filters("sessions", NAMES, chosen), shown.element));
  return shown.stop;
}
