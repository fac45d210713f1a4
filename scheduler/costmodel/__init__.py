"""The learned cost model (ACLTuner): boosted trees on features of workload and routine, and the search that they guide."""
