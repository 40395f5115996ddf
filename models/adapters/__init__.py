"""Methods that add a few parameters to a network."""
