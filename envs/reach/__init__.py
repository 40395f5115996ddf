"""Worlds in which something goes where it is told to."""
