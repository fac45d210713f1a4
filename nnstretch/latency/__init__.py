"""Latencies of designs for the search of branchings: measured runs on this machine, profiles of other machines."""
