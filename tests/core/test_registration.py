"""Models at the start of a server and over its life, as an operator sees them."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.e2e.running_server import DEADLINE, HANDLERS, RunningServer, eventually


def test_describe_shows_the_memory_of_each_worker() -> None:
    properties = {"disable_system_metrics": "false", "metric_time_interval": 1}
    with RunningServer({"echo": HANDLERS / "echo"}, properties) as running:
        running.wait_ready()
        memory = eventually(lambda: running.describe("echo")[0]["workers"][0]["memoryUsage"], "memory was measured")
        assert memory > 1024 * 1024


def test_a_stop_while_a_start_up_model_is_downloaded_ends_the_server() -> None:
    asked, done = threading.Event(), threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"PK")
            asked.set()
            done.wait(DEADLINE)

        def log_message(self, *_: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{web.server_port}/m.mar"
    running = RunningServer({"m": url}, {"allowed_urls": "http://127.0.0.1.*", "allowed_url_networks": "127.0.0.0/8"})
    try:
        running.launch()
        assert asked.wait(DEADLINE)
        eventually(lambda: list(running.model_store.iterdir()), "the download has begun")
        assert running.terminate(deadline=20) == 0
        assert "Model server started." not in running.log()
        assert list(running.model_store.iterdir()) == []
    finally:
        done.set()
        running.__exit__()
        web.shutdown()
        web.server_close()
        thread.join(DEADLINE)
