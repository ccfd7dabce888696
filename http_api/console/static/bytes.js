// The bytes of keys and values, and what they may mean. Everything returned is text for text nodes.

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** Return the bytes of a key or value that the API showed with the format `base64`; null stays null. */
export function raw(shown) {
  if (shown === null || shown === undefined) return null;
  if (typeof shown === "object" && typeof shown.base64 === "string") return fromBase64(shown.base64);
  return new TextEncoder().encode(typeof shown === "string" ? shown : JSON.stringify(shown));
}

export function text(data) {
  try { return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data); } catch { return null; }
}

export function json(data) {
  const decoded = text(data);
  if (decoded === null || !/^\s*[[{"\-0-9tfn]/.test(decoded)) return null;
  try { JSON.parse(decoded); } catch { return null; }
  return indent(decoded);
}

/** Indent JSON text without parsing its numbers, so that none loses a digit. */
export function indent(source) {
  let out = "", depth = 0, at = 0;
  const line = () => "\n" + "  ".repeat(Math.min(depth, 64));
  while (at < source.length) {
    const letter = source[at];
    if (letter === '"') {
      let end = at + 1;
      while (source[end] !== '"') end += source[end] === "\\" ? 2 : 1;
      out += source.slice(at, end + 1);
      at = end + 1;
      continue;
    }
    if (letter === "{" || letter === "[") {
      const rest = /^[{[]\s*[}\]]/.exec(source.slice(at, at + 256));
      if (rest) { out += letter + rest[0].at(-1); at += rest[0].length; continue; }
      depth += 1; out += letter + line();
    } else if (letter === "}" || letter === "]") { depth -= 1; out += line() + letter; }
    else if (letter === ",") out += letter + line();
    else if (letter === ":") out += ": ";
    else if (!/\s/.test(letter)) out += letter;
    at += 1;
  }
  return out;
}

export function hex(data, most = 4096) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, most); at += 16) {
    const row = data.subarray(at, Math.min(at + 16, data.length, most));
    const digits = Array.from(row, (byte) => byte.toString(16).padStart(2, "0"));
    const shown = Array.from(row, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits.slice(0, 8).join(" ").padEnd(24)} ${digits.slice(8).join(" ").padEnd(24)} ${shown}`);
  }
  if (data.length > most) lines.push(`… ${data.length - most} bytes more`);
  return lines.join("\n");
}

/** Return MessagePack as indented text like JSON, or null if the bytes are not exactly one MessagePack value that is a
 * map or an array: any byte below 128 alone would be one, too. */
export function messagePack(data) {
  if (!data.length || !(data[0] >= 0x80 && data[0] <= 0x9f) && !(data[0] >= 0xdc && data[0] <= 0xdf)) return null;
  try {
    const reader = new Reader(data);
    const value = reader.value(0);
    return reader.at === data.length ? value : null;
  } catch { return null; }
}

class Reader {
  constructor(data) { this.data = data; this.view = new DataView(data.buffer, data.byteOffset, data.byteLength); this.at = 0; this.items = 0; }

  take(length) {
    if (this.at + length > this.data.length) throw new RangeError("the value is cut off");
    const from = this.at;
    this.at += length;
    return from;
  }

  size(width) { const from = this.take(width); return width === 1 ? this.data[from] : width === 2 ? this.view.getUint16(from) : this.view.getUint32(from); }

  value(depth) {
    if (depth > 32 || ++this.items > 20000) throw new RangeError("the value is too deep or too long to show");
    const tag = this.data[this.take(1)];
    if (tag < 0x80) return String(tag);
    if (tag < 0x90) return this.map(tag & 15, depth);
    if (tag < 0xa0) return this.array(tag & 15, depth);
    if (tag < 0xc0) return this.string(tag & 31);
    if (tag >= 0xe0) return String(tag - 256);
    switch (tag) {
      case 0xc0: return "null";
      case 0xc2: return "false";
      case 0xc3: return "true";
      case 0xc4: case 0xc5: case 0xc6: return this.binary(this.size(1 << (tag - 0xc4)));
      case 0xc7: case 0xc8: case 0xc9: return this.extension(this.size(1 << (tag - 0xc7)));
      case 0xca: return String(this.view.getFloat32(this.take(4)));
      case 0xcb: return String(this.view.getFloat64(this.take(8)));
      case 0xcc: case 0xcd: case 0xce: return String(this.size(1 << (tag - 0xcc)));
      case 0xcf: return String(this.view.getBigUint64(this.take(8)));
      case 0xd0: return String(this.view.getInt8(this.take(1)));
      case 0xd1: return String(this.view.getInt16(this.take(2)));
      case 0xd2: return String(this.view.getInt32(this.take(4)));
      case 0xd3: return String(this.view.getBigInt64(this.take(8)));
      case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return this.extension(1 << (tag - 0xd4));
      case 0xd9: case 0xda: case 0xdb: return this.string(this.size(1 << (tag - 0xd9)));
      case 0xdc: case 0xdd: return this.array(this.size(tag === 0xdc ? 2 : 4), depth);
      case 0xde: case 0xdf: return this.map(this.size(tag === 0xde ? 2 : 4), depth);
      default: throw new RangeError("not MessagePack");
    }
  }

  string(length) { const from = this.take(length); const decoded = text(this.data.subarray(from, this.at)); if (decoded === null) throw new RangeError("not UTF-8"); return JSON.stringify(decoded); }
  binary(length) { const from = this.take(length); return `bytes(${Array.from(this.data.subarray(from, Math.min(this.at, from + 64)), (byte) => byte.toString(16).padStart(2, "0")).join("")}${length > 64 ? "…" : ""})`; }
  extension(length) { const kind = this.view.getInt8(this.take(1)); return `extension(${kind}, ${this.binary(length)})`; }

  array(length, depth) {
    const inside = "  ".repeat(depth + 1);
    const rows = [];
    for (let number = 0; number < length; number += 1) rows.push(inside + this.value(depth + 1));
    return rows.length ? `[\n${rows.join(",\n")}\n${"  ".repeat(depth)}]` : "[]";
  }

  map(length, depth) {
    const inside = "  ".repeat(depth + 1);
    const rows = [];
    for (let number = 0; number < length; number += 1) rows.push(`${inside}${this.value(depth + 1)}: ${this.value(depth + 1)}`);
    return rows.length ? `{\n${rows.join(",\n")}\n${"  ".repeat(depth)}}` : "{}";
  }
}

/** Return the readings of some bytes, the best first: [name, text] pairs. */
export function readings(data) {
  const found = [];
  const asJson = json(data), asPack = messagePack(data), asText = text(data);
  if (asJson !== null) found.push(["JSON", asJson]);
  if (asText !== null && !/[\u0000-\u0008\u000e-\u001f]/.test(asText)) found.push(["Text", asText]);
  if (asPack !== null) found.push(["MessagePack", asPack]);
  found.push(["Hex", hex(data)]);
  return found;
}

/** Return one line for a list. */
export function preview(data, most = 160) {
  if (data === null) return "";
  const [name, shown] = readings(data.subarray(0, 4096))[0];
  const line = name === "Hex" ? Array.from(data.subarray(0, 48), (byte) => byte.toString(16).padStart(2, "0")).join(" ") : shown.replace(/\s+/g, " ");
  return line.length > most ? line.slice(0, most) + "…" : line;
}
