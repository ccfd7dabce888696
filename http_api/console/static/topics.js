// The list of topics, and the form for a new one.

import { post, segment } from "./api.js";
import { compact, dialog, field, fill, h, notice, select, table, topicLink } from "./dom.js";
import { live } from "./live.js";

export const title = () => "Topics";

const MOST_SHOWN = 500;

export async function show(root, parameters, signal) {
  const search = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter topics by name", input: () => draw() });
  const list = h("div.card", {}), note = h("p.quiet", { role: "status" });
  let topics = [];
  fill(root, h("div.heading", {}, h("div", {}, h("h1", {}, "Topics"), note), h("div.actions", {}, search, h("button", { type: "button", click: create }, "New topic"))), list);

  function draw() {
    const wanted = search.value.trim().toLowerCase();
    const found = topics.filter((one) => one.name.toLowerCase().includes(wanted));
    fill(note, wanted ? `${found.length} of ${topics.length}` : `${topics.length} ${topics.length === 1 ? "topic" : "topics"}`, found.length > MOST_SHOWN ? `, the first ${MOST_SHOWN} are shown` : "");
    fill(list, table("Topics", [
      { head: "Name", cell: (one) => topicLink(one.name) },
      { head: "Partitions", number: true, cell: (one) => compact(one.partition_count) },
      { head: "Replication factor", number: true, cell: (one) => one.replication_factor },
      { head: "", cell: (one) => h("span", {}, h("a", { href: `#/topics/${segment(one.name)}/messages`, "aria-label": `Messages of ${one.name}` }, "Messages")) },
    ], found.slice(0, MOST_SHOWN), { empty: topics.length ? "No topic has a name like that." : "There is no topic yet, or none that you may see.", open: (one) => { location.hash = `#/topics/${segment(one.name)}`; } }));
  }

  await live.watch(["/v1/topics"], (found) => { topics = found.topics; draw(); }, signal);
}

function create() {
  const name = h("input", { required: true, maxlength: 249, pattern: "[A-Za-z0-9._\\-]+", autocomplete: "off", spellcheck: "false" });
  const partitions = h("input", { type: "number", min: 1, value: "3", required: true });
  const factor = h("input", { type: "number", min: 1, max: 32, placeholder: "default" });
  const policy = select([["delete", "delete: old records end with retention"], ["compact", "compact: the last record of each key stays"], ["compact,delete", "compact,delete: both"]], "delete");
  const message = h("p", { role: "alert" });
  const shown = dialog("New topic", h("form", { submit: async (event) => {
    event.preventDefault();
    const body = { name: name.value, partitions: Number(partitions.value), configs: policy.value === "delete" ? {} : { "cleanup.policy": policy.value } };
    if (factor.value) body.replication_factor = Number(factor.value);
    try {
      await post("/v1/topics", body);
      shown.close();
      notice(`The topic ${name.value} has been created.`);
      location.hash = `#/topics/${segment(name.value)}`;
    } catch (error) { fill(message, error.message); }
  } }, field("Name", name, "letters, digits, dot, underscore and hyphen"), h("div.row", {}, field("Partitions", partitions), field("Replication factor", factor)), field("Cleanup policy", policy), message, h("button", { type: "submit" }, "Create topic")));
  name.focus();
}
