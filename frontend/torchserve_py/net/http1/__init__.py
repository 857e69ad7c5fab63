"""An HTTP/1.1 server: one `asyncio.Protocol` on httptools, `http_connection`, handles every request."""
