// The frame of the console: sign-in, pages, theme, keyboard.

import { Problem, basic, bearer, call, session } from "./api.js";
import { add, field, fill, h, icon, notice } from "./dom.js";
import { live } from "./live.js";
import * as overview from "./overview.js";
import * as topics from "./topics.js";
import * as topic from "./topic.js";
import * as groups from "./groups.js";
import * as transactions from "./transactions.js";
import * as quorum from "./quorum.js";
import * as security from "./security.js";
import * as explain from "./explain.js";
import * as timeline from "./timeline.js";
import * as audit from "./audit.js";

const NAVIGATION = [
  ["", "Overview", "M3 12 12 4l9 8M6 10v9h12v-9"],
  ["topics", "Topics", "M4 6h16M4 12h16M4 18h10"],
  ["groups", "Groups", "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM3 20c0-3 2-5 5-5s5 2 5 5M16 11a3 3 0 1 0 0-6M16 15c3 0 5 2 5 5"],
  ["transactions", "Transactions", "M4 8h14l-3-3M20 16H6l3 3"],
  ["quorum", "Quorum", "M12 4v5M12 9 6 18M12 9l6 9M12 4a1 1 0 1 0 0-.1M5 20h2M17 20h2"],
  ["timeline", "Timeline", "M12 3v18M12 7h7M12 13H5M12 18h5"],
  ["security", "Security", "M12 3 5 6v6c0 4 3 7 7 9 4-2 7-5 7-9V6z"],
  ["audit", "Audit", "M6 3h9l4 4v14H6zM9 9h4M9 13h7M9 17h7"],
];

const ROUTES = [
  [/^$/, overview, []],
  [/^topics$/, topics, []],
  [/^topics\/([^/]+)(?:\/([a-z]+))?(?:\/(\d+))?$/, topic, ["topic", "tab", "partition"]],
  [/^groups(?:\/([^/]+))?$/, groups, ["group"]],
  [/^transactions$/, transactions, []],
  [/^quorum$/, quorum, []],
  [/^security$/, security, []],
  [/^explain\/(topics)\/([^/]+)\/(\d+)$/, explain, ["kind", "name", "partition"]],
  [/^explain\/(groups|transactions)\/([^/]+)$/, explain, ["kind", "name"]],
  [/^timeline$/, timeline, []],
  [/^audit$/, audit, []],
];

const main = document.getElementById("main-content");
const navigation = document.getElementById("navigation");
const menu = document.getElementById("menu");
let ending = new AbortController();

// --- Theme -------------------------------------------------------------------------------------------------------

const THEME_ICONS = { system: "M4 5h16v11H4zM9 20h6M12 16v4", light: "M12 8a4 4 0 1 0 .1 0M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5 19 19M19 5l-1.5 1.5M6.5 17.5 5 19", dark: "M20 14A8 8 0 1 1 10 4a6.5 6.5 0 0 0 10 10Z" };
const themes = Object.keys(THEME_ICONS);
const themeButton = document.getElementById("theme");

function setTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("raftlog.theme", name);
  fill(themeButton, icon(THEME_ICONS[name]), h("span", {}, `Theme: ${name}`));
  dispatchEvent(new Event("raftlog:theme"));
}

const theme = () => themes.find((one) => one === localStorage.getItem("raftlog.theme")) ?? "system";
themeButton.addEventListener("click", () => setTheme(themes[(themes.indexOf(theme()) + 1) % themes.length]));

// --- Pages -------------------------------------------------------------------------------------------------------

function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { path, query: new URLSearchParams(query ?? "") };
}

function drawNavigation(path) {
  const first = path.split("/")[0];
  fill(navigation, h("ul", {}, NAVIGATION.map(([target, text, drawing]) =>
    h("li", {}, h("a", { href: `#/${target}`, "aria-current": first === target ? "page" : undefined }, icon(drawing), text)))));
  navigation.classList.remove("open");
  menu.setAttribute("aria-expanded", "false");
}

async function show() {
  ending.abort();
  ending = new AbortController();
  const { signal } = ending;
  for (const open of document.querySelectorAll("dialog")) open.close();
  const { path, query } = current();
  drawNavigation(path);
  const found = ROUTES.map(([pattern, page, names]) => [pattern.exec(path), page, names]).find(([match]) => match);
  const root = h("div", {});
  fill(main, root);
  if (!found) {
    add(root, [h("h1", {}, "No such page"), h("p", {}, h("a", { href: "#/" }, "Go to the overview"))]);
    return;
  }
  const [match, page, names] = found;
  let parameters;
  try {
    parameters = Object.fromEntries(names.map((name, at) => [name, match[at + 1] === undefined ? undefined : decodeURIComponent(match[at + 1])]));
  } catch {
    add(root, [h("h1", {}, "No such page")]);
    return;
  }
  document.title = `${page.title(parameters)} · raftlog`;
  try {
    await page.show(root, { ...parameters, query }, signal);
  } catch (error) {
    if (signal.aborted || error.status === 401) return;
    if (!(error instanceof Problem)) throw error;
    add(root, [problem(error)]);
  }
}

function problem(error) {
  return h("div.problem", { role: "alert" }, h("strong", {}, error.status === 403 ? "You may not see this" : "This could not be loaded"),
    h("p", {}, error.detail), h("p.quiet", {}, `${error.code}${error.document.request_id ? ` · request ${error.document.request_id}` : ""}`),
    h("button.ghost", { type: "button", click: show }, "Try again"));
}

// --- Sign-in -----------------------------------------------------------------------------------------------------

function signIn() {
  ending.abort();
  live.stop();
  ending = new AbortController();
  document.title = "Sign in · raftlog";
  navigation.replaceChildren();
  document.getElementById("who").replaceChildren();
  const token = h("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const name = h("input", { autocomplete: "username", spellcheck: "false" });
  const password = h("input", { type: "password", autocomplete: "current-password" });
  const message = h("p", { role: "alert" });
  const enter = async (event) => {
    event.preventDefault();
    if (!token.value && !name.value) { fill(message, "Give a token, or a name and a password."); return; }
    fill(message);
    session.authorization = token.value ? bearer(token.value) : basic(name.value, password.value);
    try {
      await start();
    } catch (error) {
      session.authorization = null;
      fill(message, error.status === 401 ? "The node does not accept this." : error.message);
    }
  };
  const withCertificate = async () => {
    session.authorization = null;
    session.certificate = true;
    try { await start(); } catch (error) { session.certificate = false; fill(message, error.status === 401 ? "The browser has presented no certificate of a user." : error.message); }
  };
  fill(main, h("form.card.sign-in", { submit: enter },
    h("h1", {}, "Sign in"),
    h("p.quiet", {}, "The credential stays in this tab: it is sent only to this node, and forgotten when the tab is closed."),
    message,
    field("Token", token, "rlt_… or an access token of your identity provider"),
    h("p.quiet", {}, "or"),
    field("Name", name), field("Password", password),
    h("button", { type: "submit" }, "Sign in"),
    h("p", {}, h("button.ghost", { type: "button", click: withCertificate }, "Use the browser's certificate"))));
  token.focus();
}

function drawUser(identity) {
  fill(document.getElementById("who"), identity.principal.replace(/^User:/, ""));
  const bar = document.querySelector(".bar");
  bar.querySelector(".sign-out")?.remove();
  if (identity.mechanism) {
    add(bar, [h("button.ghost.sign-out", { type: "button", click: () => { session.authorization = null; session.certificate = false; location.reload(); } }, "Sign out")]);
  }
}

async function start() {
  const identity = await call("GET", "/v1/identity");
  drawUser(identity);
  live.start();
  await show();
}

// --- Keyboard ----------------------------------------------------------------------------------------------------

const KEYS = { o: "", t: "topics", g: "groups", x: "transactions", q: "quorum", s: "security", l: "timeline", a: "audit" };
let going = false;
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,textarea,select,dialog")) return;
  if (event.key === "/") {
    const search = main.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); }
  } else if (going && event.key in KEYS) {
    location.hash = `#/${KEYS[event.key]}`;
    going = false;
  } else going = event.key === "g";
});

document.getElementById("skip-link").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
menu.addEventListener("click", () => menu.setAttribute("aria-expanded", String(navigation.classList.toggle("open"))));
addEventListener("hashchange", async () => { await show(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
addEventListener("raftlog:unauthenticated", () => { if (navigation.childElementCount) signIn(); });
addEventListener("unhandledrejection", (event) => { if (event.reason?.name !== "AbortError") notice(event.reason?.message ?? "An unexpected error", "bad"); });

setTheme(theme());
try {
  await start();
} catch (error) {
  if (error.status === 401) signIn();
  else fill(main, h("div.problem", { role: "alert" }, h("strong", {}, "The node does not answer"), h("p", {}, error.message), h("button.ghost", { type: "button", click: () => location.reload() }, "Try again")));
}
