// Shows the OpenAPI document of the models in Swagger UI, dark or light as the system says. A key is kept for this tab only.

import { bodyForms } from "./body_form.js";

const KEY = "torchserve-py.inference-key";
const form = document.getElementById("key");
const key = () => sessionStorage.getItem(KEY) ?? "";
const dark = matchMedia("(prefers-color-scheme: dark)");
const authorization = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

async function show() {
  const response = await fetch("../openapi.json", { headers: authorization() });
  document.getElementById("entry").hidden = response.ok;
  if (!response.ok) {
    document.getElementById("refused").hidden = !key();
    form.elements.key.focus();
    return;
  }
  const spec = await response.json();
  spec.servers = [{ url: new URL("..", location.href).href.replace(/\/$/, "") }];
  SwaggerUIBundle({
    spec,
    dom_id: "#models",
    deepLinking: true,
    docExpansion: Object.keys(spec.paths).length > 5 ? "list" : "full",
    filter: Object.keys(spec.paths).length > 1,
    showCommonExtensions: true,
    tryItOutEnabled: true,
    validatorUrl: null,
    plugins: [bodyForms(spec)],
    requestInterceptor: (request) => Object.assign(request, { headers: { ...request.headers, ...authorization() } }),
  });
}

/** Give names to fields of Swagger UI that have none, and take out what screen readers trip over. */
function repair() {
  const models = document.getElementById("models");
  const name = (selector, label) => models.querySelectorAll(`${selector}:not([aria-label])`).forEach((each) => each.setAttribute("aria-label", label));
  name("textarea.body-param__text", "Body");
  name("select#servers", "Server");
  for (const each of models.querySelectorAll("label[id]")) each.removeAttribute("id"); // its select has the same one
  for (const each of models.querySelectorAll("button a[href]")) each.removeAttribute("href"); // the button does it
}

new MutationObserver(repair).observe(document.getElementById("models"), { childList: true, subtree: true });

function applyScheme() {
  document.documentElement.classList.toggle("dark-mode", dark.matches);
}

dark.addEventListener("change", applyScheme);
applyScheme();
form.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, form.elements.key.value);
  show();
});
show();
