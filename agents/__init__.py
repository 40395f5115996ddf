"""Whoever acts: policies and scripted agents. The contract is in `agent.py`."""
