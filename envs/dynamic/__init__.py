"""Worlds in which something moves by itself."""
