"""Complete runs as values: what the paper used, what we add to it, and what anyone can rebuild."""
