"""Where a job runs: worker processes and the frontend's end of their sockets."""
