"""Charts of studies: trials, fidelities, workers."""
