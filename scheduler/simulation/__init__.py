"""Plans in simulated time: what they would take on processors that are not here, or that are busy."""
