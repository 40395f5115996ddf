"""Worlds in which to decide is the whole task: whom to match with what, and what to ask next."""
