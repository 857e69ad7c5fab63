"""What users of clients for language models write, one file a client: tools, streams, handoffs, responses, and so on.

Each file has functions named after what they do, which return whether the client got what the script of
`tests.contracts.scripted_chat` says. ``python FILE URL FUNCTION …`` runs some, and in .venv-clients
``node --input-type=module - URL FUNCTION … < FILE`` those in JavaScript.
"""
