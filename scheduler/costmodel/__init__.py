"""Cost models: estimates, and learned costs by boosted trees on features of workload and routine (ACLTuner)."""
