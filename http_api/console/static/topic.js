// One topic: its partitions, its messages, its settings.

import { call, get, post, segment } from "./api.js";
import { historyCard } from "./history.js";
import { badge, bytes, card, compact, count, dialog, duration, field, fill, h, notice, perSecond, table, tile, tiles } from "./dom.js";
import { live } from "./live.js";
import * as messages from "./messages.js";

export const title = ({ topic }) => topic;

const MOST_OFFSETS = 500;
const TABS = [["", "Partitions"], ["messages", "Messages"], ["settings", "Settings"]];

export async function show(root, parameters, signal) {
  const { topic, tab = "" } = parameters;
  const place = h("div", {}), actions = h("div.actions", {}), note = h("p.quiet", {});
  fill(root, h("p.crumbs", {}, h("a", { href: "#/topics" }, "Topics"), " / ", topic),
    h("div.heading", {}, h("div", {}, h("h1", {}, topic), note), actions),
    h("div.tabbar", { role: "navigation", "aria-label": `Parts of topic ${topic}` }, TABS.map(([name, text]) => h("a", { href: `#/topics/${segment(topic)}${name ? "/" + name : ""}`, "aria-current": name === tab ? "page" : undefined }, text))), place);
  const described = await get(`/v1/topics/${segment(topic)}`, signal);
  fill(note, `id ${described.id} · ${described.partition_count} ${described.partition_count === 1 ? "partition" : "partitions"} · replication factor ${described.replication_factor} · ${described.configs["cleanup.policy"]}`);
  fill(actions, h("button", { type: "button", click: () => messages.produce(topic, described.partition_count) }, "Produce"),
    h("button.ghost", { type: "button", click: () => grow(described) }, "Add partitions"),
    h("button.danger", { type: "button", click: () => remove(described) }, "Delete"));
  if (tab === "messages") await messages.show(place, { ...parameters, described }, signal);
  else if (tab === "settings") settings(place, described);
  else await partitions(place, described, signal);
}

// --- Partitions --------------------------------------------------------------------------------------------------

async function partitions(root, first, signal) {
  const path = `/v1/topics/${segment(first.name)}`;
  const figures = h("div", {}), map = h("div", {}), list = h("div", {}), plotted = h("div", {});
  fill(root, figures, plotted, card("Leaders", map), card("Partitions", list));
  fill(plotted, historyCard("Throughput and size", `topics/${segment(first.name)}`, [["Records per second", "records_per_second", perSecond], ["Size on the leaders' disks", "size_bytes", bytes]], signal));

  const ends = `${path}/offsets?isolation=read_uncommitted`, replicasHere = "/v1/replicas";
  await live.watch([path, ends, replicasHere], (described, read, replicas) => {
    const seen = described.partitions.slice(0, MOST_OFFSETS);
    const offsets = read?.partitions ?? [];
    const sizes = new Map((replicas?.replicas ?? []).filter((one) => one.topic === first.name).map((one) => [one.partition, one.size_bytes]));
    const known = offsets.filter((one) => one.latest !== null);
    const records = known.reduce((sum, one) => sum + one.latest - one.earliest, 0);
    const size = sizes.size ? Array.from(sizes.values()).reduce((sum, one) => sum + one, 0) : null;
    const thin = described.partitions.filter((one) => one.isr.length < one.replicas.length - one.adding_replicas.length).length;
    const offline = described.partitions.filter((one) => one.leader === null).length;
    fill(figures, tiles(
      tile(described.partition_count > MOST_OFFSETS ? `Records in ${MOST_OFFSETS} partitions` : "Records", compact(records), "between first and last offset"),
      tile("On this node's disk", bytes(size), sizes.size ? `${sizes.size} ${sizes.size === 1 ? "replica" : "replicas"}` : "no replica here"),
      tile("Without a leader", offline, offline ? "unavailable" : "all available", offline ? "bad" : "good"),
      tile("Under-replicated", thin, thin ? "replicas are missing" : "all in sync", thin ? "warn" : "good"),
      tile("Retention", first.configs["retention.ms"] === "-1" ? "no limit" : duration(Number(first.configs["retention.ms"])), first.configs["retention.bytes"] === "-1" ? "any size" : bytes(Number(first.configs["retention.bytes"])))));
    const leaders = [...new Set(described.partitions.map((one) => one.leader))].filter((one) => one !== null).sort((one, other) => one - other);
    fill(map, h("div.map", { role: "img", "aria-label": `Leaders: ${leaders.map((id) => `node ${id} leads ${described.partitions.filter((one) => one.leader === id).length}`).join(", ")}` }, described.partitions.slice(0, 1000).map((one) =>
      h(`span.cell.${one.leader === null ? "none" : `n${one.leader % 6}`}${one.isr.length < one.replicas.length ? ".thin" : ""}`, { title: `partition ${one.partition}: leader ${one.leader ?? "none"}, in sync ${one.isr.join(", ")}` }, one.partition))),
      h("div.legend", {}, leaders.map((id) => h("span", {}, h(`span.cell.n${id % 6}`, {}), `node ${id}`)), thin ? h("span", {}, h("span.cell.thin", {}), "a replica is missing") : null));
    fill(list, table(`Partitions of ${first.name}`, [
      { head: "Partition", number: true, cell: (one) => h("a", { href: `#/topics/${segment(first.name)}/messages/${one.partition}`, "aria-label": `Messages of partition ${one.partition}` }, one.partition) },
      { head: "Leader", cell: (one) => (one.leader === null ? badge("bad", "none") : `node ${one.leader}`) },
      { head: "Epoch", number: true, cell: (one) => one.leader_epoch },
      { head: "Replicas", cell: (one) => one.replicas.map((id) => badge(one.isr.includes(id) ? "good" : one.adding_replicas.includes(id) ? "accent" : "warn", id, one.isr.includes(id) ? "in sync" : one.adding_replicas.includes(id) ? "being added" : "not in sync")) },
      { head: "In sync", number: true, cell: (one) => h("span", {}, `${one.isr.length} / ${one.replicas.length}`) },
      { head: "First offset", number: true, cell: (one) => count(offsets[one.partition]?.earliest) },
      { head: "High watermark", number: true, cell: (one) => count(offsets[one.partition]?.latest) },
      { head: "Size here", number: true, cell: (one) => bytes(sizes.get(one.partition)) },
      { head: "", cell: (one) => h("a", { href: `#/explain/topics/${segment(first.name)}/${one.partition}`, "aria-label": `Explain partition ${one.partition}` }, "Explain") },
    ], seen), described.partitions.length > MOST_OFFSETS ? h("p.quiet", {}, `The first ${MOST_OFFSETS} of ${described.partitions.length} partitions.`) : null);
  }, signal, { optional: [ends, replicasHere] });
}

function grow(described) {
  const number = h("input", { type: "number", min: described.partition_count + 1, value: String(described.partition_count + 1), required: true });
  const message = h("p", { role: "alert" });
  const shown = dialog(`Add partitions to ${described.name}`, h("form", { submit: async (event) => {
    event.preventDefault();
    try {
      await post(`/v1/topics/${segment(described.name)}/partitions`, { count: Number(number.value) });
      shown.close();
      notice(`${described.name} has ${number.value} partitions now.`);
      dispatchEvent(new HashChangeEvent("hashchange"));
    } catch (error) { fill(message, error.message); }
  } }, h("p.quiet", {}, "Partitions cannot be removed. Keys are spread over the new number, so later records of a key may go to another partition."), field("Partitions in total", number), message, h("button", { type: "submit" }, "Add")));
}

function remove(described) {
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const message = h("p", { role: "alert" });
  const shown = dialog(`Delete ${described.name}?`, h("form", { submit: async (event) => {
    event.preventDefault();
    if (name.value !== described.name) { fill(message, "That is another name."); return; }
    try {
      await call("DELETE", `/v1/topics/${segment(described.name)}?topic_id=${described.id}`);
      shown.close();
      notice(`${described.name} has been deleted.`);
      location.hash = "#/topics";
    } catch (error) { fill(message, error.message); }
  } }, h("p", {}, "All of its records are deleted on every node. This cannot be undone."), field("Type the topic's name", name), message, h("button.danger", { type: "submit" }, "Delete the topic")));
}

// --- Settings ----------------------------------------------------------------------------------------------------

function settings(root, described) {
  const overridden = new Set(described.overrides ?? []);
  const names = Object.keys(described.configs).sort();
  const inputs = new Map(), resets = new Map();
  const review = h("button", { type: "submit" }, "Review the change");
  const rows = table(`Settings of ${described.name}`, [
    { head: "Setting", cell: (name) => h("code", {}, name) },
    { head: "Value", cell: (name) => { const input = h("input", { "aria-label": name, value: described.configs[name], spellcheck: "false", autocomplete: "off" }); inputs.set(name, input); return input; } },
    { head: "Meaning", cell: (name) => h("span.quiet", {}, meaning(name, described.configs[name])) },
    { head: "From", cell: (name) => {
      if (!overridden.has(name)) return badge("plain", "default");
      const reset = h("input", { type: "checkbox" });
      resets.set(name, reset);
      return h("span", {}, badge("accent", "this topic"), h("label.toggle", {}, reset, "reset"));
    } },
  ], names);
  fill(root, h("form.card", { submit: (event) => {
    event.preventDefault();
    const changed = {}, removed = [];
    for (const name of names) {
      if (resets.get(name)?.checked) removed.push(name);
      else if (inputs.get(name).value !== described.configs[name]) changed[name] = inputs.get(name).value;
    }
    plan(described, changed, removed);
  } }, h("h2", {}, "Settings in effect"), h("div.stack", {}, rows), h("p", {}, review)));
}

function meaning(name, value) {
  const number = Number(value);
  if (name.endsWith(".ms") && number >= 0) return number > 4e18 ? "no limit" : duration(number);
  if (name.endsWith(".bytes") && number > 0) return bytes(number);
  return value === "-1" ? "no limit" : "";
}

function plan(described, changed, removed) {
  const rows = [...Object.entries(changed).map(([name, value]) => ({ name, before: described.configs[name], after: value })), ...removed.map((name) => ({ name, before: described.configs[name], after: "the default" }))];
  if (!rows.length) { notice("Nothing would change.", "bad"); return; }
  const message = h("p", { role: "alert" });
  const shown = dialog("Change these settings?", table("Planned changes", [
    { head: "Setting", cell: (row) => h("code", {}, row.name) },
    { head: "Now", cell: (row) => h("span.mono", {}, row.before, " ", h("span.quiet", {}, meaning(row.name, row.before))) },
    { head: "Then", cell: (row) => h("strong.mono", {}, row.after, " ", h("span.quiet", {}, meaning(row.name, row.after))) },
  ], rows), h("p.quiet", {}, `Every replica of ${described.name} uses the new values within seconds, without a restart.`), message,
  h("button", { type: "button", click: async () => {
    try {
      await call("PATCH", `/v1/topics/${segment(described.name)}`, { body: { set: changed, remove: removed } });
      shown.close();
      notice("The settings have been changed.");
      dispatchEvent(new HashChangeEvent("hashchange"));
    } catch (error) { fill(message, error.message); }
  } }, "Apply"));
}
