// Orders: stop, yes and top-up, each asked for once more before it is sent.

import { post } from "./api.js";
import { ask, field } from "./dialogs.js";
import { h, line, tell } from "./dom.js";
import { amount } from "./words.js";

export function askStop(id, what, lift = false) {
  const words = lift
    ? "Its requests are let through again."
    : `Every later request of this ${what} is refused, on every instance. What is running now ends by itself. It can be lifted again.`;
  ask(`${lift ? "Let go on" : "Stop"} ${what} ${line(id, 40)}?`, h("p", {}, words), async () => {
    await post("stop", { id, lift });
    tell(lift ? "It may go on" : "Stopped");
  }, lift ? "Let go on" : "Stop it", !lift);
}

export function askAllow(wait, done) {
  const facts = wait.facts ?? {};
  const words = wait.adds === undefined
    ? "Just this request goes out, and whatever it is tried again."
    : `Its limit is raised: budget ${line(facts.budget, 40)} of ${line(facts.scope, 40)} ${line(facts.subject, 60)} by ${amount(facts.dimension, wait.adds)}, what this request needs.`;
  ask("Let this request go?", [h("p", {}, line(wait.says, 300)), h("p", {}, words)], async () => {
    await post("allow", { id: wait.id });
    tell("It may go out");
    done();
  }, "Yes, let it go");
}

export function askTopup(counter, done) {
  const unit = { spend_usd: "US dollars, as 2 or 0.50", wall_clock: "a duration, as 30m or 2h" }[counter.dimension] ?? `${counter.dimension}, a whole number`;
  ask(`More for budget ${line(counter.name, 40)}`, [
    h("p", {}, `${line(counter.scope, 40)} `, h("code", {}, line(counter.subject, 60)), `: ${amount(counter.dimension, counter.used)} of ${amount(counter.dimension, counter.limit)} used${counter.resets_at ? ` in this ${line(counter.window, 20)}` : ""}.`),
    field("add", `Raise the limit by (${unit})`, { required: true, autofocus: true, inputmode: "decimal" }),
  ], async (form) => {
    const made = await post("topup", { budget: counter.name, subject: counter.subject, dimension: counter.dimension, add: String(form.get("add")).trim() });
    tell(`The limit is now ${amount(made.dimension, made.limit)}${made.note ? `; ${line(made.note, 200)}` : ""}`);
    done();
  }, "Raise the limit");
}
