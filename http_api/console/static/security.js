// The caller, users with their tokens, access rules, and quotas.

import { call, get, post, segment } from "./api.js";
import { badge, card, count, dialog, field, fill, h, notice, select, table, when } from "./dom.js";

export const title = () => "Security";

const OPERATIONS = ["read", "write", "create", "delete", "alter", "describe", "alter_configs", "idempotent_write", "all"];
const KINDS = ["topic", "group", "transactional_id", "cluster"];

export async function show(root, parameters, signal) {
  const me = h("div", {}), users = h("div", {}), rules = h("div", {}), quotas = h("div", {}), check = h("div", {});
  fill(root, h("div.heading", {}, h("div", {}, h("h1", {}, "Security"), h("p.quiet", {}, "Users, their tokens, access rules and quotas. The cluster decides by the rules, not by this page."))), me, check, users, rules, quotas);
  const identity = await get("/v1/identity", signal);
  fill(me, card("You", h("p", {}, h("strong", {}, identity.principal), " ", identity.superuser ? badge("accent", "superuser") : null, identity.mechanism ? badge("plain", identity.mechanism.replace("_", " ")) : badge("warn", "without a credential"), identity.groups.map((one) => badge("plain", one))), h("p.quiet", {}, `from ${identity.host}`)));
  const hidden = (error) => { if (error.status === 403) return null; throw error; };
  const load = async () => {
    const [known, allowed, limits] = await Promise.all([get("/v1/users", signal), get("/v1/acls", signal), get("/v1/quotas", signal)].map((one) => one.catch(hidden)));
    if (known === null) { fill(users, card("Users", h("p.quiet", {}, "You may not describe the cluster, so its users, rules and quotas are not shown."))); return; }
    fill(users, card("Users", h("p", {}, h("button", { type: "button", click: () => addUser(load) }, "New user")), table("Users", [
      { head: "Name", cell: (one) => h("strong", {}, one.name) },
      { head: "", cell: (one) => (one.superuser ? badge("accent", "superuser") : null) },
      { head: "Password", cell: (one) => (one.has_password ? badge("good", "set") : h("span.quiet", {}, "none")) },
      { head: "Tokens", number: true, cell: (one) => count(one.tokens) },
      { head: "", cell: (one) => h("button.ghost", { type: "button", "aria-label": `Tokens of ${one.name}`, click: () => tokens(one.name) }, "Tokens") },
    ], known.users, { empty: "There is no user." })));
    fill(rules, card("Access rules", h("p", {}, h("button", { type: "button", click: () => addRule(load) }, "New rule")), table("Access rules", [
      { head: "Principal", cell: (one) => h("strong", {}, one.principal) },
      { head: "", cell: (one) => badge(one.permission === "allow" ? "good" : "bad", one.permission) },
      { head: "Operation", cell: (one) => one.operation },
      { head: "Resource", cell: (one) => h("span", {}, `${one.resource_type.replace("_", " ")} `, h("code", {}, one.name), one.pattern_type === "prefixed" ? " and longer names" : "") },
      { head: "Host", cell: (one) => one.host },
      { head: "", cell: (one) => h("button.ghost", { type: "button", "aria-label": `Remove the rule ${one.permission} ${one.operation} on ${one.name} for ${one.principal}`, click: () => removeRule(one, load) }, "Remove") },
    ], allowed?.acls ?? [], { empty: "There is no rule: only superusers may do anything." })));
    fill(quotas, card("Quotas", table("Quotas", [
      { head: "Of", cell: (one) => h("strong", {}, one.entity) },
      { head: "Limits", cell: (one) => Object.entries(one.limits).filter(([, limit]) => limit !== null).map(([name, limit]) => badge("plain", `${name.replaceAll("_", " ")}: ${count(limit)}`)) },
    ], limits?.quotas ?? [], { empty: "There is no quota." })));
    fill(check, checker());
  };
  await load();
}

function checker() {
  const principal = h("input", { required: true, placeholder: "User:alice", autocomplete: "off", spellcheck: "false" });
  const operation = select(OPERATIONS.slice(0, -1).map((one) => [one, one]), "read");
  const kind = select(KINDS.map((one) => [one, one.replace("_", " ")]), "topic");
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const answer = h("p", { role: "status" });
  return card("May somebody do something?", h("form", { submit: async (event) => {
    event.preventDefault();
    try {
      const found = await post("/v1/acls/check", { principal: principal.value, operation: operation.value, resource_type: kind.value, name: name.value });
      fill(answer, badge(found.allowed ? "good" : "bad", found.allowed ? "allowed" : "refused"), found.reason);
    } catch (error) { fill(answer, error.message); }
  } }, h("div.row", {}, field("Principal", principal), field("Operation", operation), field("Resource", kind), field("Name", name), h("button.ghost", { type: "submit" }, "Check")), answer));
}

function addUser(reload) {
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const password = h("input", { type: "password", autocomplete: "new-password" });
  const superuser = h("input", { type: "checkbox" });
  const message = h("p", { role: "alert" });
  const shown = dialog("New user", h("form", { submit: async (event) => {
    event.preventDefault();
    try {
      await post("/v1/users", { name: name.value, superuser: superuser.checked, ...(password.value ? { password: password.value } : {}) });
      shown.close();
      notice(`The user ${name.value} has been created.`);
      await reload();
    } catch (error) { fill(message, error.message); }
  } }, field("Name", name), field("Password", password, "empty: the user signs in by tokens only"), h("p", {}, h("label.toggle", {}, superuser, "superuser: may do everything")), message, h("button", { type: "submit" }, "Create")));
}

function addRule(reload) {
  const principal = h("input", { required: true, placeholder: "User:alice", autocomplete: "off", spellcheck: "false" });
  const permission = select([["allow", "allow"], ["deny", "deny"]], "allow");
  const operation = select(OPERATIONS.map((one) => [one, one]), "read");
  const kind = select(KINDS.map((one) => [one, one.replace("_", " ")]), "topic");
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const pattern = select([["literal", "exactly this name"], ["prefixed", "all names that begin so"]], "literal");
  const message = h("p", { role: "alert" });
  const shown = dialog("New rule", h("form", { submit: async (event) => {
    event.preventDefault();
    try {
      await post("/v1/acls", { acls: [{ principal: principal.value, permission: permission.value, operation: operation.value, resource_type: kind.value, name: name.value, pattern_type: pattern.value }] });
      shown.close();
      notice("The rule has been added.");
      await reload();
    } catch (error) { fill(message, error.message); }
  } }, h("div.row", {}, field("Principal", principal), field("Permission", permission), field("Operation", operation)), h("div.row", {}, field("Resource", kind), field("Name", name, "* for all; raftlog-cluster for the cluster"), field("Matches", pattern)), message, h("button", { type: "submit" }, "Add the rule")));
}

function removeRule(rule, reload) {
  const message = h("p", { role: "alert" });
  const shown = dialog("Remove this rule?", h("p", {}, `${rule.permission} ${rule.principal} to ${rule.operation} on ${rule.resource_type.replace("_", " ")} ${rule.name}`), message, h("button.danger", { type: "button", click: async () => {
    try {
      await post("/v1/acls/delete", rule);
      shown.close();
      notice("The rule has been removed.");
      await reload();
    } catch (error) { fill(message, error.message); }
  } }, "Remove"));
}

async function tokens(user) {
  const list = h("div", {}), made = h("div", { role: "status" });
  const description = h("input", { maxlength: 255, autocomplete: "off" });
  const days = h("input", { type: "number", min: 1, value: "90" });
  const load = async () => {
    const known = await get(`/v1/users/${segment(user)}/tokens`);
    fill(list, table("Tokens", [
      { head: "Token", cell: (one) => h("code", {}, one.id) },
      { head: "Description", cell: (one) => one.description },
      { head: "Valid until", cell: (one) => (one.expires_ms ? when(one.expires_ms).slice(0, 16) : "always") },
      { head: "", cell: (one) => h("button.danger", { type: "button", "aria-label": `Revoke the token ${one.id}`, click: async () => { await call("DELETE", `/v1/users/${segment(user)}/tokens/${segment(one.id)}`); await load(); } }, "Revoke") },
    ], known.tokens, { empty: "No tokens." }));
  };
  dialog(`Tokens of ${user}`, list, h("form", { submit: async (event) => {
    event.preventDefault();
    try {
      const token = await post(`/v1/users/${segment(user)}/tokens`, { description: description.value, ...(days.value ? { expires_in_ms: Number(days.value) * 86400000 } : {}) });
      fill(made, h("p", {}, "Copy the token now: it is shown only once."), h("pre", { tabindex: "0" }, token.token));
      await load();
    } catch (error) { fill(made, error.message); }
  } }, h("h3", {}, "New token"), h("div.row", {}, field("Description", description), field("Days", days, "empty: it does not expire"), h("button", { type: "submit" }, "Create")), made));
  await load();
}
