// The server refuses a session after the upgrade, which is all that a page can see. The argument is the module.
const { LiveSession, SessionClosed } = await import(process.argv[2]);

const error = { status: 403, cause: "", message: "see cors_allowed_origin" };

class Refused {
  constructor() {
    setTimeout(() => {
      this.onmessage({ data: JSON.stringify({ error }) });
      this.onclose({ code: 4403, reason: error.message });
    });
  }

  close() {}
}

const opened = LiveSession.open("ws://nowhere", { WebSocket: Refused });
await opened.catch((refused) => {
  console.log(refused.name, refused.status, refused.code, refused.message, refused instanceof SessionClosed);
});
