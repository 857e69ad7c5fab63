"""What the frontend and its workers say to each other: frames on a Unix socket, messages in the frames."""
