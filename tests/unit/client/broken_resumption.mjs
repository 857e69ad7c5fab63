// The last answer arrives while the session is resumed, and the connection breaks again: no step may wait for ever. The
// argument is the module.
const { LiveSession } = await import(process.argv[2]);

const greeting = { sequence: "live-1", resume: "token", last: 0, window: 4, max_message_size: 100 };
let connections = 0;

class Scripted {
  constructor() {
    this.number = ++connections;
    this.received = [];
    setTimeout(() => this.#say(greeting));
  }

  #say(message) {
    this.onmessage({ data: JSON.stringify(message) });
  }

  send(message) {
    this.received.push(JSON.parse(message));
    if (this.number === 1 && this.received.length < 2) return; // of two steps
    setTimeout(() => {
      if (this.number > 1) this.#say({ step: 2, status: 200, headers: {}, body: "B" });
      this.onclose({ code: 1006, reason: "" });
    });
  }

  close() {}
}

const session = await LiveSession.open("ws://nowhere", { WebSocket: Scripted, patience: 500 });
const steps = [session.step("a"), session.step("b", { end: true })];
const outcomes = await Promise.allSettled(steps);
console.log(outcomes.map(({ value, reason }) => value?.body ?? reason.name).join(" "));
