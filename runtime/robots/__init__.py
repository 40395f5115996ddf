"""Real and simulated robots, what watches over them, and how they become Gymnasium environments.

To add an arm, write one file like ``example_arm.py``.
"""
