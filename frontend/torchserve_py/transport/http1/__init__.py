"""An HTTP/1.1 server: one `asyncio.Protocol` on httptools handles every request.

``parser``      parses bytes into heads and bodies
``request``     one request: its body, and the methods that answer it
``response``    heads of responses
``http_connection``  the protocol: one request after the other, limits, timeouts, slow readers
``websocket``   the same connection after an upgrade
``http_server``      all connections of one listener
"""
