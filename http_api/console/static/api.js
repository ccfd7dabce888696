// Requests to the node's public API with the user's own credential, and nothing else.
//
// The credential lives in this tab's sessionStorage: it survives a reload, ends with the tab, and is never sent by the
// browser itself. There are no cookies, so a foreign page cannot make the browser act for the user.

const KEY = "raftlog.authorization";

export class Problem extends Error {
  /** A problem document of the API (RFC 9457), or the failure to reach the node. */
  constructor(status, code, detail, document = {}) {
    super(detail);
    Object.assign(this, { status, code, detail, document });
  }
}

export const session = {
  get authorization() { return sessionStorage.getItem(KEY); },
  set authorization(value) { if (value) sessionStorage.setItem(KEY, value); else sessionStorage.removeItem(KEY); },
};

export const bearer = (token) => `Bearer ${token.trim()}`;

export function basic(name, password) {
  const packed = new TextEncoder().encode(`${name}:${password}`);
  return `Basic ${btoa(Array.from(packed, (byte) => String.fromCharCode(byte)).join(""))}`;
}

export function options(signal, more = {}) {
  const headers = { ...(more.headers ?? {}) };
  const authorization = session.authorization;
  if (authorization) headers.Authorization = authorization;
  // With `omit` the browser adds no credential of its own, and asks for none in a window of its own after a 401. Without
  // one of ours `same-origin` remains, so that a client certificate can identify the user.
  return { ...more, headers, signal, credentials: authorization || !session.certificate ? "omit" : "same-origin", cache: "no-store", redirect: "error" };
}

export async function call(method, path, { body, signal, accept = [], timeout = 30000 } = {}) {
  const limit = AbortSignal.timeout(timeout);
  const both = signal ? AbortSignal.any([signal, limit]) : limit;
  const more = { method };
  if (body !== undefined) { more.body = JSON.stringify(body); more.headers = { "Content-Type": "application/json" }; }
  let response, document;
  try {
    response = await fetch(`..${path}`, options(both, more));
    document = response.status === 204 ? {} : await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "unreachable", limit.aborted ? "The node did not answer in time." : "The node cannot be reached.");
  }
  if (!response.ok && !accept.includes(response.status)) {
    const problem = new Problem(response.status, document.code, document.detail ?? document.title ?? response.statusText, document);
    if (response.status === 401) dispatchEvent(new CustomEvent("raftlog:unauthenticated"));
    throw problem;
  }
  return document;
}

export const get = (path, signal, more = {}) => call("GET", path, { signal, ...more });
export const post = (path, body, more = {}) => call("POST", path, { body, ...more });
export const segment = encodeURIComponent;
