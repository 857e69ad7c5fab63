"""What a server has served comes back with a restart."""
