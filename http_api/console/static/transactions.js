// Transactions in progress.

import { segment } from "./api.js";
import { badge, card, count, duration, fill, h, link, table, tile, tiles, when } from "./dom.js";
import { live } from "./live.js";

export const title = () => "Transactions";

const OLD_MS = 60000;

export async function show(root, parameters, signal) {
  const figures = h("div", {}), list = h("div", {});
  fill(root, h("div.heading", {}, h("div", {}, h("h1", {}, "Transactions"), h("p.quiet", {}, "In progress, as far as this node knows: open ones of the partitions that it leads, and decided ones whose markers are on their way."))), figures, card("In progress", list));
  await live.watch(["/v1/transactions"], ({ transactions }) => {
    const oldest = Math.max(0, ...transactions.map((one) => one.duration_ms ?? 0));
    fill(figures, tiles(tile("In progress", count(transactions.length)), tile("Oldest", transactions.length ? duration(oldest) : "–", oldest > OLD_MS ? "holds read_committed consumers back" : "", oldest > OLD_MS ? "warn" : ""), tile("With a name", transactions.filter((one) => one.transactional_id !== null).length)));
    fill(list, table("Transactions in progress", [
      { head: "Transactional id", cell: (one) => (one.transactional_id === null ? h("span.quiet", {}, "none") : link(`explain/transactions/${segment(one.transactional_id)}`, one.transactional_id)) },
      { head: "Producer", number: true, cell: (one) => `${one.producer_id} : ${one.producer_epoch}` },
      { head: "State", cell: (one) => badge(one.state === "Ongoing" ? "accent" : "warn", one.state) },
      { head: "Since", cell: (one) => (one.started_ms === null ? "–" : when(one.started_ms).slice(0, 19)) },
      { head: "Age", number: true, cell: (one) => h(one.duration_ms > OLD_MS ? "strong" : "span", {}, duration(one.duration_ms)) },
      { head: "Timeout", number: true, cell: (one) => duration(one.timeout_ms) },
      { head: "Partitions", cell: (one) => h("span", {}, one.partitions.slice(0, 12).map((of) => [link(`explain/topics/${segment(of.topic)}/${of.partition}`, `${of.topic}/${of.partition}`), `${of.first_offset === null ? "" : ` from ${of.first_offset}`} `]), one.partitions.length > 12 ? `and ${one.partitions.length - 12} more` : null) },
    ], transactions.slice(0, 200), { empty: "No transaction is in progress." }));
  }, signal);
}
