"""Models of all clients trained and scored at once, or one by one."""
