"""Workers of a study: storages, leases of trials, turns on one machine."""
