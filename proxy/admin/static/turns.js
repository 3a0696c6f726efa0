// All turns, newest first; what runs grows while one looks.

import { h, line, put } from "./dom.js";
import { filters } from "./filters.js";
import { held } from "./held.js";
import { list } from "./list.js";
import { cause, labels, since, turnLink } from "./marks.js";
import { table } from "./table.js";
import { count, duration, money, share, time } from "./words.js";

export const NAMES = ["agent", "model", "key", "label", "cause", "finding"];

const COLUMNS = [
  ["Started", (turn) => since(turn.started_at)],
  ["Turn", (turn) => turnLink(turn.id)],
  ["State", cause],
  ["Agent", (turn) => [line(turn.agent ?? "?", 40), turn.kind && turn.kind !== "main" ? h("span", { class: "dim" }, ` ${turn.kind}`) : null], "name"],
  ["Model", (turn) => line(turn.models.join(", ") || "?", 60), "name"],
  ["Steps", (turn) => count(turn.steps), "num"],
  ["Took", (turn) => duration(time(turn.ended_at) - time(turn.started_at)), "num"],
  ["Input", (turn) => count(turn.usage.input_tokens), "num"],
  ["Cached", (turn) => share(turn.usage.cache_read_tokens, turn.usage.input_tokens), "num"],
  ["Output", (turn) => count(turn.usage.output_tokens), "num"],
  ["Cost", (turn) => money(turn.cost_usd, turn.cost_quality), "num"],
  ["Findings", (turn) => (turn.findings ? h("span", { class: "badge warn" }, count(turn.findings)) : ""), "num"],
  ["Key and labels", (turn) => [turn.key && turn.key !== "unnamed" ? h("span", { class: "tag inline" }, line(turn.key, 40)) : null, labels(turn.labels)], "name"],
];

function turnsTable() {
  return table("Turns", COLUMNS, { key: (turn) => turn.id, go: (turn) => `#/turn/${encodeURIComponent(turn.id)}` });
}

export function turns(main, facts) {
  const chosen = Object.fromEntries([...NAMES, "session"].filter((name) => facts[name]).map((name) => [name, facts[name]]));
  const count = h("span", { class: "dim" });
  const shown = list("turns", chosen, turnsTable(), {
    touches: (event) => event.turn !== undefined,
    empty: Object.keys(chosen).length ? "No turn fits these filters." : "No turn yet. Point a client at the data port; its turns appear here by themselves.",
    said: (rows) => put(count, `${rows.filter((turn) => turn.open).length} open of ${rows.length} shown`),
  });
  const waiting = held();
  put(main, h("div", { class: "head" }, h("h1", {}, chosen.session ? `Turns of ${line(chosen.session, 24)}` : "Turns"), count),
    waiting.element,
    h("section", { class: "sheet" }, filters("turns", chosen.session ? [...NAMES, "session"] : NAMES, chosen), shown.element));
  return () => {
    shown.stop();
    waiting.stop();
  };
}
