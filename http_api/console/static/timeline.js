// The timeline of the cluster: elections, changes of in-sync replicas, and faults of nodes.

import { segment } from "./api.js";
import { badge, field, fill, h, link, select, when } from "./dom.js";
import { live } from "./live.js";

export const title = () => "Timeline";

const KINDS = [["", "All changes"], ["leader", "Elections"], ["isr", "In-sync replicas"], ["broker", "Nodes"], ["quorum", "Metadata quorum"], ["replicas", "Reassignments"]];
const SEVERITIES = [["", "All"], ["warning", "Warnings and worse"], ["critical", "Critical"]];
const MOST = 500;

/** Return changes as a list, the newest first. */
export function changes(list) {
  return h("ol.timeline", {}, list.map((one) =>
    h(`li${one.severity === "critical" ? ".bad" : one.severity === "warning" ? ".warn" : ""}`, {},
      typeof one.time_ms === "number" ? h("time", { datetime: new Date(one.time_ms).toISOString() }, when(one.time_ms)) : h("span.quiet", {}, "before anything that is remembered"),
      one.topic ? h("span", {}, link(`explain/topics/${segment(one.topic)}/${one.partition}`, `${one.topic}/${one.partition}`), " ") : null,
      one.severity === "critical" ? badge("bad", "critical") : one.severity === "warning" ? badge("warn", "warning") : null,
      h("span", {}, one.text))));
}

export async function show(root, { query }, signal) {
  const kind = select(KINDS, "", () => load());
  const severity = select(SEVERITIES, "", () => draw());
  const topic = h("input", { type: "search", placeholder: "all topics", autocomplete: "off", spellcheck: "false", value: query.get("topic") ?? "" });
  const list = h("section.card", { "aria-label": "Changes" }), note = h("p.quiet", { role: "status" });
  let found = { changes: [], more: false }, drawn = "";
  fill(root, h("div.heading", {}, h("div", {}, h("h1", {}, "Timeline"), h("p.quiet", {}, "Elections, changes of in-sync replicas, and faults, as this node saw the metadata quorum decide them."))),
    h("form.card", { submit: (event) => { event.preventDefault(); load(); } }, h("div.row", {}, field("Changes", kind), field("Severity", severity), field("Topic", topic), h("button.ghost", { type: "submit" }, "Show")), note), list);

  function draw() {
    const wanted = severity.value;
    const shown = found.changes.filter((one) => !wanted || one.severity === "critical" || one.severity === wanted);
    const key = JSON.stringify([wanted, found]);
    if (key === drawn) return;
    drawn = key;
    fill(note, `${shown.length} ${shown.length === 1 ? "change" : "changes"}${found.more ? `; the newest ${MOST} were looked at` : ""}`);
    fill(list, shown.length ? changes(shown) : h("p.empty", {}, "Nothing of this kind is remembered, or nothing that you may see."));
  }

  let watching = null;
  async function load() {
    watching?.abort();
    watching = new AbortController();
    signal.addEventListener("abort", () => watching.abort());
    const asked = new URLSearchParams({ limit: String(MOST) });
    if (kind.value) asked.set("kind", kind.value);
    if (topic.value.trim()) asked.set("topic", topic.value.trim());
    await live.watch([`/v1/timeline?${asked}`], (read) => { found = read; draw(); }, watching.signal);
  }
  await load();
}
