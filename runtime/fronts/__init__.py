"""The dialects of the server: its own, that of Isaac-GR00T, and that of openpi."""
