// The message browser: by offset or time, decoded, filtered, live, and a form to produce one record.

import { get, post, segment } from "./api.js";
import { preview, raw, readings } from "./bytes.js";
import { badge, bytes, count, dialog, field, fill, h, notice, select, when } from "./dom.js";
import { live } from "./live.js";

const MOST_ROWS = 500;
const MOST_TOGETHER = 16;
const TAIL_PAUSE_MS = 100;

export async function show(root, { topic, partition, described }, signal) {
  const path = `/v1/topics/${segment(topic)}`;
  const numbers = described.partitions.map((one) => one.partition);
  const choices = [...(numbers.length <= MOST_TOGETHER ? [["all", "All partitions"]] : []), ...numbers.map((one) => [one, `Partition ${one}`])];
  const where = select(choices, partition ?? (numbers.length <= MOST_TOGETHER ? "all" : numbers[0]), () => load());
  const from = select([["newest", "Newest"], ["earliest", "Oldest"], ["offset", "Offset"], ["time", "Time"]], "newest", () => drawStart());
  const offset = h("input", { type: "number", min: 0, value: "0" });
  const time = h("input", { type: "datetime-local", step: "1" });
  const most = select([[20, "20"], [50, "50"], [100, "100"], [500, "500"]], 50, () => load());
  const filter = h("input", { type: "search", placeholder: "Text in key, value or headers", input: () => draw() });
  const isolation = select([["read_committed", "Committed"], ["read_uncommitted", "All up to the high watermark"]], "read_committed", () => load());
  const start = h("div", {}), status = h("p.quiet", { role: "status" }), list = h("div", {});
  const tailing = h("button.ghost", { type: "button", "aria-pressed": "false", click: () => (tail ? stopTail() : startTail()) }, "Follow live");
  let records = [], positions = new Map(), tail = null, loading = null, newerFirst = true;
  const opened = new Set();
  let open = new Map();

  const drawStart = () => fill(start, from.value === "offset" ? field("Offset", offset) : from.value === "time" ? field("Local time", time) : null);
  drawStart();
  fill(root, h("form.card", { submit: (event) => { event.preventDefault(); load(); } },
    h("div.row", {}, field("Partition", where), field("Start", from), start, field("Records", most), field("Isolation", isolation), h("button", { type: "submit" }, "Read"), tailing),
    h("div.row", {}, h("div.grow", {}, field("Filter", filter)))), h("section.card", { "aria-label": "Records" }, status, list));

  const chosen = () => (where.value === "all" ? numbers : [Number(where.value)]);

  async function page(number, at, limit, ending, wait = 0) {
    const query = new URLSearchParams({ offset: String(at), max_records: String(limit), value_format: "base64", key_format: "base64", isolation: isolation.value, max_wait_ms: String(wait) });
    const read = await get(`${path}/partitions/${number}/records?${query}`, ending);
    positions.set(number, read.next_offset);
    return read.records.map((one) => entry(number, one));
  }

  async function load() {
    stopTail();
    loading?.abort();
    const ending = (loading = new AbortController());
    signal.addEventListener("abort", () => ending.abort());
    const limit = Number(most.value);
    fill(status, "Reading…");
    newerFirst = from.value === "newest";
    try {
      const found = [];
      for (const number of chosen()) {
        let at = from.value === "offset" ? offset.value || "0" : from.value === "time" ? `@${Math.max(0, new Date(time.value || Date.now()).getTime())}` : "earliest";
        if (from.value === "newest") {
          const ends = await get(`${path}/partitions/${number}/offsets?isolation=${isolation.value}`, ending.signal);
          at = Math.max(ends.earliest, ends.latest - limit);
          positions.set(number, ends.latest);
          if (at >= ends.latest) continue;
        }
        found.push(...(await page(number, at, limit, ending.signal)));
      }
      found.sort((one, other) => one.timestamp - other.timestamp || one.partition - other.partition || one.offset - other.offset);
      records = newerFirst ? found.slice(-limit).reverse() : found.slice(0, limit);
      opened.clear();
      draw();
    } catch (error) {
      if (ending.signal.aborted) return;
      records = [];
      draw();
      fill(status, error.message);
    }
  }

  function draw() {
    const wanted = filter.value.toLowerCase();
    const found = wanted ? records.filter((one) => one.searched().includes(wanted)) : records;
    fill(status, `${count(found.length)}${wanted ? ` of ${count(records.length)}` : ""} ${found.length === 1 ? "record" : "records"}${newerFirst ? ", the newest first" : ""}`);
    if (!found.length) { fill(list, h("p.empty", {}, records.length ? "No record holds this text." : "No records here.")); return; }
    const previous = open;
    open = new Map();
    const body = h("tbody", {});
    for (const one of found.slice(0, MOST_ROWS)) {
      const detail = previous.get(one.id) ?? h("tr", { hidden: true });
      open.set(one.id, detail);
      const toggle = h("button.ghost", { type: "button", "aria-expanded": String(opened.has(one.id)), "aria-label": `Record ${one.offset} of partition ${one.partition}` }, opened.has(one.id) ? "−" : "+");
      const turn = () => {
        const shown = !opened.has(one.id);
        if (shown) opened.add(one.id); else opened.delete(one.id);
        if (shown && !detail.childElementCount) detail.append(h("td", { colspan: 6 }, recordOf(topic, one)));
        detail.hidden = !shown;
        toggle.setAttribute("aria-expanded", String(shown));
        toggle.textContent = shown ? "−" : "+";
      };
      toggle.addEventListener("click", turn);
      body.append(h("tr.opens", { click: (event) => { if (!event.target.closest("button")) turn(); } },
        h("td", {}, toggle), h("td.number", {}, one.partition), h("td.number", {}, one.offset), h("td.mono.time", {}, when(one.timestamp)),
        h("td", {}, one.key === null ? h("span.quiet", {}, "none") : h("span.clip.key.mono", {}, preview(one.key, 60))),
        h("td", {}, one.value === null ? badge("warn", "tombstone") : h("span.clip.mono", {}, preview(one.value)))), detail);
    }
    fill(list, h("div.scroll", { tabindex: "0", role: "region", "aria-label": `Records of ${topic}` }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span.visually-hidden", {}, "Details")), h("th.number", { scope: "col" }, "Partition"), h("th.number", { scope: "col" }, "Offset"), h("th", { scope: "col" }, "Time"), h("th", { scope: "col" }, "Key"), h("th", { scope: "col" }, "Value"))), body)));
  }

  function stopTail() {
    tail?.abort();
    tail = null;
    tailing.setAttribute("aria-pressed", "false");
    tailing.textContent = "Follow live";
  }

  async function startTail() {
    const ending = (tail = new AbortController());
    signal.addEventListener("abort", () => ending.abort());
    tailing.setAttribute("aria-pressed", "true");
    tailing.textContent = "Stop following";
    if (!newerFirst) { records = records.slice().reverse(); newerFirst = true; draw(); }
    try {
      for (const number of chosen()) {
        if (!positions.has(number)) positions.set(number, (await get(`${path}/partitions/${number}/offsets?isolation=${isolation.value}`, ending.signal)).latest);
      }
      if (chosen().length > 1) { await followAll(ending.signal); return; }
      const [number] = chosen();
      while (!ending.signal.aborted) {
        const found = await page(number, positions.get(number), 200, ending.signal, 10000);
        take(found);
        if (found.length) await new Promise((resolve) => setTimeout(resolve, TAIL_PAUSE_MS));
      }
    } catch (error) {
      if (ending.signal.aborted) return;
      stopTail();
      fill(status, error.message);
    }
  }

  function take(found) {
    if (!found.length) return;
    found.sort((one, other) => other.timestamp - one.timestamp || other.offset - one.offset);
    records = [...found, ...records].slice(0, MOST_ROWS);
    draw();
  }

  /** Follow all partitions by the page's one stream of events: it tells their ends, and only those that moved are read. */
  async function followAll(ending) {
    let ends = [], reading = false;
    const behind = () => ends.filter((one) => one.latest !== null && one.latest > positions.get(one.partition));
    const catchUp = async () => {
      if (reading) return;
      reading = true;
      try {
        for (let moved = true; moved && behind().length;) {
          moved = false;
          const found = [];
          for (const { partition: number } of behind()) {
            const before = positions.get(number);
            found.push(...(await page(number, before, 200, ending)));
            moved ||= positions.get(number) > before;
          }
          take(found);
        }
      } catch (error) {
        if (ending.aborted) return;
        stopTail();
        fill(status, error.message);
      } finally {
        reading = false;
      }
    };
    await live.watch([`${path}/offsets?isolation=${isolation.value}`], (read) => { ends = read?.partitions?.filter((one) => positions.has(one.partition)) ?? []; catchUp(); }, ending);
  }

  await load();
}

function entry(partition, one) {
  const record = { id: `${partition}/${one.offset}`, partition, offset: one.offset, timestamp: one.timestamp, key: raw(one.key), value: raw(one.value), headers: one.headers.map((header) => [header.key, raw(header.value)]) };
  record.searched = () => (record.found ??= [record.key, record.value, ...record.headers.map(([, value]) => value)].filter(Boolean).map((data) => readings(data)[0][1]).concat(record.headers.map(([name]) => name)).join("\n").toLowerCase());
  return record;
}

function recordOf(topic, one) {
  return h("div.record", {}, h("p.quiet", {}, `Partition ${one.partition}, offset ${one.offset}, ${when(one.timestamp)} (${one.timestamp}) `, h("a", { href: `#/explain/topics/${segment(topic)}/${one.partition}?offset=${one.offset}` }, "Where it lies")),
    h("h3", {}, "Value", one.value === null ? null : h("span.quiet", {}, ` ${bytes(one.value.length)}`)), one.value === null ? h("p.quiet", {}, "null: a tombstone, which deletes its key in a compacted topic") : reading(one.value, "Value"),
    one.key === null ? null : [h("h3", {}, "Key", h("span.quiet", {}, ` ${bytes(one.key.length)}`)), reading(one.key, "Key")],
    one.headers.length ? [h("h3", {}, "Headers"), h("table", {}, h("tbody", {}, one.headers.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td.mono", {}, value === null ? "null" : preview(value, 2000))))))] : null);
}

function reading(data, what) {
  const ways = readings(data);
  const shown = h("pre", { tabindex: "0", "aria-label": what });
  const buttons = ways.map(([name, decoded]) => h("button", { type: "button", "aria-pressed": "false", click: (event) => choose(event.currentTarget, decoded) }, name));
  function choose(button, decoded) {
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    shown.textContent = decoded.length > 200000 ? `${decoded.slice(0, 200000)}\n… ${decoded.length - 200000} characters more` : decoded;
  }
  choose(buttons[0], ways[0][1]);
  const copy = h("button", { type: "button", click: async () => { await navigator.clipboard.writeText(shown.textContent); notice("Copied."); } }, "Copy");
  return h("div", {}, h("div.tabs", {}, buttons, navigator.clipboard ? copy : null), shown);
}

/** Open the form that appends one record. */
export function produce(topic, partitions) {
  const key = h("input", { autocomplete: "off", spellcheck: "false" });
  const value = h("textarea", { spellcheck: "false" });
  const headers = h("textarea", { spellcheck: "false", placeholder: "name=value, one a line" });
  const partition = h("input", { type: "number", min: 0, max: partitions - 1, placeholder: "by key" });
  const tombstone = h("input", { type: "checkbox" });
  const message = h("p", { role: "alert" });
  const shown = dialog(`Produce one record to ${topic}`, h("form", { submit: async (event) => {
    event.preventDefault();
    const record = { value: tombstone.checked ? null : value.value };
    if (key.value) record.key = key.value;
    if (partition.value) record.partition = Number(partition.value);
    const lines = headers.value.split("\n").filter((line) => line.trim());
    if (lines.some((line) => !line.includes("="))) { fill(message, "A header is written name=value."); return; }
    if (lines.length) record.headers = lines.map((line) => ({ key: line.slice(0, line.indexOf("=")), value: line.slice(line.indexOf("=") + 1) }));
    try {
      const answer = await post(`/v1/topics/${segment(topic)}/records`, { records: [record] });
      const at = answer.offsets[0];
      fill(message, h("span", {}, "Durable on every in-sync replica: partition ", String(at.partition), ", offset ", String(at.offset), "."));
      notice(`Appended to partition ${at.partition} at offset ${at.offset}.`);
    } catch (error) { fill(message, error.message); }
  } }, field("Key", key, "empty: no key"), field("Value", value), h("p", {}, h("label.toggle", {}, tombstone, "null (a tombstone)")), field("Headers", headers), field("Partition", partition), message, h("button", { type: "submit" }, "Produce")));
  value.focus();
}
