"""What networks learn from."""
