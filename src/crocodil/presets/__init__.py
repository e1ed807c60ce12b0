"""Complete runs as values: what the paper used, number by number, and what anyone can rebuild."""
