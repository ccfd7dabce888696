// Elements, tables and numbers. Text reaches the page as text nodes only, so no byte of a record can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element. `tag` may carry classes (`div.card.wide`); functions among the properties are listeners. */
export function h(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else if (key === "value" || key === "checked") element[key] = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

/** Return a small stroked icon, hidden from screen readers. */
export function icon(path) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "icon");
  const drawn = document.createElementNS(SVG, "path");
  drawn.setAttribute("d", path);
  svg.append(drawn);
  return svg;
}

/** Return a table in a region that scrolls by keyboard too. `columns`: {head, cell(row), number, key}. */
export function table(label, columns, rows, { empty = "Nothing to show.", key, open } = {}) {
  if (!rows.length) return h("p.empty", {}, empty);
  const head = h("tr", {}, columns.map((one) => h(one.number ? "th.number" : "th", { scope: "col" }, one.head)));
  const body = rows.map((row) =>
    h("tr", { "data-key": key ? key(row) : undefined, class: open ? "opens" : undefined, click: open ? (event) => { if (!event.target.closest("a,button,input,select")) open(row); } : undefined },
      columns.map((one) => h(one.number ? "td.number" : "td", {}, one.cell(row)))));
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, h("table", {}, h("thead", {}, head), h("tbody", {}, body)));
}

export function badge(kind, text, title) {
  return h(`span.badge.${kind}`, { title }, text);
}

export function card(title, ...children) {
  const id = `card-${(card.count = (card.count ?? 0) + 1)}`;
  return h("section.card", { "aria-labelledby": id }, h("h2", { id }, title), children);
}

export function tile(label, value, note, kind = "") {
  return h(`div.tile${kind ? "." + kind : ""}`, {}, h("dt", {}, label), h("dd", {}, h("span.figure", {}, value), note ? h("span.note", {}, note) : null));
}

export function tiles(...children) {
  return h("dl.tiles", {}, children);
}

export function heading(title, note, ...actions) {
  return h("div.heading", {}, h("div", {}, h("h1", {}, title), note ? h("p.quiet", {}, note) : null), h("div.actions", {}, actions));
}

export function field(label, control, hint) {
  const id = `field-${(field.count = (field.count ?? 0) + 1)}`;
  control.id = id;
  const note = hint ? h("span.hint", { id: `${id}-hint` }, hint) : null;
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div.field", {}, h("label", { for: id }, label), control, note);
}

export function select(options, chosen, listener) {
  return h("select", { change: listener }, options.map(([value, text]) => h("option", { value, selected: String(value) === String(chosen) }, text)));
}

/** Open a modal dialog and return it; Escape and its Close button end it. */
export function dialog(title, ...children) {
  const id = `dialog-${(dialog.count = (dialog.count ?? 0) + 1)}`;
  const shown = h("dialog", { "aria-labelledby": id },
    h("div.heading", {}, h("h2", { id }, title), h("button.ghost", { type: "button", click: () => shown.close() }, "Close")), children);
  shown.addEventListener("close", () => shown.remove());
  document.body.append(shown);
  shown.showModal();
  return shown;
}

export function notice(text, kind = "good") {
  const place = document.getElementById("notices");
  const shown = h(`div.notice.${kind}`, {}, h("span", {}, text), h("button.ghost", { type: "button", "aria-label": "Dismiss", click: () => shown.remove() }, "×"));
  place.append(shown);
  while (place.childElementCount > 4) place.firstElementChild.remove();
  if (kind === "good") setTimeout(() => shown.remove(), 6000);
}

// --- Numbers -----------------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumFractionDigits: 1, notation: "compact" });

export const count = (number) => (number === null || number === undefined ? "–" : whole.format(number));
export const compact = (number) => (number === null || number === undefined ? "–" : Math.abs(number) < 10000 ? whole.format(number) : short.format(number));

export const perSecond = (number) => (number === null || number === undefined ? "–" : number < 10 ? String(Math.round(number * 10) / 10) : compact(Math.round(number)));

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(number) >= 1024 && unit < units.length - 1) { number /= 1024; unit += 1; }
  return `${unit && Math.abs(number) < 100 ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function when(ms) {
  if (!(ms >= 0) || ms > 8.64e15) return String(ms);
  const date = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export const link = (path, text, ...classes) => h(["a", ...classes].join("."), { href: `#/${path}` }, text);
export const topicLink = (name) => link(`topics/${encodeURIComponent(name)}`, name);
