// The same request as a command or a program, for the inference listener. Names and bodies are quoted: they may be anything.

const EVERYWHERE = /\/\/(0\.0\.0\.0|\[::\])/;

/** Return a command for a POSIX shell. */
export function asCurl(server, model, headers, body) {
  const lines = [`curl --no-buffer ${shell(address(server, model))}`];
  if (server.needs_key) lines.push('-H "Authorization: Bearer $INFERENCE_KEY"');
  for (const [name, value] of Object.entries(headers)) lines.push(`-H ${shell(`${name}: ${value}`)}`);
  lines.push(body.file === undefined ? `--data-raw ${shell(body.text)}` : `--data-binary ${shell(`@${body.file}`)}`);
  return `${lines.join(" \\\n    ")}\n`;
}

/** Return a program in Python that uses requests. */
export function asPython(server, model, headers, body) {
  const given = Object.entries(headers).map(([name, value]) => `    ${literal(name)}: ${literal(value)},`);
  if (server.needs_key) given.push('    "Authorization": "Bearer " + os.environ["INFERENCE_KEY"],');
  const data = body.file === undefined ? `${literal(body.text)}.encode()` : `open(${literal(body.file)}, "rb")`;
  return `${server.needs_key ? "import os\n\n" : ""}import requests

url = ${literal(address(server, model))}
headers = {
${given.join("\n")}
}
with requests.post(url, data=${data}, headers=headers, stream=True, timeout=120) as answer:
    answer.raise_for_status()
    for part in answer.iter_content(None):
        print(part.decode(errors="replace"), end="", flush=True)
`;
}

/** Return a program in Python that holds a session with the house's client. */
export function asPythonSession(server, model, headers, body) {
  const data = body.file === undefined ? literal(body.text) : `open(${literal(body.file)}, "rb").read()`;
  const key = server.needs_key ? ', key=os.environ["INFERENCE_KEY"]' : "";
  return `${server.needs_key ? "import os\n\n" : ""}from torchserve_py.client import Client

with Client(${literal(base(server))}${key}) as client:
    with client.session(${literal(model.name)}, version=${literal(model.version)}, content_type=${literal(headers["Content-Type"])}) as session:
        for part in session.stream(${data}):
            print(part.decode(errors="replace"), end="", flush=True)
`;
}

function base(server) {
  return server.inference.replace(EVERYWHERE, `//${globalThis.location?.hostname ?? "localhost"}`);
}

function address(server, { name, version }) {
  return `${base(server)}/predictions/${encodeURIComponent(name)}/${encodeURIComponent(version)}`;
}

function shell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function literal(text) {
  return JSON.stringify(text);
}
