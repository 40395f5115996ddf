"""Flow matching: schedules, the velocity network, the policy and its training."""
