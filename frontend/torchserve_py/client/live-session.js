// A live session for browsers (docs/live-sessions.md): a WebSocket whose messages are the steps of one sequence. It
// resumes by itself when its connection or its server is lost. One module, without dependencies:
//
//   import { LiveSession } from "./live-session.js";
//   const session = await LiveSession.open("ws://localhost:8080/sequences/durable", { contentType: "text/plain" });
//   console.log((await session.step("5")).body);
//   for await (const part of session.stream("12")) console.log(part);

const SUBPROTOCOL = "sequences.json.v1";
// Close codes after which the session can go on over another connection.
const RESUMABLE = new Set([1001, 1005, 1006, 1011, 1012, 1013]);
// Causes after which a step may have been applied, or may be yet: it is sent again under its own number.
const OPEN = new Set(["outcome_unknown", "request_running"]);
// Causes of steps that were applied before, and whose answers are not to be had.
const APPLIED = new Set(["step_applied", "step_differs"]);
// Causes that say nothing of an earlier attempt of the step, only that this one was not applied.
const PASSING = new Set([
  "sequence_moved",
  "sequence_store",
  "no_worker",
  "rate_limited",
  "too_many_tokens",
  "too_many_at_once",
]);
const FIRST_DELAY = 50;
const MOST_DELAY = 1000;

/** A step has failed; `status` and `cause` say why. The session goes on. */
export class StepFailed extends Error {
  constructor(step, { status, cause, message }) {
    super(`${status} ${cause}: ${message}`);
    Object.assign(this, { name: "StepFailed", step, status, cause });
  }
}

/** The session is over; `code` is the WebSocket's close code. */
export class SessionClosed extends Error {
  constructor(code, reason) {
    super(`the session is closed: ${code} ${reason}`);
    Object.assign(this, { name: "SessionClosed", code, reason });
  }
}

/** The server refuses the session; `status` and `cause` say why. */
export class SessionRefused extends SessionClosed {
  constructor(code, { status, cause, message }) {
    super(code, message);
    this.message = message;
    Object.assign(this, { name: "SessionRefused", status, cause });
  }
}

export class LiveSession {
  #url;
  #options;
  #socket = null;
  #told = null; // how the server described the session first
  #token = null; // what resumes the session
  #applied = 0; // the numbers of the last step that was applied, and of the last that was sent
  #sent = 0;
  #steps = new Map(); // by number, those without an answer: what was sent, and what becomes of its messages
  #resuming = false;
  #failure = null;
  #delay = FIRST_DELAY;
  #timer = null;

  /**
   * Open a session.
   *
   * @param url of the model's sequences, ws: or wss:
   * @param options contentType of the steps; key, the inference key; resume, the resumeToken of an earlier session, which
   *   goes on, after a reload of the page as well; sequence, the id of a sequence that others may use, too; patience, for
   *   how many milliseconds a lost connection is tried again (60,000); WebSocket, a class to use in place of the browser's
   */
  static async open(url, options = {}) {
    const session = new LiveSession(url, options);
    await session.#connect();
    return session;
  }

  constructor(url, { contentType, key, resume, sequence, patience = 60_000, WebSocket = globalThis.WebSocket }) {
    if (resume && sequence) throw new TypeError("resume or sequence, not both: a named sequence goes on by its name");
    const query = new URLSearchParams({ ...(contentType && { content_type: contentType }), ...(sequence && { sequence }) });
    this.#url = String(query) ? `${url}?${query}` : url;
    this.#token = resume ?? null;
    this.#options = { key, patience, WebSocket };
  }

  /**
   * What lets another page, or this one after a reload, go on with the session: `open(url, {resume})`. It is a secret.
   * Null: late steps are dropped, or the session has a sequence with a name, by which it goes on.
   */
  get resumeToken() {
    return this.#told.named ? null : this.#token;
  }

  /** The number of the last step that was applied, as far as this client knows; 0: none. */
  get lastStep() {
    return this.#applied;
  }

  /** The id of the session's sequence, as the server's logs have it. */
  get sequence() {
    return this.#told.sequence;
  }

  /** How many steps may be without an answer. */
  get window() {
    return this.#told.window;
  }

  /** Send a step; resolve to its answer: {step, status, headers, body}, with a text or {base64} for a body. */
  async step(body, { end = false } = {}) {
    const parts = [];
    for await (const part of this.#run(body, end)) parts.push(part);
    const { step, status, headers } = parts[0];
    const bodies = parts.map((part) => part.body).filter((each) => each !== "");
    return { step, status, headers, body: bodies.length > 1 ? joined(bodies) : (bodies[0] ?? "") };
  }

  /** Send a step; yield the bodies of its parts as they come. */
  async *stream(body, { end = false } = {}) {
    for await (const part of this.#run(body, end)) if (part.body !== "") yield part.body;
  }

  /** Close the session; a stored sequence that has not ended stays until it expires. */
  close() {
    this.#fail(new SessionClosed(1000, "closed by this client"));
    this.#socket?.close(1000);
  }

  async *#run(body, end) {
    if (this.#failure) throw this.#failure;
    if (this.#steps.size >= this.window) throw new RangeError(`${this.window} steps have no answer yet`);
    const number = ++this.#sent;
    const message = JSON.stringify({ step: number, body, end });
    const step = { message, end, seen: "", again: null, parts: [], isOpen: false };
    step.arrived = () => {};
    this.#steps.set(number, step);
    if (this.#socket && !this.#resuming) this.#socket.send(step.message);
    for (let more = true; more; ) {
      while (!step.parts.length) await new Promise((resolve) => (step.arrived = resolve));
      const part = step.parts.shift();
      if (part instanceof Error) throw part;
      more = part.more;
      yield part;
    }
  }

  /** Whether steps have no answer that were applied before one that has: resuming the session tells them. */
  get #missesAnswers() {
    return [...this.#steps.keys()].some((number) => number < this.#applied);
  }

  get #isOver() {
    return this.#failure && !this.#missesAnswers;
  }

  async #connect() {
    const { key, patience, WebSocket } = this.#options;
    const until = Date.now() + patience;
    for (;;) {
      if (this.#isOver) throw this.#fail(this.#failure); // closed meanwhile, or its last step was answered
      const socket = new WebSocket(this.#url, key ? [SUBPROTOCOL, `bearer.${key}`] : [SUBPROTOCOL]);
      const closed = await this.#begin(socket);
      if (!closed) break;
      if (!RESUMABLE.has(closed.code)) {
        throw this.#fail(closed.refusal ? new SessionRefused(closed.code, closed.refusal) : new SessionClosed(closed.code, closed.reason));
      }
      if (Date.now() + this.#delay > until) throw this.#fail(new SessionClosed(closed.code, "the patience is over"));
      await new Promise((resolve) => setTimeout(resolve, this.#delay));
      this.#delay = Math.min(2 * this.#delay, MOST_DELAY);
    }
    this.#delay = FIRST_DELAY;
  }

  /** Open a connection, and resume the session over it; resolve to the close if that fails. */
  #begin(socket) {
    return new Promise((resolve) => {
      let open = false;
      let refusal = null;
      socket.onmessage = ({ data }) => {
        const message = JSON.parse(data);
        if (!open && message.error && message.step === undefined) return (refusal = message.error);
        if (message.sequence === undefined) return this.#take(message);
        if (this.#isOver) return socket.close(1000); // closed meanwhile
        if (this.#token && !this.#resuming) {
          this.#resuming = true;
          for (const step of this.#steps.values()) step.again = step.seen === "" ? null : "";
          const unanswered = [...this.#steps.keys()];
          return socket.send(JSON.stringify({ resume: this.#token, after: this.#applied, unanswered }));
        }
        this.#told ??= message;
        this.#token ??= message.resume;
        if (!this.#steps.size) this.#applied = this.#sent = message.last;
        this.#resuming = false;
        this.#socket = socket;
        for (const step of this.#steps.values()) {
          socket.send(step.message); // of a step that was applied the server repeats the answer
        }
        open = true;
        resolve(null);
      };
      socket.onerror = () => {
        if (open) return; // a close follows
        this.#resuming = false;
        resolve({ code: 1006, reason: "no connection" }); // a close follows in browsers, but not in every Node.js
      };
      socket.onclose = (closed) => {
        this.#resuming = false;
        if (!open) return resolve({ code: closed.code, reason: closed.reason, refusal });
        this.#socket = null;
        if (this.#isOver) return this.#fail(this.#failure);
        const canResume = RESUMABLE.has(closed.code) || (closed.code === 1000 && this.#missesAnswers);
        if (!canResume || !this.#token) {
          return this.#fail(new SessionClosed(closed.code, closed.reason));
        }
        return this.#connect().catch(() => {}); // the steps have been told
      };
    });
  }

  #take(message) {
    const step = this.#steps.get(message.step);
    if (message.error) return step && this.#takeFailure(message, step);
    if (!step) return undefined;
    if (step.again !== null) {
      // the answer begins again after a cut: what was yielded before is left out
      const isText = step.seen !== null && typeof message.body === "string";
      step.again += isText ? message.body : "";
      if (isText && message.more && step.again.length < step.seen.length) return undefined;
      if (!isText || !step.again.startsWith(step.seen)) {
        const error = { status: 500, cause: "outcome_unknown", message: "The stream began otherwise when repeated." };
        return this.#end(message.step, new StepFailed(message.step, error));
      }
      message.body = step.again.slice(step.seen.length);
      step.again = null;
    }
    // Of a stream of bytes that are no text it is only known that there was some; it cannot go on after a cut.
    step.seen = step.seen !== null && typeof message.body === "string" ? step.seen + message.body : null;
    if (message.more) {
      step.parts.push(message);
      return step.arrived();
    }
    this.#applied = Math.max(this.#applied, message.step);
    if (step.end) this.#failure ??= new SessionClosed(1000, "The sequence has ended.");
    return this.#end(message.step, message);
  }

  #takeFailure({ step: number, error }, step) {
    if (error.cause === "draining") return; // the step is sent again when the session is resumed
    if (APPLIED.has(error.cause)) this.#applied = Math.max(this.#applied, number);
    else if (this.#resuming && error.cause !== "handler_error") return; // a close follows, and it is resumed later
    const isBehind = error.cause === "step_gap" && this.#steps.keys().next().value !== number;
    if (OPEN.has(error.cause) || isBehind || (step.isOpen && PASSING.has(error.cause))) {
      step.isOpen = true;
      step.again = step.seen === "" ? null : "";
      this.#sendAgainLater();
      return;
    }
    this.#end(number, new StepFailed(number, error));
  }

  #end(number, outcome) {
    const step = this.#steps.get(number);
    this.#steps.delete(number);
    step.parts.push(outcome);
    step.arrived();
    if (!this.#steps.size) this.#sent = this.#applied; // what has failed leaves its number to the next step
  }

  /** Send the steps without an answer again, in order: those that were applied get their answers. */
  #sendAgainLater() {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      if (!this.#resuming) for (const step of this.#steps.values()) if (step.isOpen) this.#socket?.send(step.message);
    }, MOST_DELAY);
  }

  #fail(error) {
    this.#failure ??= error;
    for (const number of [...this.#steps.keys()]) this.#end(number, error);
    return error;
  }
}

function joined(bodies) {
  return bodies.every((each) => typeof each === "string") ? bodies.join("") : bodies;
}
