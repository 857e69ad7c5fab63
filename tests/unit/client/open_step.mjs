// A step whose outcome is unknown is asked for, and the question is refused for a while: that says nothing of the step. The
// argument is the module.
const { LiveSession } = await import(process.argv[2]);

const greeting = { sequence: "live-1", resume: "token", last: 0, window: 4, max_message_size: 100 };
const failed = (cause) => ({ step: 1, error: { status: 503, cause, message: "" } });
const replies = [failed("outcome_unknown"), failed("no_worker"), { step: 1, status: 200, headers: {}, body: "A" }];

class Scripted {
  constructor() {
    setTimeout(() => this.#say(greeting));
  }

  #say(message) {
    this.onmessage({ data: JSON.stringify(message) });
  }

  send(message) {
    console.log(message);
    setTimeout(() => this.#say(replies.shift()));
  }

  close() {}
}

const session = await LiveSession.open("ws://nowhere", { WebSocket: Scripted });
console.log((await session.step("a")).body);
