"""LatencyTable that the search asks for, and the interface that provides them."""
