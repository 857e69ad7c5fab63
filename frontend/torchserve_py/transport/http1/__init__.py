"""HTTP/1.1 for servers: one `asyncio.Protocol` on httptools, for every request.

``parser``      bytes to heads and bodies
``request``     one request, with its body and the means to answer it
``response``    heads of responses
``connection``  the protocol: one request after the other, limits, timeouts, slow readers
``websocket``   the same connection after an upgrade
``server``      all connections of one listener
``turns``       work that they put off, so that none keeps others waiting
"""
