"""Fast-WAM: a world-action model that learns to foresee pictures, and acts from one look at the present."""
