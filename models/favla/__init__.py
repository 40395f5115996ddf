"""FAVLA: a slow pass that sees, reads and foresees contact, and a fast expert that acts on what it feels."""
