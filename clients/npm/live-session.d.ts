/** What a session is opened with. */
export interface SessionOptions {
  /** The content type of the steps; `application/octet-stream` if none is given. */
  contentType?: string;
  /** The inference key, unless token authorization is off. */
  key?: string;
  /** The `resumeToken` of an earlier session, which goes on, after a reload of the page as well. */
  resume?: string;
  /** The id of a sequence that others may use, too: over HTTP, and in other sessions. Not together with `resume`. */
  sequence?: string;
  /** For how many milliseconds a lost connection is tried again; 60,000 if not given. */
  patience?: number;
  /** A class to use in place of the browser's. */
  WebSocket?: new (url: string, protocols: string[]) => unknown;
}

/** A body that is a text, or bytes in base64. */
export type Body = string | { base64: string };

/** The whole answer to a step; a body of several parts that are not all texts is a list. */
export interface Answer {
  step: number;
  status: number;
  headers: Record<string, string>;
  body: Body | Body[];
}

export interface StepOptions {
  /** Whether the step ends the sequence. */
  end?: boolean;
}

/** A step has failed; `status` and `cause` say why. The session goes on. */
export class StepFailed extends Error {
  readonly name: "StepFailed";
  readonly step: number;
  readonly status: number;
  readonly cause: string;
}

/** The session is over; `code` is the WebSocket's close code. */
export class SessionClosed extends Error {
  readonly name: "SessionClosed" | "SessionRefused";
  readonly code: number;
  readonly reason: string;
}

/** The server refuses the session; `status` and `cause` say why, as for any other request. */
export class SessionRefused extends SessionClosed {
  readonly name: "SessionRefused";
  readonly status: number;
  readonly cause: string;
}

/** A live session: its messages are the steps of one sequence, and it resumes by itself. */
export class LiveSession {
  /**
   * Open a session.
   *
   * @param url of the model's sequences, ws: or wss:
   * @throws SessionRefused if the server refuses it, SessionClosed if the server cannot be reached
   */
  static open(url: string, options?: SessionOptions): Promise<LiveSession>;
  /** The id of the session's sequence, as the server's logs have it. */
  readonly sequence: string;
  /**
   * What lets another page, or this one after a reload, go on with the session; a secret. Null: late steps are dropped,
   * or the session has a sequence with a name.
   */
  readonly resumeToken: string | null;
  /** The number of the last step that was applied, as far as this client knows; 0: none. */
  readonly lastStep: number;
  /** How many steps may be without an answer. */
  readonly window: number;
  /** Send a step; resolve to its answer. */
  step(body: Body, options?: StepOptions): Promise<Answer>;
  /** Send a step; yield the bodies of its parts as they come. */
  stream(body: Body, options?: StepOptions): AsyncGenerator<Body, void, void>;
  /** Close the session; a stored sequence that has not ended stays until it expires. */
  close(): void;
}
