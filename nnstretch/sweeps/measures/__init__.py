"""What a trial is worth: latency, memory, energy and accuracy of a design, and the results that are kept."""
