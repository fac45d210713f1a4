"""From a graph to a session: processors, planning, streams, several plans; and latencies of designs for the search."""
