"""Rule finders: agents that ask a world questions until they know its rule."""
