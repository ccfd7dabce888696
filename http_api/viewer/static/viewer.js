// Shows the OpenAPI document that the page names, from this node alone.
//
// The credential is the console's: in this tab's sessionStorage, never sent by the browser itself.

"use strict";

const KEY = "raftlog.authorization";
const documentUrl = new URL(document.body.dataset.document, location.href);

function withCredential(request) {
  const credential = sessionStorage.getItem(KEY);
  if (credential && new URL(request.url, location.href).origin === location.origin) {
    request.headers = { ...request.headers, Authorization: (request.headers || {}).Authorization || credential };
  }
  return { ...request, credentials: "omit" };  // the browser asks for no password of its own
}

async function load() {
  const asked = await fetch(documentUrl, withCredential({ url: documentUrl.href, headers: {} }));
  document.getElementById("sign-in").hidden = asked.status !== 401;
  if (!asked.ok) {
    document.getElementById("document").textContent = `The node answered ${asked.status}.`;
    return;
  }
  window.ui = SwaggerUIBundle({
    spec: await asked.json(),
    dom_id: "#document",
    deepLinking: true,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    tagsSorter: "alpha",
    validatorUrl: null,
    requestInterceptor: withCredential,
  });
}

document.getElementById("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, `Bearer ${document.getElementById("token").value.trim()}`);
  load();
});

load();
