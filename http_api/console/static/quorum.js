// The metadata quorum: term, voters, and which of them are behind.

import { badge, card, count, fill, h, table, tile, tiles } from "./dom.js";
import { live } from "./live.js";

export const title = () => "Quorum";

export async function show(root, parameters, signal) {
  const figures = h("div", {}), list = h("div", {}), forgetful = h("div", {});
  fill(root, h("div.heading", {}, h("div", {}, h("h1", {}, "Metadata quorum"), h("p.quiet", {}, "The voters agree on topics, leaders, groups, users and transactions by Raft. A majority of them must be alive."))), figures, forgetful, card("Voters and observers", list));
  await live.watch(["/v1/quorum", "/v1/cluster"], (quorum, cluster) => {
    const majority = Math.floor(quorum.voters.length / 2) + 1;
    fill(figures, tiles(
      tile("Leader", quorum.leader < 0 ? "none" : `node ${quorum.leader}`, quorum.leader < 0 ? "nothing can be changed" : "", quorum.leader < 0 ? "bad" : ""),
      tile("Term", count(quorum.term), "elections so far"),
      tile("Committed", count(quorum.commit_index), "index in the log"),
      tile("Applied", count(quorum.applied_index), quorum.applied_index < quorum.commit_index ? `${count(quorum.commit_index - quorum.applied_index)} behind` : "up to date"),
      tile("Failures survived", quorum.voters.length - majority, `${majority} of ${quorum.voters.length} voters are needed`)));
    fill(forgetful, quorum.forgetful.length ? h("div.problem", {}, h("strong", {}, "A disk lost acknowledged entries"), h("p", {}, `Node ${quorum.forgetful.join(", ")} takes no part any more and must be replaced.`)) : null);
    const nodes = new Map(cluster.nodes.map((node) => [node.id, node]));
    const ids = [...new Set([...quorum.voters, ...Object.keys(quorum.match_index).map(Number)])].sort((one, other) => one - other);
    fill(list, table("Voters and observers", [
      { head: "Node", cell: (id) => `node ${id}` },
      { head: "Role", cell: (id) => (id === quorum.leader ? badge("accent", "leader") : quorum.voters.includes(id) ? badge("plain", "voter") : badge("plain", "observer")) },
      { head: "Broker", cell: (id) => (nodes.has(id) ? (nodes.get(id).fenced ? badge("bad", "not alive") : badge("good", "alive")) : badge("warn", "unknown")) },
      { head: "Log matches up to", number: true, cell: (id) => count(quorum.match_index[id]) },
      { head: "Behind", number: true, cell: (id) => { const at = quorum.match_index[id]; return at === undefined ? "–" : at >= quorum.commit_index ? badge("good", "0") : badge("warn", count(quorum.commit_index - at)); } },
      { head: "Address", cell: (id) => h("span.mono", {}, nodes.get(id)?.data ?? "–") },
    ], ids), h("p.quiet", {}, `As node ${quorum.node_id} sees it${Object.keys(quorum.match_index).length ? "" : "; only the leader knows how far the others are"}.`));
  }, signal);
}
