// What a page does with `live-session.js`; the arguments are the module and the server's address.
const [module, url] = process.argv.slice(2);
const { LiveSession, SessionClosed, StepFailed } = await import(module);

// The connections of this process, which it can cut.
const opened = [];
class Cuttable extends WebSocket {
  constructor(...more) {
    super(...more);
    opened.push(this);
  }
}

const session = await LiveSession.open(`${url}/sequences/diary`, { contentType: "text/plain", WebSocket: Cuttable });
console.log("window", session.window);
console.log((await session.step("a")).body);
const parts = [];
for await (const part of session.stream("stream")) parts.push(part);
console.log(JSON.stringify(parts));
const several = ["c", "d", "e"].map((text) => session.step(text));
opened.at(-1).close(); // the server goes on with what has arrived
console.log((await Promise.all(several)).map(({ step, body }) => `${step}=${body}`).join("; "));
console.log("connections", opened.length);
console.log("restart");
const waiting = session.step("slow"); // sent before, during or after the restart
await new Promise((resolve) => process.stdin.once("data", resolve));
process.stdin.unref();
console.log((await waiting).body);
const window = ["w", "w", "w", "w"].map((text) => session.step(text));
try {
  await session.step("one too many");
} catch (error) {
  console.log(error.name, error.message);
}
console.log((await Promise.all(window)).length);
try {
  await session.step("fail");
} catch (error) {
  console.log(error instanceof StepFailed, error.step, error.cause);
}
console.log((await session.step("f", { end: true })).body);
try {
  await session.step("g");
} catch (error) {
  console.log(error instanceof SessionClosed, error.code);
}

const left = await LiveSession.open(`${url}/sequences/diary`, { contentType: "text/plain" });
const pending = left.step("slow").catch((error) => console.log("pending", error.reason));
left.close();
await pending;
