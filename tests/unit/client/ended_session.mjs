// The sequence ends while the outcome of an earlier step is unknown: the session is resumed for its answer. The argument is
// the module.
const { LiveSession } = await import(process.argv[2]);

const greeting = (last) => ({ sequence: "live-1", resume: "token", last, window: 4, max_message_size: 100 });
const answer = (step, body) => ({ step, status: 200, headers: {}, body });
const unknown = { step: 1, error: { status: 503, cause: "outcome_unknown", message: "" } };
const replies = [[unknown], [answer(2, "B")], [answer(1, "A"), greeting(2)]];

class Scripted {
  constructor() {
    setTimeout(() => this.#say(greeting(0)));
  }

  #say(message) {
    this.onmessage({ data: JSON.stringify(message) });
  }

  send(message) {
    console.log(message);
    const said = replies.shift() ?? [];
    const isLast = replies.length < 2;
    setTimeout(() => {
      said.forEach((each) => this.#say(each));
      if (isLast) this.onclose({ code: 1000, reason: "The sequence has ended." });
    });
  }

  close() {}
}

const session = await LiveSession.open("ws://nowhere", { WebSocket: Scripted });
const answers = [session.step("a"), session.step("b", { end: true })];
console.log(...(await Promise.all(answers)).map(({ body }) => body));
