"""Sweeps with Optuna: designs explored for latency, accuracy, memory and energy, by one worker or many.

A *study* is Optuna's: trials with parameters, values and states in a storage. `space` maps parameters to designs, `ladder`
decides how thoroughly a design is evaluated, `worker` runs trials, and `leases` queues those of dead workers again.
"""
