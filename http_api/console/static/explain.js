// Why a partition, a consumer group or a transaction is in its state: findings, timeline, replicas, consequences.

import { get, segment } from "./api.js";
import { add, badge, card, count, field, fill, h, link, table, when } from "./dom.js";
import { changes } from "./timeline.js";

const KINDS = {
  topics: { what: "Partition", path: ({ name, partition }) => `topics/${segment(name)}/partitions/${partition}`, subject: ({ name, partition }) => `${name}/${partition}`, back: ({ name }) => [link("topics", "Topics"), " / ", link(`topics/${segment(name)}`, name)] },
  groups: { what: "Group", path: ({ name }) => `groups/${segment(name)}`, subject: ({ name }) => name, back: ({ name }) => [link("groups", "Groups"), " / ", link(`groups/${segment(name)}`, name)] },
  transactions: { what: "Transaction", path: ({ name }) => `transactions/${segment(name)}`, subject: ({ name }) => name, back: () => [link("transactions", "Transactions")] },
};
const KIND_OF = { critical: "bad", warning: "warn", info: "good" };
const PLACES = { fsynced: "good", written: "warn", absent: "bad", deleted: "plain", unknown: "warn" };

export const title = (parameters) => `Explain ${KINDS[parameters.kind].subject(parameters)}`;

export async function show(root, parameters, signal) {
  const { kind, query } = parameters;
  const { what, path, subject, back } = KINDS[kind];
  const offset = h("input", { type: "number", min: 0, placeholder: "optional", value: query.get("offset") ?? "" });
  const principal = h("input", { placeholder: "optional: User:alice", autocomplete: "off", spellcheck: "false", value: query.get("principal") ?? "" });
  const place = h("div", { "aria-live": "polite" }), message = h("p", { role: "alert" }), note = h("p.quiet", {}, "Asking the nodes…");
  let asking = null;

  fill(root, h("p.crumbs", {}, back(parameters), " / explain"),
    h("div.heading", {}, h("div", {}, h("h1", {}, `${what} ${subject(parameters)}`), note)),
    kind === "transactions" ? h("p", {}, h("button.ghost", { type: "button", click: ask }, "Ask again")) : h("form.card", { submit: (event) => { event.preventDefault(); ask(); } }, h("div.row", {},
      kind === "topics" ? field("Record at offset", offset) : null,
      field("May this principal use it?", principal),
      h("button", { type: "submit" }, "Explain"))),
    message, place);

  async function ask() {
    asking?.abort();
    const ending = (asking = new AbortController());
    signal.addEventListener("abort", () => ending.abort());
    const asked = new URLSearchParams();
    if (kind === "topics" && offset.value !== "") asked.set("offset", offset.value);
    if (principal.value) asked.set("principal", principal.value);
    const text = asked.toString();
    fill(message);
    try {
      const found = await get(`/v1/explain/${path(parameters)}${text ? "?" + text : ""}`, ending.signal);
      fill(note, found.state);
      draw(place, found);
    } catch (error) {
      if (ending.signal.aborted) return;
      fill(note);
      place.replaceChildren();
      fill(message, error.message);
    }
  }
  await ask();
}

function draw(place, found) {
  fill(place,
    found.findings.map(finding),
    found.record ? record(found.record) : null,
    found.replicas.length ? card("Replicas", table("Replicas", [
      { head: "Node", cell: (one) => `node ${one.node}` },
      { head: "Role", cell: (one) => badge(one.role === "leader" ? "accent" : one.role === "offline" || one.role === "absent" ? "bad" : one.role === "unknown" ? "warn" : "plain", one.role) },
      { head: "In sync", cell: (one) => (one.in_sync ? badge("good", "in sync") : badge("warn", "not in sync")) },
      { head: "May lead", cell: (one) => (one.eligible ? "yes" : badge("warn", "no")) },
      { head: "Fsynced up to", number: true, cell: (one) => count(one.stable_end_offset) },
      { head: "Log", number: true, cell: (one) => `${count(one.log_start_offset)} – ${count(one.log_end_offset)}` },
      { head: "Lag", number: true, cell: (one) => count(one.lag_records) },
      { head: "", cell: (one) => h("span.quiet.detail", {}, one.detail) },
    ], found.replicas)) : null,
    found.consequences.length ? card("If a node stopped now", table("Consequences", [
      { head: "Node", cell: (one) => h("span", {}, `node ${one.node} `, badge(KIND_OF[one.severity], one.severity === "info" ? "no harm" : one.severity)) },
      { head: "Writes", cell: (one) => h("span.detail", {}, one.writes) },
      { head: "Reads", cell: (one) => h("span.detail", {}, one.reads) },
      { head: "Records", cell: (one) => h("span.detail", {}, one.records) },
      { head: "Metadata", cell: (one) => h("span.detail", {}, one.metadata || h("span.quiet", {}, "no voter")) },
    ], found.consequences)) : null,
    Object.keys(found.unanswered).length ? card("No answer from", h("ul.problems", {}, Object.entries(found.unanswered).map(([node, why]) => h("li", {}, h("span", {}, `node ${node}`, h("span.remedy", {}, why)))))) : null,
    found.timeline.length ? card("Timeline", changes(found.timeline.slice().reverse().map((one) => ({ ...one, severity: one.severity ?? "info" })))) : null,
    h("p.quiet", {}, `Collected by node ${found.node_id} at ${when(found.time_ms).slice(0, 19)}, metadata index ${count(found.metadata_index)}.`));
}

function finding(one) {
  const id = `finding-${(finding.count = (finding.count ?? 0) + 1)}`;
  return h(`section.finding.${KIND_OF[one.severity]}`, { "aria-labelledby": id },
    h("h2", { id }, one.severity === "info" ? null : badge(KIND_OF[one.severity], one.severity), one.summary),
    one.evidence.length ? h("ul.evidence", {}, one.evidence.map((line) => h("li", {}, line))) : null,
    one.remedies.length ? h("div.remedies", {}, h("h3", {}, one.remedies.length === 1 ? "Remedy" : "Remedies"), h("ul", {}, one.remedies.map((line) => h("li", {}, line)))) : null,
    h("p.quiet.code", {}, one.code));
}

function record(one) {
  const known = (value, yes, no) => (value === null ? badge("warn", "unknown") : value ? badge("good", yes) : badge("warn", no));
  const shown = card(`Record at offset ${one.offset}`,
    h("p", {}, known(one.committed, "committed", "not committed"), known(one.readable_committed, "below the last stable offset", "above the last stable offset")),
    table("Where it lies", [
      { head: "Node", cell: (place) => `node ${place.node}` },
      { head: "State", cell: (place) => badge(PLACES[place.state], place.state) },
      { head: "Leader epoch", number: true, cell: (place) => count(place.leader_epoch) },
      { head: "", cell: (place) => h("span.quiet.detail", {}, place.detail) },
    ], one.places));
  const times = [one.not_before_ms === null ? null : `appended after ${when(one.not_before_ms).slice(0, 19)}`, one.not_after_ms === null ? null : `fsynced by ${when(one.not_after_ms).slice(0, 19)} where it is fsynced now`].filter(Boolean);
  if (times.length) add(shown, [h("p.quiet", {}, times.join(", "))]);
  return shown;
}
