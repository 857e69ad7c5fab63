"""Workers run as another user, or with less memory."""
