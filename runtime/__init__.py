"""What runs, records, stores and shows agents in environments."""
