"""Worlds in which a tool touches something, and feels it."""
