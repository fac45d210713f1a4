"""Where the search of branchings learns what its designs take: runs and comparisons here, profiles from other machines."""
