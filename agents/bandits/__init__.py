"""Bandits: agents that learn within an episode which matching pays."""
