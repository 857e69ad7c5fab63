// Shows the OpenAPI document of the models in Swagger UI. A key is kept for this tab only.

const KEY = "torchserve-py.inference-key";
const form = document.getElementById("key");
const key = () => sessionStorage.getItem(KEY) ?? "";
const authorization = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

async function show() {
  const response = await fetch("../openapi.json", { headers: authorization() });
  form.hidden = response.ok;
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
    tryItOutEnabled: true,
    validatorUrl: null,
    requestInterceptor: (request) => Object.assign(request, { headers: { ...request.headers, ...authorization() } }),
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, form.elements.key.value);
  show();
});
show();
