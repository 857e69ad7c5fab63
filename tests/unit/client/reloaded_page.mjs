// A page is loaded again and goes on with its session; another one uses a sequence with a name. The argument is the module.
const { LiveSession } = await import(process.argv[2]);

const greeting = (more) => ({ sequence: "live-1", resume: "new", last: 0, window: 4, max_message_size: 100, ...more });

class Scripted {
  constructor(url) {
    console.log(url);
    setTimeout(() => this.#say(greeting({ named: url.includes("sequence=") })));
  }

  #say(message) {
    this.onmessage({ data: JSON.stringify(message) });
  }

  send(message) {
    console.log(message);
    const { step } = JSON.parse(message);
    const said = step ? { step, status: 200, headers: {}, body: "C" } : greeting({ resume: "token", last: 2 });
    setTimeout(() => this.#say(said));
  }

  close() {}
}

const again = await LiveSession.open("ws://nowhere", { contentType: "text/plain", resume: "token", WebSocket: Scripted });
console.log(again.resumeToken, again.lastStep);
console.log((await again.step("c")).body, again.lastStep);
const named = await LiveSession.open("ws://nowhere", { sequence: "ada", WebSocket: Scripted });
console.log(named.resumeToken);
