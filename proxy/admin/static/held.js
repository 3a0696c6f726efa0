// What waits for an operator: why, since when, and the two answers.

import { AGAIN, calmly, follow, get } from "./api.js";
import { h, line, put } from "./dom.js";
import { failed, since, whose } from "./marks.js";
import { askAllow, askStop } from "./orders.js";
import { table } from "./table.js";
import { amount } from "./words.js";

function why(one) {
  const facts = one.facts ?? {};
  if (!facts.budget) return [h("b", {}, line(one.policy, 40)), h("span", { class: "dim" }, ` ${line(one.says, 160)}`)];
  const used = facts.used === undefined ? "" : ` ${amount(facts.dimension, facts.used)} of ${amount(facts.dimension, facts.limit)}${facts.dimension === "spend_usd" ? "" : ` ${line(facts.dimension, 40).replaceAll("_", " ")}`}`;
  return [h("b", {}, line(facts.budget, 40)), h("span", { class: "dim" }, ` ${line(facts.scope, 40)}${used}${facts.needed === undefined ? "" : `, needs ${amount(facts.dimension, facts.needed)}`}`)];
}

function columns(again) {
  return [
    ["Waits", (one) => since(one.since)],
    ["Why", why, "name wide"],
    ["Turn", (one) => whose(one.turn), "name"],
    ["Agent", (one) => line(one.agent ?? "?", 40), "name"],
    ["Model", (one) => line(one.model ?? "?", 60), "name"],
    ["Until", (one) => line(new Date(one.until).toLocaleTimeString(), 20)],
    ["Yes", (one) => h("button", { type: "button", class: "main", onclick: () => askAllow(one, again) }, "Yes …")],
    ["No", (one) => h("button", { type: "button", class: "risky", onclick: () => askStop(one.turn, "turn") }, "No …")],
  ];
}

/** A sheet that shows itself while something waits; `stop` ends it. */
export function held() {
  const said = h("div");
  const sheet = h("section", { class: "sheet", "aria-label": "Waiting for an operator", hidden: true });
  const load = async () => {
    try {
      const rows = await get("held");
      waits.set(rows);
      put(said);
      sheet.hidden = rows.length === 0;
    } catch (error) {
      put(said, failed(error));
    }
  };
  const again = calmly(load, 500);
  const waits = table("Waiting for an operator", columns(again), { key: (one) => one.id });
  put(sheet, h("header", {}, h("h2", {}, "Waiting for an operator")), waits.element, said);
  const off = follow((event) => {
    if (event.type === AGAIN || event.type === "intervention" || event.type === "step/attempt") again();
  });
  load();
  return {
    element: sheet,
    stop: () => {
      off();
      again.stop();
    },
  };
}
