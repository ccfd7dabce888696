// Consumer groups: their members, lag by partition, and a reset whose plan is shown first.

import { call, post, segment } from "./api.js";
import { historyCard } from "./history.js";
import { live } from "./live.js";
import { badge, card, compact, count, dialog, duration, field, fill, h, link, notice, select, table, tile, tiles, topicLink, when } from "./dom.js";

export const title = ({ group }) => group ?? "Groups";

export async function show(root, { group }, signal) {
  if (group === undefined) await list(root, signal);
  else await one(root, group, signal);
}

const state = (name) => badge(name === "Stable" ? "good" : name === "Empty" || name === "Dead" ? "plain" : "warn", name);
const total = (offsets) => offsets.reduce((sum, row) => sum + (row.lag ?? 0), 0);

async function list(root, signal) {
  const search = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter groups by name", input: () => draw() });
  const place = h("div.card", {}), note = h("p.quiet", { role: "status" });
  let groups = [];
  fill(root, h("div.heading", {}, h("div", {}, h("h1", {}, "Consumer groups"), note), h("div.actions", {}, search)), place);
  function draw() {
    const found = groups.filter((row) => row.group.toLowerCase().includes(search.value.trim().toLowerCase()));
    fill(note, `${groups.length} ${groups.length === 1 ? "group" : "groups"}`);
    fill(place, table("Consumer groups", [
      { head: "Group", cell: (row) => link(`groups/${segment(row.group)}`, row.group) },
      { head: "State", cell: (row) => state(row.state) },
      { head: "Members", number: true, cell: (row) => compact(row.member_count) },
      { head: "Lag, records", number: true, cell: (row) => count(row.lag) },
      { head: "Assignor", cell: (row) => row.assignor || h("span.quiet", {}, "none") },
      { head: "", cell: (row) => h("a", { href: `#/explain/groups/${segment(row.group)}`, "aria-label": `Explain group ${row.group}` }, "Explain") },
    ], found.slice(0, 500), { empty: "There is no group yet, or none that you may see.", open: (row) => { location.hash = `#/groups/${segment(row.group)}`; } }));
  }
  await live.watch(["/v1/groups?lag=true"], (found) => { groups = found.groups; draw(); }, signal);
}

async function one(root, name, signal) {
  const path = `/v1/groups/${segment(name)}`;
  const figures = h("div", {}), members = h("div", {}), offsets = h("div", {}), note = h("p.quiet", {});
  fill(root, h("p.crumbs", {}, h("a", { href: "#/groups" }, "Groups"), " / ", name),
    h("div.heading", {}, h("div", {}, h("h1", {}, name), note), h("div.actions", {}, h("a.button.ghost", { href: `#/explain/groups/${segment(name)}` }, "Explain"), h("button", { type: "button", click: () => reset(name) }, "Reset offsets"), h("button.danger", { type: "button", click: () => remove(name) }, "Delete"))),
    figures, historyCard("Lag", `groups/${segment(name)}`, [["Lag in records, all partitions", "lag_records", (value) => compact(value === null ? null : Math.round(value))]], signal), card("Members", members), card("Offsets", offsets));
  await live.watch([path, `${path}/offsets?lag=true`], (described, read) => {
    const lag = total(read.offsets);
    fill(note, state(described.state), ` ${described.assignor ? `assignor ${described.assignor} · ` : ""}generation ${described.epoch}${described.coordinator === null ? "" : ` · coordinator node ${described.coordinator}`}`);
    const worst = read.offsets.reduce((found, row) => ((row.lag ?? -1) > (found?.lag ?? -1) ? row : found), null);
    fill(figures, tiles(tile("Lag", compact(lag), "records, all partitions", lag ? "" : "good"), tile("Members", described.members.length), tile("Partitions", read.offsets.length, (({ size }) => `${size} ${size === 1 ? "topic" : "topics"}`)(new Set(read.offsets.map((row) => row.topic)))), tile("Furthest behind", worst ? `${worst.topic}/${worst.partition}` : "–", worst ? `${count(worst.lag)} records` : "")));
    fill(members, table("Members", [
      { head: "Client", cell: (row) => row.client_id || h("span.quiet", {}, "unnamed") },
      { head: "Member", cell: (row) => h("span.clip.key.mono", { title: row.member_id }, row.member_id) },
      { head: "Static id", cell: (row) => row.instance_id || h("span.quiet", {}, "none") },
      { head: "Host", cell: (row) => h("span.mono", {}, row.host) },
      { head: "Session", cell: (row) => duration(row.session_timeout_ms) },
      { head: "Assigned", cell: (row) => row.assigned.map((of) => badge("accent", `${of.topic}: ${of.partitions.join(", ")}`)) },
      { head: "Must give up", cell: (row) => row.revoking.map((of) => badge("warn", `${of.topic}: ${of.partitions.join(", ")}`)) },
    ], described.members, { empty: "No member is in the group." }));
    fill(offsets, table("Offsets", [
      { head: "Topic", cell: (row) => topicLink(row.topic) },
      { head: "Partition", number: true, cell: (row) => row.partition },
      { head: "Committed", number: true, cell: (row) => count(row.offset) },
      { head: "End", number: true, cell: (row) => count(row.log_end_offset) },
      { head: "Lag", number: true, cell: (row) => h(row.lag ? "strong" : "span", {}, count(row.lag)) },
      { head: "Committed at", cell: (row) => (row.committed_at_ms === null ? "–" : when(row.committed_at_ms).slice(0, 19)) },
      { head: "", cell: (row) => h("a", { href: `#/explain/topics/${segment(row.topic)}/${row.partition}`, "aria-label": `Explain partition ${row.partition} of ${row.topic}` }, "Explain") },
      { head: "Owner", cell: (row) => (row.member_id ? h("span.clip.key.mono", { title: row.member_id }, row.member_id) : h("span.quiet", {}, "none")) },
    ], read.offsets, { empty: "The group has committed nothing." }));
  }, signal);
}

function reset(name) {
  const kinds = [["earliest", "the oldest record"], ["latest", "the end"], ["timestamp", "a time"], ["duration", "some time ago"], ["shift", "a number of records"], ["offset", "an offset"]];
  const value = h("div", {}), plan = h("div", {}), message = h("p", { role: "alert" });
  let input = null;
  const to = select(kinds, "earliest", drawValue);
  function drawValue() {
    plan.replaceChildren();
    const chosen = to.value;
    input = chosen === "timestamp" ? h("input", { type: "datetime-local", step: "1", required: true }) : chosen === "earliest" || chosen === "latest" ? null : h("input", { type: "number", value: "0", required: true });
    fill(value, input && field({ timestamp: "Local time", duration: "Minutes ago", shift: "Records forward; negative: back", offset: "Offset" }[chosen], input));
  }
  const wanted = () => (input === null ? {} : { value: to.value === "timestamp" ? new Date(input.value).getTime() : to.value === "duration" ? Number(input.value) * 60000 : Number(input.value) });
  const shown = dialog(`Reset the offsets of ${name}`, h("form", { submit: async (event) => {
    event.preventDefault();
    fill(message);
    try {
      const planned = await post(`/v1/groups/${segment(name)}/seek`, { to: to.value, ...wanted(), plan: true });
      fill(plan, h("h3", {}, "Plan"), table("Planned offsets", [
        { head: "Partition", cell: (row) => `${row.topic}/${row.partition}` },
        { head: "Now", number: true, cell: (row) => count(row.offset) },
        { head: "Then", number: true, cell: (row) => h("strong", {}, count(row.new_offset)) },
        { head: "Change", number: true, cell: (row) => (row.offset === null ? "new" : `${row.new_offset >= row.offset ? "+" : "−"}${count(Math.abs(row.new_offset - row.offset))}`) },
        { head: "Log", number: true, cell: (row) => `${count(row.log_start_offset)} – ${count(row.log_end_offset)}` },
      ], planned.offsets, { empty: "The group has committed nothing, so there is nothing to move." }),
      planned.offsets.length ? h("p", {}, h("button", { type: "button", click: () => apply(planned.offsets) }, "Apply this plan")) : null);
    } catch (error) { fill(message, error.message); }
  } }, h("div.row", {}, field("Move to", to), value, h("button.ghost", { type: "submit" }, "Show the plan")), message, plan));
  async function apply(rows) {
    try {
      await post(`/v1/groups/${segment(name)}/seek`, { to: "planned", planned: rows.map(({ topic, topic_id, partition, offset, new_offset }) => ({ topic, topic_id, partition, offset, new_offset })) });
      shown.close();
      notice("The offsets have been moved.");
    } catch (error) { fill(message, error.message); }
  }
  drawValue();
}

function remove(name) {
  const message = h("p", { role: "alert" });
  const shown = dialog(`Delete the group ${name}?`, h("p", {}, "Its committed offsets are deleted. A group with members is refused."), message, h("button.danger", { type: "button", click: async () => {
    try {
      await call("DELETE", `/v1/groups/${segment(name)}`);
      shown.close();
      notice(`${name} has been deleted.`);
      location.hash = "#/groups";
    } catch (error) { fill(message, error.message); }
  } }, "Delete the group"));
}
